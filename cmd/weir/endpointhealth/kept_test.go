package endpointhealth

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery"
)

// Endpoints that fail but are not ejected, since too many are, are told all the same, and stay in use.
func TestEndpointsThatFailAndAreUsedAreTold(t *testing.T) {
	for endpoints, want := range map[int]string{
		1: "1 of 1 ready endpoints accept no connection: 10.0.0.1:80 fails (5 attempts in a row have failed; a connection of the node: connection refused); since all fail, all are used",
		3: "; 2 of these are used all the same, since too few others work",
	} {
		inFalseTime(t, aService(endpoints, "TCP"), func(b *bench) {
			for i := range endpoints {
				b.die(i + 1)
				b.fail(i+1, consecutiveFailures)
			}
			if got := b.failing(b.svc); !strings.HasSuffix(got, want) || endpoints == 3 && !strings.HasPrefix(got, "3 of 3 ready endpoints accept no connection: ") {
				t.Errorf("of %d: %s", endpoints, got)
			}
			if list := b.Problems(); len(list) != 1 || b.Counts(b.svc)[api.HealthFailing] != (endpoints+1)/2 {
				t.Errorf("of %d: problems %v, counts %v", endpoints, list, b.Counts(b.svc))
			}
			h := b.state(endpoints)
			if got := Reason(&h, time.Now()); !h.Kept || !strings.HasPrefix(got, "accepts no connection for ") || !strings.Contains(got, ", and is used all the same: 5 attempts") {
				t.Errorf("%q, %+v", got, h)
			}
			b.expectSaid(t, endpoints, "accepts no connection, and is used all the same: 5 attempts in a row have failed; a connection of the node: connection refused")
			if b.WarmsUp(web) {
				t.Error("slow start")
			}
			b.revive(endpoints)
			time.Sleep(trust + time.Second)
			if h := b.state(endpoints); h.State != "unchecked" {
				t.Errorf("after it works again: %+v", h)
			}
			b.expectSaid(t, endpoints, "works again: it answers the node")
		})
	}
}

// A client that is answered ends it, also where a firewall keeps the node from the endpoint.
func TestAnAnsweredClientEndsAFailure(t *testing.T) {
	inFalseTime(t, aService(1, "TCP"), func(b *bench) {
		b.die(1)
		b.fail(1, consecutiveFailures)
		if !b.state(1).Kept {
			t.Fatal("it is not told")
		}
		b.cfg.Attempts.Answered(1)
		time.Sleep(trust)
		if b.state(1).Kept || len(b.Problems()) > 0 {
			t.Errorf("%+v, %v", b.state(1), b.Problems())
		}
		b.expectSaid(t, 1, "works again: attempts do not fail")
	})
}

// An endpoint that is used although it fails is ejected when there is room for it.
func TestAFailingEndpointIsEjectedBesideNewOnes(t *testing.T) {
	inFalseTime(t, aService(1, "TCP"), func(b *bench) {
		b.die(1)
		b.fail(1, consecutiveFailures)
		b.expect(t, "alone")
		b.svc = aService(2, "TCP")
		b.Apply(updateOf(b), b.guard.Load())
		time.Sleep(trust + time.Second)
		b.expect(t, "beside another", 1)
		if b.state(1).Kept || b.count != 1 {
			t.Errorf("%+v, %d", b.state(1), b.count)
		}
	})
}

// What is off tells nothing, and forged SYNs to an endpoint that answers the node neither.
func TestNothingIsToldOfEndpointsThatMayWork(t *testing.T) {
	off := aService(1, "TCP")
	off.Options.NoPassiveCheck = true
	inFalseTime(t, off, func(b *bench) {
		b.die(1)
		b.fail(1, 100)
		if list := b.Problems(); len(list) > 0 {
			t.Error(list)
		}
	})
	inFalseTime(t, aService(1, "TCP"), func(b *bench) {
		b.fail(1, 100)
		if list := b.Problems(); len(list) > 0 {
			t.Error(list)
		}
		b.die(1)
		time.Sleep(trust)
		b.fail(1, 1)
		if !b.state(1).Kept {
			t.Error("it is not told")
		}
		svc := *b.svc
		svc.Options.NoPassiveCheck = true
		b.svc = &svc
		b.Apply(updateOf(b), b.guard.Load())
		time.Sleep(2 * lookEvery)
		if list := b.Problems(); len(list) > 0 {
			t.Error(list)
		}
	})
}

func updateOf(b *bench) *discovery.Update {
	return &discovery.Update{Put: []*discovery.Service{b.svc}}
}

func (b *bench) state(endpoint int) api.EndpointHealth {
	return b.State(b.svc, &b.svc.Ports[0], addressOf(endpoint))
}

// expectSaid compares the last change of an endpoint.
func (b *bench) expectSaid(t *testing.T, endpoint int, want string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	prefix, last := string(rune('0'+endpoint))+" ", ""
	for _, s := range b.said {
		if text, ok := strings.CutPrefix(s, prefix); ok {
			last = text
		}
	}
	if last != want {
		t.Errorf("of %d %q is said, want %q", endpoint, last, want)
	}
}
