package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// A host that joins under one name after the other, and proves its claims to be new each time, has no node
// taken for new that has served on the link: its addresses would move.
func TestForgedNamesHaveNoNodeForgotten(t *testing.T) {
	l := lan(time.Now())
	join := func(name string) *other {
		n := &memberlist.Node{Name: name, Addr: netip.MustParseAddr("192.0.2.2").AsSlice()}
		l.came("a", n)
		o := l.others[name]
		says := claims{Member: name, Node: name, MAC: client.String(), Process: 1, Sequence: 1, Answers: []uint64{o.challenge}, Eligible: []netip.Addr{a4}}
		l.told(says.encode(), time.Now())
		if o.peer == nil {
			t.Fatalf("%s is no member", name)
		}
		return o
	}
	restarts, stays := join("restarts"), join("stays")
	restarts.serves = restarts.serves.Add(-time.Hour)
	l.left(restarts.node)
	for i := range 3 * maxMet {
		forged := join(fmt.Sprint("forged", i))
		if forged.newUntil.IsZero() {
			t.Fatal("a node that has never served is not new")
		}
		l.left(forged.node)
		if len(l.met) > maxMet {
			t.Fatalf("%d names are kept", len(l.met))
		}
	}
	if o := join("restarts"); !o.newUntil.IsZero() {
		t.Error("a node that returns is new")
	}
	l.left(stays.node)
	if o := join("stays"); !o.newUntil.IsZero() {
		t.Error("a node that was there all the time is new")
	}
}
