package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
)

// toNear prefers endpoints on the edge node.
var toNear = service{
	name: "near", index: 31, endpoints: []endpoint{onNode, attached},
	annotations: map[string]string{"weir.dev/traffic-distribution": "PreferSameNode"},
}

// moveAway replaces the endpoints of the Service by those elsewhere, or takes that back.
func (f *fixture) moveAway(t *testing.T, s service, away bool) {
	t.Helper()
	if away {
		s.endpoints = []endpoint{attached}
	}
	replace(t, f.manifest(), render(t, []service{s}))
}

// event waits for an event of the kind, with the text and at least as often as count.
func (f *fixture) event(t *testing.T, kind event.Kind, text string, count uint64) (e event.Event) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		l, err := f.admin.Events(ctx, &api.EventFilter{Kind: string(kind)})
		if err != nil {
			return err
		}
		for _, e = range l.Events {
			if strings.Contains(e.Text, text) && e.Count >= count {
				return nil
			}
		}
		return fmt.Errorf("no event %s with %q: %+v", kind, text, l.Events)
	}))
	return e
}

// Under traffic the endpoint on the node goes and comes back: the tier changes, with the cause.
// An interface that is deleted is an event too. Commands and log have them.
func TestWireEventsTellWhatHasChanged(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toNear}})
	f.event(t, event.Start, "traffic is taken for 1 Services", 1)
	f.checkLoad(t, f.Client, toNear.at(httpPort, false), 20)

	file := f.path("events.json")
	out, err := os.Create(file)
	must(t, err)
	defer out.Close()
	follow := f.command("events", "--follow", "-o", "json", "--kind", "tier-changed", "--admin-socket", f.path("weir.sock"))
	follow.Stdout = out
	must(t, follow.Start())
	t.Cleanup(func() { follow.Process.Kill() })

	f.moveAway(t, toNear, true)
	gone := f.event(t, event.EndpointRemoved, onNode.addr(false).String()+" removed, was ready", 1)
	if gone.Service != "test/near" || !strings.Contains(gone.Text, "http 80/TCP") {
		t.Errorf("%+v", gone)
	}
	tier := f.event(t, event.TierChanged, "tier all, was same-node", 1)
	if tier.Service != "test/near" || !strings.Contains(tier.Text, "because "+onNode.addr(false).String()+" removed") {
		t.Errorf("%+v", tier)
	}
	f.checkLoad(t, f.Client, toNear.at(httpPort, false), 20)
	f.moveAway(t, toNear, false)
	f.event(t, event.EndpointAdded, onNode.addr(true).String()+" added, ready, node edge-1", 1)
	f.event(t, event.TierChanged, "tier same-node, was all", 1)
	f.checkLoad(t, f.Client, toNear.at(httpPort, false), 20)
	f.moveAway(t, toNear, true)
	f.event(t, event.TierChanged, "tier all, was same-node", 2) // counted, not listed again

	must(t, f.Edge.Edge.Delete("eth1"))
	if e := f.event(t, event.InterfaceAbsent, "is gone", 1); e.Object != "Interface eth1" || e.Severity != event.Error {
		t.Errorf("%+v", e)
	}

	t.Run("table", func(t *testing.T) {
		all := f.ask(t, "events")
		for _, want := range []string{"KIND", "tier-changed", "interface-absent", "2 in "} {
			if !strings.Contains(all, want) {
				t.Errorf("no %q in\n%s", want, all)
			}
		}
		if of := f.ask(t, "events", "test/near", "--since", "1h"); strings.Contains(of, "eth1") || !strings.Contains(of, "endpoint-added") {
			t.Errorf("of the Service:\n%s", of)
		}
		if none, err := f.command("events", "test/other", "--admin-socket", f.path("weir.sock")).CombinedOutput(); err == nil || !strings.Contains(string(none), "service test/other: not found") {
			t.Errorf("of another Service: %v, %q", err, none)
		}
	})
	t.Run("log", func(t *testing.T) {
		if log := f.weir.LogTail(1000); !strings.Contains(log, `event=tier-changed service=test/near`) {
			t.Error(log)
		}
	})
	t.Run("follow", func(t *testing.T) {
		var tiers []event.Event
		must(t, f.poll(func(context.Context) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			tiers = nil
			for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
				var e event.Event
				if err := d.Decode(&e); err != nil {
					return err
				}
				tiers = append(tiers, e)
			}
			if len(tiers) < 2 || tiers[len(tiers)-1].Count < 2 {
				return fmt.Errorf("followed: %+v", tiers)
			}
			return nil
		}))
		must(t, follow.Process.Signal(os.Interrupt))
		must(t, follow.Wait())
	})
}
