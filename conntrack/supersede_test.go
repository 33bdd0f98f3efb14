package conntrack

import "testing"

// Supersede takes the client's side of a connection out of the index. Meanwhile another
// worker takes over the connection's port, and a third links a new connection in the slot
// that has come free. Each of these steps can fall between the first worker's look at the
// slot and its store.
func TestSupersedeLeavesASlotThatAnotherHasTakenMeanwhile(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 2, MaxEndpoints: 8})
	tab.index.buckets = tab.index.buckets[:1] // every entry contends for the same slots
	a, b := tab.Worker(0), tab.Worker(1)
	a.Online()
	b.Online()
	old := mustCreate(t, a, natFlow(1))
	forward := tab.index.locate(tab.Hash(&tab.Entry(old).Key), old)

	if !b.Delete(old) {
		t.Fatal("the connection is gone")
	}
	// The first free slot is the one that the connection had.
	other := mustCreate(t, b, natFlow(2))
	third := mustCreate(t, b, natFlow(3))

	tab.index.withdraw(forward)
	for _, r := range []Ref{other, third} {
		e, back := tab.Entry(r).Tuple(), tab.Entry(r.Other()).Tuple()
		if tab.lookup(e) != r || tab.lookup(back) != r.Other() {
			t.Errorf("connection %d is found as %d and %d", r, tab.lookup(e), tab.lookup(back))
		}
	}
	checkTable(t, tab)
}
