package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// A client that comes on a list begins no connection, whether the packet loop or the kernel forwards
// its established ones. These go on or end as the list says, also if it changes while no process
// lives. A list with an error leaves the last one.
func TestWireDenyLists(t *testing.T) {
	for _, hook := range append([]string{"off"}, hooks...) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			f := denyFixture(t, hook)
			l := f.startTalks(t)
			if hook != "off" {
				l.repeatsAll(t, l.list)
			}
			clients := fmt.Sprintf("%v/24 ; the clients\n%v/64\n", netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0))
			f.deny(t, "keep", clients, 2)
			f.refuses(t, toAttached, 0)
			f.dropNamesTheList(t)
			saidBy(t, l.list, 5)
			l.fine(t)
			must(t, os.WriteFile(f.path("keep"), []byte(clients+"example.org\n"), 0o644))
			f.awaitStatus(t, func(s *api.Status) error {
				if n := s.ProblemCounts[problem.DenyList]; n != 1 {
					return fmt.Errorf("%d problems with lists", n)
				}
				return nil
			})
			f.refuses(t, toAttached, 0)
			f.deny(t, "keep", "", 0)
			f.serves(t)
			l.fine(t)

			if hook == "xdp" {
				must(t, f.weir.Kill())
				must(t, os.WriteFile(f.path("end"), []byte(clients), 0o644))
				must(t, f.start())
			} else {
				f.deny(t, "end", clients, 2)
			}
			f.awaitStatus(t, func(s *api.Status) error {
				if n := s.DenyLists[1].EndedFlows; n < uint64(len(l.list)) {
					return fmt.Errorf("%d flows have ended", n)
				}
				return nil
			})
			f.refuses(t, toAttached, 1)
			if hook != "off" {
				f.doesNotRepeat(t, "eth0")
				f.doesNotRepeat(t, "eth1")
			}
			said := l.said()
			time.Sleep(300 * time.Millisecond)
			if n := l.said() - said; n > 0 {
				t.Errorf("%d exchanges of ended connections", n)
			}
			f.deny(t, "end", "44.7.7.0/24\n2001:db8:7700::/56\n", 2)
			f.serves(t)
			f.dropsFlood(t)
			l.stop()
			for _, k := range l.list {
				k.conn.Close()
			}
			f.deniesForAService(t, clients)
		})
	}
}

// protected is a Service that may name a list.
var protected = service{name: "protected", index: 31, endpoints: []endpoint{attached}}

// deniesForAService: a list of Services denies their frontends alone, from when they name it to when they
// do not. Then established connections end.
func (f *fixture) deniesForAService(t *testing.T, clients string) {
	t.Helper()
	f.deny(t, "services", clients, 2)
	bothFamilies(t, func(t *testing.T, six bool) { must(t, f.exchangeOnce(protected, six)) })
	c := f.echo(t, protected)
	lists := func(text string) {
		s := protected
		s.annotations = map[string]string{"weir.dev/deny-lists": text}
		replace(t, f.manifest(), render(t, []service{toAttached, s}))
	}
	lists("services")
	f.awaitStatus(t, func(s *api.Status) error {
		if n := s.DenyLists[2].EndedFlows; n == 0 {
			return errors.New("the connection has not ended")
		}
		return nil
	})
	if err := workload.PingPong(c, "after", patience.For(300*time.Millisecond)); err == nil {
		t.Error("an ended connection is served")
	}
	f.refuses(t, protected, 2)
	f.serves(t)
	lists("services, unknown")
	f.awaitStatus(t, func(s *api.Status) error {
		if s.ProblemCounts[problem.UnsupportedField] != 1 {
			return fmt.Errorf("problems: %v", s.ProblemCounts)
		}
		return nil
	})
	l, err := f.admin.Endpoints(context.Background(), "test/protected")
	must(t, err)
	for _, e := range l.Endpoints {
		if e.Used {
			t.Errorf("used by a Service that is left to the kernel: %+v", e)
		}
	}
	f.serves(t)
	lists("")
	bothFamilies(t, func(t *testing.T, six bool) {
		must(t, f.poll(func(context.Context) error { return f.exchangeOnce(protected, six) }))
	})
}

// denyFixture has three empty lists: keep, end, and one of Services.
func denyFixture(t *testing.T, hook string) *fixture {
	t.Helper()
	o := options{services: []service{toAttached, protected}, stopped: true}
	if hook != "off" {
		o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
	}
	f := ownFixture(t, o)
	mode := map[bool]string{true: "auto", false: `"off"`}[hook != "off"]
	config := f.config() + fmt.Sprintf("death: {holdSeconds: 600}\nflowCache: {mode: %s}\ndenyLists: [{name: keep, file: %s, established: keep}, {name: end, file: %s}, {name: services, scope: services, file: %s}]\n",
		mode, f.path("keep"), f.path("end"), f.path("services"))
	replace(t, f.path("config.yaml"), []byte(config))
	must(t, errors.Join(os.WriteFile(f.path("keep"), nil, 0o644), os.WriteFile(f.path("end"), nil, 0o644), os.WriteFile(f.path("services"), nil, 0o644)))
	f.fromWire(t, hook)
	must(t, f.start())
	return f
}

// deny changes a list, and waits until it has n prefixes.
func (f *fixture) deny(t *testing.T, list, text string, n int) {
	t.Helper()
	must(t, os.WriteFile(f.path(list), []byte(text), 0o644))
	f.awaitStatus(t, func(s *api.Status) error {
		i := slices.IndexFunc(s.DenyLists, func(l api.DenyList) bool { return l.Name == list })
		if i < 0 || s.DenyLists[i].Prefixes != n {
			return fmt.Errorf("the lists are %+v", s.DenyLists)
		}
		return nil
	})
}

func (f *fixture) awaitStatus(t *testing.T, check func(*api.Status) error) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		return check(s)
	}))
}

// refuses checks that a SYN gets no answer, and is counted for a list.
func (f *fixture) refuses(t *testing.T, to service, list int) {
	t.Helper()
	count := func() uint64 {
		s, err := f.admin.Status(inTime(t, within))
		must(t, err)
		return s.DenyLists[list].Packets
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		before := count()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if c, err := f.Client.DialContext(ctx, "tcp", to.at(echoPort, six).String()); err == nil {
			c.Close()
			t.Error("a denied client is connected")
		} else if !errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			t.Errorf("%v, want silence", err)
		}
		must(t, f.poll(func(context.Context) error {
			if count() == before {
				return errors.New("no packet is counted")
			}
			return nil
		}))
		client := netlab.Host4(netlab.ClientNet, 2)
		if six {
			client = netlab.Host6(netlab.ClientNet, 2)
		}
		said, err := f.admin.Trace(inTime(t, within), &api.TraceQuery{
			Protocol: "TCP", TTL: 64, Source: netip.AddrPortFrom(client, 40000), Destination: to.at(echoPort, six),
		})
		if err != nil || said.Reason != "denied" || said.DenyList != []string{"keep", "end", "services"}[list] {
			t.Errorf("a trace says %+v, %v", said, err)
		}
	})
}

// dropNamesTheList sends datagrams, which the packet loop drops where established flows go on.
func (f *fixture) dropNamesTheList(t *testing.T) {
	t.Helper()
	bothFamilies(t, func(t *testing.T, six bool) {
		c, err := f.Client.DialContext(inTime(t, within), "udp", toAttached.at(echoPort, six).String())
		must(t, err)
		defer c.Close()
		must(t, f.poll(func(ctx context.Context) error {
			if _, err := c.Write([]byte("denied")); err != nil {
				return err
			}
			list, err := f.admin.Drops(ctx, &api.DropFilter{Reason: "denied"})
			if err != nil {
				return err
			}
			for _, p := range list.Packets {
				if p.Source == c.LocalAddr().String() && p.DenyList == "keep" {
					return nil
				}
			}
			return fmt.Errorf("dropped packets: %+v", list.Packets)
		}))
	})
}

// dropsFlood floods from a denied prefix: the steering program drops it, and the packet loop gets nothing.
func (f *fixture) dropsFlood(t *testing.T) {
	t.Helper()
	bothFamilies(t, func(t *testing.T, six bool) {
		before, err := f.admin.Status(inTime(t, within))
		must(t, err)
		flood := newSYNFlood(t, f, toAttached.at(echoPort, six), 5000)
		flood.from = sourceOfAPrefix
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			defer end()
			flood.run(ctx)
		})
		for flood.sent.Load() < 1000 && ctx.Err() == nil {
			must(t, f.exchangeOnce(toAttached, six))
		}
		end()
		running.Wait()
		must(t, flood.err)
		f.awaitStatus(t, func(s *api.Status) error {
			early, listed := s.Steering["denied"]-before.Steering["denied"], s.DenyLists[1].Packets-before.DenyLists[1].Packets
			if sent := uint64(flood.sent.Load()); early < sent/2 || listed != early || s.Drops["denied"] != before.Drops["denied"] {
				return fmt.Errorf("of %d SYNs the steering program drops %d, the list %d, workers %d", sent, early, listed, s.Drops["denied"]-before.Drops["denied"])
			}
			return nil
		})
	})
}

func (f *fixture) serves(t *testing.T) {
	t.Helper()
	bothFamilies(t, func(t *testing.T, six bool) { must(t, f.exchangeOnce(toAttached, six)) })
}

// fine checks that no connection has failed.
func (l *talks) fine(t *testing.T) {
	t.Helper()
	for _, k := range l.list {
		if k.failed.Load() {
			t.Errorf("%s has failed", k.name)
		}
	}
}

func (l *talks) said() (n int64) {
	for _, k := range l.list {
		n += k.said.Load()
	}
	return n
}
