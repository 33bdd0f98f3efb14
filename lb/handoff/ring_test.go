package handoff

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/xsk"
)

func frames(addrs ...uint64) (list []xsk.Desc) {
	for _, a := range addrs {
		list = append(list, xsk.Desc{Addr: a})
	}
	return list
}

func TestARingKeepsTheOrder(t *testing.T) {
	r := New(4)
	if !r.Empty() || r.Free() != 4 {
		t.Fatalf("a new ring: empty %v, %d free", r.Empty(), r.Free())
	}
	next := uint64(0)
	for range 10 { // goes round more than once
		if !r.Put(7, frames(next, next+1, next+2)...) {
			t.Fatal("no room in an empty ring")
		}
		if r.Empty() || r.Free() != 1 {
			t.Fatalf("after 3 of 4: empty %v, %d free", r.Empty(), r.Free())
		}
		for range 3 {
			s, ok := r.Take()
			if !ok || s.Desc.Addr != next || s.Tag != 7 {
				t.Fatalf("took %+v %v, want frame %d", s, ok, next)
			}
			next++
		}
		if s, ok := r.Take(); ok {
			t.Fatalf("took %+v from an empty ring", s)
		}
	}
}

func TestARingTakesAPacketWholeOrNotAtAll(t *testing.T) {
	r := New(4)
	r.Put(1, frames(10, 11)...)
	if r.Put(2, frames(20, 21, 22)...) {
		t.Error("three frames went into two slots")
	}
	if r.Free() != 2 {
		t.Errorf("a refused packet left %d slots free, want 2", r.Free())
	}
	if !r.Put(3, frames(30, 31)...) || r.Free() != 0 {
		t.Errorf("a packet that just fits: %d free", r.Free())
	}
	var got []uint64
	for s := range r.All {
		got = append(got, s.Desc.Addr)
	}
	if want := []uint64{10, 11, 30, 31}; !slices.Equal(got, want) {
		t.Errorf("on the ring: %v, want %v", got, want)
	}
	for range r.All {
		break // All stops when it is asked to
	}
	if s, _ := r.Take(); s.Desc.Addr != 10 {
		t.Errorf("All took a frame: %+v is first", s)
	}
}

func TestNoAllocationPerFrame(t *testing.T) {
	r := New(16)
	packet := frames(1, 2, 3)
	if n := testing.AllocsPerRun(100, func() {
		r.Put(1, packet...)
		for range packet {
			r.Take()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Two goroutines pass frames both ways at once; run with -race.
func TestRingsBetweenGoroutines(t *testing.T) {
	there, back := New(64), New(64)
	const n = 20000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i < n; {
			if s, ok := there.Take(); ok {
				if s.Desc.Addr != i || s.Tag != int32(i%7) {
					t.Errorf("slot %d holds %+v", i, s)
					return
				}
				for !back.Put(-1, xsk.Desc{Addr: s.Desc.Addr}) {
					time.Sleep(time.Microsecond)
				}
				i++
			}
		}
	})
	sent, got := uint64(0), uint64(0)
	for got < n {
		if sent < n && there.Put(int32(sent%7), xsk.Desc{Addr: sent}) {
			sent++
		}
		if s, ok := back.Take(); ok {
			if s.Desc.Addr != got || s.Tag != -1 {
				t.Fatalf("returned %+v, want %d", s, got)
			}
			got++
		}
	}
	wg.Wait()
}

func BenchmarkPutAndTake(b *testing.B) {
	r := New(4096)
	d := xsk.Desc{Addr: 1, Len: 64}
	b.ReportAllocs()
	for b.Loop() {
		r.Put(1, d)
		r.Take()
	}
}
