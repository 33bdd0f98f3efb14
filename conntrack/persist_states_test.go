package conntrack

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/conntrack/schema"
)

// A later release may give a state that is known here a number that this process has no bits for.
func TestAKnownStateMayHaveALargeNumberInAnotherLayout(t *testing.T) {
	cfg := Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 64}
	b := rewritten(t, varied(t, rand.New(rand.NewPCG(5, 5)), cfg), conntracktest.Layout{Version: layoutVersion + 1, Seed: 5})
	want, _ := restoredFrom(t, cfg, alignedCopy(b))
	s, err := schema.Read(b, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	conns := s.Part(partConns)
	mask := conns.Mask("state", stateNumber)
	unit := mask & -mask
	was, ok := s.ValueOf(valuesState, "established")
	const is = 31
	if !ok || mask/unit < is {
		t.Fatalf("state %d in mask %#x", was, mask)
	}
	n := 0
	for i := range conns.Count {
		setNumber(t, b, partConns, "state", i, func(v uint64) uint64 {
			if v&mask != was*unit {
				return v
			}
			n++
			return v&^mask | is*unit
		})
	}
	line := func(number uint64) string { return fmt.Sprintf("value state established %d\n", number) }
	if err := schema.WriteText(b, strings.Replace(s.String(), line(was), line(is), 1)); err != nil {
		t.Fatal(err)
	}
	got, a := restoredFrom(t, cfg, b)
	if n == 0 || len(got) != len(want) || a.Discarded != 0 {
		t.Errorf("%d of %d connections, %d are established: %+v", len(got), len(want), n, a)
	}
}

// A table with less room keeps the connections that are open, wherever they are in the old one.
func TestATableWithLessRoomKeepsOpenConnections(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 300 { // half-open
		mustCreate(t, w, natFlow(i))
	}
	kept := map[Key]bool{}
	for i := 300; i < 450; i++ {
		e := tab.Entry(establish(t, tab, w, i))
		kept[e.Tuple()] = true
	}
	tab.Close()
	cfg.MaxFlows = 200
	tab = open(t, cfg)
	defer tab.Close()
	if a := tab.Restoration(); a.Flows != 200 || a.DiscardedBy[NoRoom] != 250 {
		t.Fatalf("restoration %+v", a)
	}
	tab.Range(func(r Ref) bool {
		delete(kept, tab.Entry(r).Tuple())
		return true
	})
	if len(kept) != 0 {
		t.Errorf("%d established connections gave way to half-open ones", len(kept))
	}
	checkTable(t, tab)
}
