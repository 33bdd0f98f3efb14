package l2

import (
	"math"
	"net/netip"
	"slices"
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
			says := claims{Member: "b", Node: "b", MAC: client.String(), Process: c.process, Sequence: c.sequence, Answers: []uint64{recorded}}
			if c.answers {
				says.Answers = []uint64{o.challenge}
				recorded = o.challenge
			}
			l.told(says.encode(), time.Now())
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
	says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Answers: []uint64{l.others["b"].challenge}, Owned: []netip.Addr{a4}}
	l.told(says.encode(), time.Now())
	if l.others["b"].peer == nil {
		t.Fatal("its answer does not count")
	}
	l.left(n)
	l.came("a", n)
	if l.told(says.encode(), time.Now()); l.others["b"].peer != nil {
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
		says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Challenge: 77, Answers: []uint64{o.challenge}}
		if l.told(says.encode(), time.Now()); !slices.Equal(o.answers, []uint64{77}) || o.dirty != want {
			t.Errorf("time %d: answers %d, is sent: %v", i, o.answers, o.dirty)
		}
	}
}

// Claims that are recorded can be sent again without end. They have a node send its own, which are
// large, once in replyEvery, and hide no challenge of claims that are new.
func TestRecordedClaimsHaveFewAnswers(t *testing.T) {
	for name, recorded := range map[string][]claims{
		"challenges in turn": {{Process: 1, Sequence: 5, Challenge: 70}, {Process: 1, Sequence: 5, Challenge: 71}},
		"a lower sequence":   {{Process: 1, Sequence: 4}},
		"another process":    {{Process: 2, Sequence: 4, Challenge: 70}, {Process: 2, Sequence: 5, Challenge: 71}},
	} {
		l, o := member(claims{Process: 1, Sequence: 5})
		sent := 0
		tell := func(c claims) {
			c.Member, c.Node, c.MAC = "b", "b", client.String()
			o.dirty = false
			if l.told(c.encode(), time.Now()); o.dirty {
				sent++
			}
		}
		for range 50 {
			for _, c := range recorded {
				tell(c)
			}
		}
		if sent > 2 {
			t.Errorf("%s: the claims are sent %d times", name, sent)
		}
		sent = 0
		if tell(claims{Process: 1, Sequence: 6, Challenge: 80}); sent != 1 || !slices.Contains(o.answers, 80) {
			t.Errorf("%s: the challenge of new claims is answered %d times, with %d", name, sent, o.answers)
		}
		tell(claims{Process: 1, Sequence: 6, Challenge: 81})
		if l.step(o.replied.Add(replyEvery)); !slices.Contains(o.answers, 81) || !o.dirty {
			t.Errorf("%s: the last challenge is not answered later: %+v", name, o)
		}
	}
}

// Claims of many processes that are gone have no challenge of a member answered again.
func TestRecordedProcessesHaveNoMemberForgotten(t *testing.T) {
	l, o := member(claims{Process: 1, Sequence: 5, Challenge: 70})
	tell := func(c claims) bool {
		c.Member, c.Node, c.MAC = "b", "b", client.String()
		l.told(c.encode(), time.Now())
		return slices.Contains(o.answers, c.Challenge)
	}
	for process := range uint64(2 * maxProcesses) {
		tell(claims{Process: 2 + process, Sequence: 1, Challenge: 1 + process})
	}
	if n := len(l.challenges.heard); n > maxProcesses {
		t.Errorf("%d processes are kept", n)
	}
	if tell(claims{Process: 1, Sequence: 5, Challenge: 70}) {
		t.Error("a challenge of a member is answered again")
	}
	if !tell(claims{Process: 1, Sequence: 6, Challenge: 71}) {
		t.Error("a new one is not answered")
	}
}

// A member that does not answer is of a build that knows no challenges: its former claims do not count
// for ever. Its addresses are asked for before this node takes one.
func TestAMemberThatDoesNotAnswer(t *testing.T) {
	l, o := member(claims{Process: 1, Sequence: 5, Owned: []netip.Addr{a4}})
	x := &address{wanted: true, probes: probeCount, foreign: hardware(client), foreignUntil: time.Now().Add(foreignTime),
		rival: hardware(client), rivalAt: time.Now()}
	l.addresses[a4] = x
	says := claims{Member: "b", Node: "b", MAC: client.String(), Process: 2, Sequence: 1}
	l.told(says.encode(), time.Now())
	asked, now := o.challenge, time.Now()
	if l.owing(now); o.peer == nil || asked == 0 {
		t.Fatalf("%+v", o)
	}
	o.dirty = false
	if l.owing(now.Add(answerWithin)); o.peer != nil || !l.changed || x.probes != 0 || !o.dirty {
		t.Errorf("its claims count: %+v, probes %d", o, x.probes)
	}
	says.Answers, says.Owned = []uint64{asked}, []netip.Addr{a4}
	if l.told(says.encode(), time.Now()); o.peer == nil || !x.foreignUntil.IsZero() || !x.rivalAt.IsZero() {
		t.Errorf("a late answer does not count: %+v", o)
	}
	l.owing(now.Add(3 * answerWithin))
	if o.peer == nil {
		t.Error("a member that has answered is forgotten")
	}
}

// member is a link with a member b, and its claims.
func member(c claims) (*link, *other) {
	l := lan(time.Now())
	l.came("a", &memberlist.Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.2").AsSlice()})
	o := l.others["b"]
	c.Member, c.Node, c.MAC, c.Answers = "b", "b", client.String(), []uint64{o.challenge}
	l.told(c.encode(), time.Now())
	return l, o
}
