package l2

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// lan is a link with a carrier that may take addresses from now on.
func lan(now time.Time) *link {
	return &link{
		Config: &Config{Node: "a"}, name: "lan0", node: "a", log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1),
		local: netip.MustParseAddr("192.0.2.1"), subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		socket: &socket{}, carrier: true, ready: now, addresses: map[netip.Addr]*address{},
		others: map[string]*other{}, met: acquaintances{}, strangers: map[netip.Addr]*stranger{},
		challenges: newChallenges(),
	}
}

// A node that is heard and is no member yet may own the address, or take it at the same time. It is
// waited for, not for ever: a hello may be forged.
func TestANodeThatIsHeardIsWaitedFor(t *testing.T) {
	b := netip.MustParseAddr("192.0.2.2")
	for name, c := range map[string]struct {
		hello  hello
		since  time.Duration // hellos since the link is ready
		met    bool
		claims bool // known
		takes  bool
	}{
		"nobody":      {takes: true},
		"heard":       {hello: hello{from: b}},
		"a member":    {hello: hello{from: b}, met: true},
		"its claims":  {hello: hello{from: b}, met: true, claims: true, takes: true},
		"for long":    {hello: hello{from: b}, since: joinFor, takes: true},
		"other key":   {hello: hello{from: b, otherKey: true}, takes: true},
		"no neighbor": {hello: hello{from: netip.MustParseAddr("198.51.100.2")}, takes: true},
		"itself":      {hello: hello{from: netip.MustParseAddr("192.0.2.1")}, takes: true},
	} {
		ready := time.Now()
		l, now := lan(ready), ready.Add(c.since)
		if c.hello.from.IsValid() {
			l.heardHello(c.hello, now)
		}
		if c.met {
			l.came("a", &memberlist.Node{Name: "b", Addr: b.AsSlice()})
		}
		if c.claims {
			l.others["b"].peer = &peer{claims: claims{Node: "b", Member: "b"}}
		}
		x := &address{wanted: true, probes: probeCount}
		l.addresses[a4] = x
		l.decideAbout(a4, x, now)
		if x.owned != c.takes {
			t.Errorf("%s: takes the address: %v, %q", name, x.owned, x.reason)
		}
		if !x.owned && l.next.IsZero() {
			t.Errorf("%s: it does not look again", name)
		}
	}
}

// Of nodes that begin together the first to serve takes all addresses. The others get their share.
func TestNodesThatBeginTogetherShare(t *testing.T) {
	now := time.Now()
	l := lan(now.Add(-time.Millisecond))
	l.came("a", &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()})
	says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Answers: []uint64{l.others["b"].challenge}, Eligible: []netip.Addr{a4}}
	l.told(says.encode(), now)
	shared := 0
	for i := range 100 {
		a, x := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 103)}), &address{wanted: true, probes: probeCount}
		if l.decideAbout(a, x, now); !x.owned {
			t.Fatalf("%s: nobody else serves it, %+v", a, x)
		}
		l.others["b"].peer.eligible[a] = true
		if l.decideAbout(a, x, now); !x.eligible {
			shared++
		}
	}
	if shared < 25 || shared > 75 {
		t.Errorf("%d of 100 addresses go to the other node", shared)
	}
}

// The state that hellos leave behind is bounded, and ends with them.
func TestStrangersAreForgotten(t *testing.T) {
	l, now := lan(time.Now()), time.Now()
	for i := range 200 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 3)})
		l.heardHello(hello{from: a}, now)
		l.notJoined(a, errors.New("refused"), now)
	}
	if n := len(l.strangers); n != maxMembers {
		t.Errorf("%d strangers are kept", n)
	}
	if l.heardHello(hello{from: netip.MustParseAddr("192.0.2.2")}, now.Add(strangerFor+1)); len(l.strangers) != 1 {
		t.Errorf("%d strangers are left", len(l.strangers))
	}
}

// Hellos with another key can come from any host, by every address. They leave room for nodes, and
// those of the address of a node are not taken for the node's. Status says that there are more.
func TestHellosWithAnotherKeyLeaveRoom(t *testing.T) {
	l, now := lan(time.Now()), time.Now()
	honest := netip.MustParseAddr("192.0.2.2")
	for i := range 200 {
		l.heardHello(hello{from: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 3)}), otherKey: true}, now)
	}
	if n := len(l.strangers); n != maxOtherKeys {
		t.Errorf("%d hosts with another key are kept, want %d", n, maxOtherKeys)
	}
	if !l.heardHello(hello{from: honest}, now) || l.heardHello(hello{from: honest, otherKey: true}, now) || l.joining(now) != honest {
		t.Errorf("the node is not waited for: %v", l.joining(now))
	}
	for a, reason := range (&Speaker{links: []*link{l}}).Links()[0].Unjoined {
		if !strings.Contains(reason, "another key") || !strings.Contains(reason, "more hosts") {
			t.Errorf("%s: %s", a, reason)
		}
	}
}

// A node whose key changes is shown as it is now, and counts among those with another key.
func TestAStrangerWhoseKeyChanges(t *testing.T) {
	l, now := lan(time.Now()), time.Now()
	b := netip.MustParseAddr("192.0.2.2")
	l.heardHello(hello{from: b, otherKey: true}, now)
	if l.heardHello(hello{from: b}, now); len(l.unjoined(now)) != 0 {
		t.Errorf("it has the key: %v", l.unjoined(now))
	}
	l.notJoined(b, errors.New("refused"), now)
	if l.heardHello(hello{from: b}, now); l.unjoined(now)[b] != "refused" {
		t.Errorf("it was not joined: %v", l.unjoined(now))
	}
	later := now.Add(strangerWaits)
	for i := range maxOtherKeys {
		l.heardHello(hello{from: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 3)}), otherKey: true}, later)
	}
	l.heardHello(hello{from: b, otherKey: true}, later)
	if l.room(true) || l.strangers[b].key || l.crowded != later {
		t.Errorf("%d strangers, %+v", len(l.strangers), l.strangers[b])
	}
}

// With a key a hello is one of a node with the key, and of its own address.
func TestGreeting(t *testing.T) {
	key, other := make([]byte, 32), append(make([]byte, 31), 1)
	seen := map[string]bool{}
	for _, k := range [][]byte{nil, key, other} {
		for _, a := range []netip.Addr{a4, c4, a6} {
			seen[fmt.Sprintf("%x", greeting(k, a))] = true
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d texts of 3 nodes with 2 keys and without, want 7", len(seen))
	}
}
