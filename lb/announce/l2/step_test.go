package l2

import (
	"net/netip"
	"testing"
	"time"
)

// A host that has an address that no node owns is shown, as it is for an owner.
func TestAHostThatHasAnAddressIsShown(t *testing.T) {
	now := time.Now()
	l := lan(now)
	l.addresses[a4] = &address{wanted: true, probes: 1, probed: now}
	l.claimed(a4, client, now)
	if x := (&Speaker{links: []*link{l}}).Addresses()[0]; x.Rival != client.String() || !x.RivalAt.Equal(now) {
		t.Errorf("%+v", x)
	}
}

// An interface that has not been looked at is not said to be absent.
func TestAnInterfaceThatStartsIsNotAbsent(t *testing.T) {
	now := time.Now()
	l := lan(now)
	l.name, l.socket, l.fault = "none0", nil, starting
	x := &address{wanted: true}
	if l.decideAbout(a4, x, now); x.reason != "none0: it is starting" {
		t.Errorf("at first: %q", x.reason)
	}
	if l.refresh(now); l.fault != absent {
		t.Errorf("then: %q", l.fault)
	}
}

// An address that was lost with the carrier may be another host's since: it is asked for again.
func TestALostAddressIsAskedForAgain(t *testing.T) {
	a, now := netip.MustParseAddr("192.0.2.1"), time.Now()
	l := lan(now)
	l.carrier = false
	x := &address{wanted: true, owned: true, probes: probeCount}
	l.addresses[a] = x
	l.decideAbout(a, x, now) // no carrier
	if x.owned {
		t.Fatal("the owner has no carrier")
	}
	if x.probes != 0 {
		t.Errorf("%d probes count that were sent before", x.probes)
	}
}

// A node that listens is no candidate: the others would wait for it with an address whose owner is gone.
func TestANodeThatListensIsNoCandidate(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		ready time.Duration // from now
		heard bool          // a node that is no member
		want  bool
	}{
		"listens":                  {ready: listenFor},
		"waits for a node":         {heard: true},
		"asks who has the address": {want: true},
	} {
		l := lan(now.Add(c.ready))
		if c.heard {
			l.heardHello(hello{from: netip.MustParseAddr("192.0.2.2")}, now)
		}
		x := &address{wanted: true, probes: 1, probed: now}
		if l.decideAbout(a4, x, now); x.eligible != c.want || x.owned || l.next.IsZero() {
			t.Errorf("%s: candidate: %v, owner: %v, %q, looks again: %v", name, x.eligible, x.owned, x.reason, !l.next.IsZero())
		}
	}
}

// A node that has left an address to another asks nobody when that one dies: it had asked.
func TestAnAddressLeftToAnotherNodeIsTakenAtOnce(t *testing.T) {
	now := time.Now()
	l := lan(now)
	l.others["z"] = &other{peer: &peer{claims: claims{Node: "z", Member: "z"}, owned: map[netip.Addr]bool{a4: true}}}
	x := &address{owned: true, unwanted: "it is drained"}
	l.addresses[a4] = x
	if l.decideAbout(a4, x, now); x.owned {
		t.Fatal("the other node has it")
	}
	delete(l.others, "z")
	x.wanted = true
	if l.decideAbout(a4, x, now); !x.owned {
		t.Errorf("it is not taken: %s", x.reason)
	}
}
