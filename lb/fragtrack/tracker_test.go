package fragtrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

func key(n uint64) *conntrack.Key { return &conntrack.Key{W: [5]uint64{n + 1}} }

func TestADatagramIsFoundUntilItsFragmentsStop(t *testing.T) {
	var tr Tracker
	start := uint32(1<<32 - 40) // the clock wraps around
	d := tr.Add(7, key(1), start)
	d.Ports = 99
	if tr.Find(7, key(2), start) != nil {
		t.Error("found by another key")
	}
	d.Touch(start + 60)
	if got := tr.Find(7, key(1), start+60+maxTicks-1); got != d || got.Ports != 99 {
		t.Error("not found shortly after its latest fragment")
	}
	if tr.Find(7, key(1), start+60+maxTicks) != nil {
		t.Error("found long after its latest fragment")
	}
	if tr.Find(7, key(1), start+60) != nil {
		t.Error("found again after it was given up")
	}
}

// A full set gives up the datagram whose latest fragment is the oldest.
func TestANewDatagramTakesThePlaceOfTheOldest(t *testing.T) {
	var tr Tracker
	for n := range uint64(trackerWays) {
		tr.Add(3+n*trackerSets, key(n), 10+uint32(n))
	}
	tr.Find(3, key(0), 20).Touch(20)
	tr.Add(3, key(50), 20)
	for n := range uint64(trackerWays) {
		if found, want := tr.Find(3, key(n), 20) != nil, n != 1; found != want {
			t.Errorf("datagram %d is there: %v, want %v", n, found, want)
		}
	}
	if tr.Find(3, key(50), 20) == nil {
		t.Error("the new datagram is not there")
	}
	if tr.Find(4, key(50), 20) != nil {
		t.Error("found in another set")
	}
}

func TestForget(t *testing.T) {
	var tr Tracker
	tr.Add(3, key(1), 10).Forget()
	if tr.Find(3, key(1), 10) != nil {
		t.Error("found after Forget")
	}
}

// A second first fragment is a duplicate at once, and later another datagram.
func TestRestart(t *testing.T) {
	var tr Tracker
	d := tr.Add(3, key(1), 10)
	d.Take(&header.Fragment{Offset: 0, Len: 8, More: true})
	d.ID, d.IDRewritten = 5, true
	if !d.Repeats(10+repeatTicks-1) || d.Repeats(10+repeatTicks) {
		t.Errorf("a duplicate until %v", repeatTicks)
	}
	d.Restart(30)
	if d.Begun() || d.IDRewritten || !d.Repeats(30) {
		t.Errorf("%+v is not a new datagram", d)
	}
	if tr.Find(3, key(1), 30) != d {
		t.Error("not found after Restart")
	}
}

// Workers that share a pair of addresses never give the same identification, and a
// counter gives all before it repeats.
func TestIDsOfWorkersDiffer(t *testing.T) {
	const shares = 3
	seen := map[uint32]bool{}
	for share := range uint32(shares) {
		ids := NewIDs(func() uint32 { return 1000 * share })
		for range 5000 {
			id := ids.Next(42, share, shares)
			if seen[id] || id%shares != share {
				t.Fatalf("worker %d gives %d", share, id)
			}
			seen[id] = true
		}
	}
}

func TestNoAllocationPerFragment(t *testing.T) {
	var tr Tracker
	ids := NewIDs(func() uint32 { return 7 })
	f := header.Fragment{Offset: 0, Len: 8}
	if n := testing.AllocsPerRun(100, func() {
		d := tr.Find(1, key(1), 1)
		if d == nil {
			d = tr.Add(1, key(1), 1)
		}
		d.Take(&f)
		d.ID = ids.Next(1, 0, 1)
		d.Forget()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDatagram is a datagram of two fragments.
func BenchmarkDatagram(b *testing.B) {
	tr := new(Tracker)
	k := key(1)
	b.ReportAllocs()
	for b.Loop() {
		d := tr.Add(1, k, 1)
		d.Take(&header.Fragment{Offset: 0, Len: 1480, More: true})
		d = tr.Find(1, k, 1)
		d.Take(&header.Fragment{Offset: 1480, Len: 100})
		if d.Complete() {
			d.Forget()
		}
	}
}
