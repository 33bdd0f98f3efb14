package l2

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// Claims of a process that is not known count with the answer to a challenge that was sent since. So a
// host that has recorded claims of a process that is gone, or of this one, cannot have them count again,
// and a forged one counts until the node is asked.
func TestClaimsAreProvedToBeNew(t *testing.T) {
	const old, next = 9, 3
	type claim struct {
		process, sequence uint64
		answers           bool // the last challenge
		taken, asked      bool
	}
	for name, list := range map[string][]claim{
		"first":             {{old, 1, false, false, true}, {old, 1, true, true, false}},
		"in order":          {{old, 1, true, true, false}, {old, 2, false, true, false}},
		"late":              {{old, 2, true, true, false}, {old, 1, false, false, true}, {old, 2, false, false, true}, {old, 3, false, true, true}},
		"twice":             {{old, 2, true, true, false}, {old, 2, false, false, false}},
		"the next process":  {{old, 700, true, true, false}, {next, 1, false, false, true}, {next, 1, true, true, false}, {next, 2, false, true, false}},
		"the old one, late": {{old, 7, true, true, false}, {next, 1, false, false, true}, {next, 1, true, true, false}, {old, 8, false, false, true}, {next, 2, false, true, true}},
		"a forged sequence": {{old, 1, true, true, false}, {old, math.MaxUint64, false, true, false}, {old, 2, false, false, true}, {old, 2, true, true, false}},
	} {
		l, recorded := lan(time.Now()), uint64(0)
		l.came("a", &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()})
		o := l.others["b"]
		for i, c := range list {
			before := o.peer
			says := claims{Member: "b", Node: "b", MAC: client.String(), Process: c.process, Sequence: c.sequence, Answer: recorded}
			if c.answers {
				says.Answer = o.challenge
				recorded = o.challenge
			}
			l.told(says.encode())
			if taken := o.peer != before; taken != c.taken || (o.challenge != 0) != c.asked {
				t.Errorf("%s: claim %d is taken: %v, asked: %v", name, i, taken, o.challenge != 0)
			}
		}
	}
}

// A node that is gone and comes back is asked, whatever was recorded while it was a member.
func TestClaimsOfANodeThatComesBack(t *testing.T) {
	l := lan(time.Now())
	n := &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()}
	l.came("a", n)
	says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Answer: l.others["b"].challenge, Owned: []netip.Addr{a4}}
	l.told(says.encode())
	if l.others["b"].peer == nil {
		t.Fatal("its answer does not count")
	}
	l.left(n)
	l.came("a", n)
	if l.told(says.encode()); l.others["b"].peer != nil {
		t.Error("claims that were recorded count")
	}
}

// A challenge is sent back, once.
func TestChallengesAreAnswered(t *testing.T) {
	l := lan(time.Now())
	l.came("a", &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()})
	o := l.others["b"]
	for i, want := range []bool{true, false} {
		o.dirty = false
		says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Challenge: 77, Answer: o.challenge}
		if l.told(says.encode()); o.asked != 77 || o.dirty != want {
			t.Errorf("time %d: answer %d, is sent: %v", i, o.asked, o.dirty)
		}
	}
}
