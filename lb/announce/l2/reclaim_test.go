package l2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// mine is an address that the link of lan is the first choice for, beside a member b.
func mine(t *testing.T, l *link) netip.Addr {
	t.Helper()
	for i := range 100 {
		if a := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}); weight(l.member(), a) > weight("b", a) {
			return a
		}
	}
	t.Fatal("b is the first choice for all")
	return netip.Addr{}
}

// A node that is told to take its addresses back may be about to start, or have no carrier. It has the
// time for that from when it may own one.
func TestReclaimWaitsUntilTheNodeMayOwn(t *testing.T) {
	const within = 15 * time.Second
	type change func(l *link, now time.Time)
	wants := func(l *link, _ time.Time) { l.set([]Want{{Address: mine(t, l)}}, false, l.why) }
	for name, c := range map[string]struct{ before, after change }{
		"serves already":  {wants, func(*link, time.Time) {}},
		"starts":          {func(*link, time.Time) {}, wants},
		"has no carrier":  {func(l *link, now time.Time) { wants(l, now); l.carrier = false }, func(l *link, now time.Time) { l.carrier, l.ready, l.changed = true, now, true }},
		"has no socket":   {func(l *link, now time.Time) { wants(l, now); l.socket = nil }, func(l *link, _ time.Time) { l.socket, l.changed = &socket{}, true }},
		"listens":         {func(l *link, now time.Time) { wants(l, now); l.ready = now.Add(time.Hour) }, func(l *link, now time.Time) { l.ready, l.changed = now, true }},
		"its workers end": {func(l *link, _ time.Time) { l.set(nil, true, l.why) }, wants},
	} {
		l, now := lan(time.Now()), time.Now()
		l.why = func(netip.Addr) string { return "it starts" }
		a := mine(t, l)
		l.others["b"] = &other{peer: &peer{claims: claims{Node: "b", Member: "b"}, owned: map[netip.Addr]bool{a: true}, eligible: map[netip.Addr]bool{a: true}}}
		c.before(l, now)
		(&Speaker{links: []*link{l}}).Reclaim(within)
		l.step(now)
		if name != "serves already" {
			now = now.Add(4 * within)
			l.step(now)
		}
		c.after(l, now)
		again := l.step(now)
		if !l.said.Preempts || len(l.said.Eligible) == 0 {
			t.Errorf("%s: it does not take the address back: %+v, %q", name, l.said, l.addresses[a].reason)
		}
		now = now.Add(within)
		if again.After(now) {
			t.Errorf("%s: looks again %v late", name, again.Sub(now))
		}
		l.changed = true
		if l.step(now); l.said.Preempts {
			t.Errorf("%s: it takes addresses back for ever", name)
		}
	}
}

// A node that comes and goes takes its addresses back within the time once, and not at each return.
func TestReclaimEndsOnANodeThatComesAndGoes(t *testing.T) {
	l, now := lan(time.Now()), time.Now()
	l.why = func(netip.Addr) string { return "" }
	want := []Want{{Address: mine(t, l)}}
	(&Speaker{links: []*link{l}}).Reclaim(15 * time.Second)
	for range 3 {
		l.set(want, false, l.why)
		l.step(now)
		now = now.Add(10 * time.Second)
		l.set(nil, true, l.why)
		l.step(now)
		now = now.Add(time.Second)
	}
	if l.said.Preempts {
		t.Error("it takes addresses back after 33 s")
	}
}

// A node that is new on the link has the time to get its share from when it may own an address.
func TestANewNodeGetsItsShareWhenItServes(t *testing.T) {
	l, now := lan(time.Now()), time.Now()
	l.came("a", &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()})
	o := l.others["b"]
	says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Answers: []uint64{o.challenge}}
	l.told(says.encode(), now)
	says.Sequence, says.Eligible = 2, []netip.Addr{a4}
	now = now.Add(2 * newFor)
	if l.told(says.encode(), now); !now.Before(o.newUntil) {
		t.Error("a node that starts slowly gets nothing")
	}
	now = now.Add(newFor)
	says.Sequence = 3
	if l.told(says.encode(), now); now.Before(o.newUntil) {
		t.Error("it is new for ever")
	}
	l.left(o.node)
	l.came("a", o.node)
	says.Answers = []uint64{l.others["b"].challenge}
	if l.told(says.encode(), now); now.Before(l.others["b"].newUntil) {
		t.Error("a node that returns is new")
	}
}
