//go:build !race

// The race detector does not know that a reader may find out what it has read.

package conntrack

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// outsider reads the table as a program in the kernel does: no worker waits for it. Its loads
// are atomic, so that they keep their order. pause is called between two steps, to be slow.
type outsider struct {
	t     *Table
	pause func()
}

// recipe is what the outsider has read of an entry.
type recipe struct {
	addr4    uint64
	newPorts uint32
	word     uint64
}

// rawEntry is an entry as words: key, Addr4, NewPorts and the deltas, and Mode to seen.
func (t *Table) rawEntry(n uint32) *[8]uint64 { return (*[8]uint64)(unsafe.Pointer(&t.entries[n])) }

// look returns the recipe for IPv4 key k, by the steps of "Generation" in the package comment.
func (o *outsider) look(k *Key) (rec recipe, ok bool) {
	t := o.t
	b := t.index.bucketAt(t.Hash(k), 0)
	for i := range b.slot {
		if b.tagAt(uint32(i)) != tagOf(t.Hash(k)) {
			continue
		}
		slot := &b.slot[i]
		w := slot.Load()
		if w == 0 || w >= slotPending {
			continue
		}
		e := t.rawEntry(w - 1)
		o.pause()
		gen := atomic.LoadUint64(&e[7]) >> 16 & 0xffff
		if slot.Load() != w {
			return rec, false
		}
		o.pause()
		if atomic.LoadUint64(&e[0]) != k.W[0] || atomic.LoadUint64(&e[4]) != k.W[4] {
			continue
		}
		rec.word = atomic.LoadUint64(&e[1])
		o.pause()
		rec.addr4 = atomic.LoadUint64(&e[5])
		o.pause()
		rec.newPorts = uint32(atomic.LoadUint64(&e[6]))
		o.pause()
		if slot.Load() != w || atomic.LoadUint64(&e[1]) != rec.word {
			return rec, false
		}
		return rec, atomic.LoadUint64(&e[7])>>16&0xffff == gen
	}
	return rec, false
}

// Connections come and go as fast as a worker can make them, with recipes that encode the
// client's tuple. Nothing that outsiders read may be of another tuple.
func TestAnOutsiderReadsAWholeRecipe(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 24, Workers: 1})
	const tuples = 256
	keys := make([]Key, tuples)
	for i := range keys {
		keys[i] = MakeKey(client(i), vip, ProtoUDP)
	}
	endpoint := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1000+i))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var read, refused atomic.Uint64
	for n := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			x := uint32(n + 1)
			o := &outsider{t: tab, pause: func() {
				if x = x*1664525 + 1013904223; x>>29 == 0 {
					runtime.Gosched() // as a hypervisor that takes the CPU away
				}
			}}
			for i := 0; ; i = (i + 7) % tuples {
				select {
				case <-stop:
					return
				default:
				}
				rec, ok := o.look(&keys[i])
				if !ok {
					refused.Add(1)
					continue
				}
				read.Add(1)
				want := MakeKey(client(i), endpoint(i), ProtoUDP)
				if rec.addr4 != want.W[0] || rec.newPorts != uint32(want.W[4]) {
					t.Errorf("tuple %d has the recipe %x %x, want %x %x", i, rec.addr4, rec.newPorts, want.W[0], uint32(want.W[4]))
					return
				}
			}
		}()
	}
	w := tab.Worker(0)
	w.Online()
	wanted := uint64(100_000)
	if testing.Short() {
		wanted = 10_000
	}
	deadline := time.Now().Add(time.Minute)
	made := 0
	var live []Ref // oldest first
	for i := 0; read.Load() < wanted && time.Now().Before(deadline); i = (i + 1) % tuples {
		if len(live) == 16 {
			w.Delete(live[0])
			live = live[1:]
		}
		if r, outcome := w.Create(&NewFlow{Client: keys[i], Endpoint: endpoint(i), Mode: ModeDNAT}); outcome == Created {
			made++
			live = append(live, r)
		}
		for range 3 { // the next connection has the entry of the last
			w.Quiesce()
		}
	}
	w.Offline()
	close(stop)
	wg.Wait()
	if made < tuples || read.Load() < wanted {
		t.Errorf("%d made, %d read, %d refused", made, read.Load(), refused.Load())
	}
}

// Between any two steps of an outsider the entry may pass to a connection of the same tuple with
// another endpoint, in the same slot of the index. The generation alone shows it.
func TestAnEntryThatIsUsedAgainHasAnotherGeneration(t *testing.T) {
	key := MakeKey(client(1), vip, ProtoUDP)
	endpoints := [2]netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:1001"), netip.MustParseAddrPort("10.1.0.2:1002")}
	mixed := 0
	for at := 1; ; at++ {
		tab := openHeap(t, Config{MaxFlows: 1, Workers: 1})
		w := tab.Worker(0)
		w.Online()
		ref := mustCreate(t, w, &NewFlow{Client: key, Endpoint: endpoints[0], Mode: ModeDNAT})
		steps := 0
		o := &outsider{t: tab, pause: func() {
			if steps++; steps != at {
				return
			}
			w.Delete(ref)
			for range 3 {
				w.Quiesce()
			}
			if r := mustCreate(t, w, &NewFlow{Client: key, Endpoint: endpoints[1], Mode: ModeDNAT}); r != ref {
				t.Fatalf("the connection has entry %d, the last had %d", r, ref)
			}
		}}
		rec, ok := o.look(&key)
		if steps < at {
			break
		}
		if !ok {
			mixed++
			continue
		}
		if want := MakeKey(client(1), endpoints[1], ProtoUDP); rec.addr4 != want.W[0] || rec.newPorts != uint32(want.W[4]) {
			t.Errorf("after step %d: recipe %x %x, want %x %x", at, rec.addr4, rec.newPorts, want.W[0], uint32(want.W[4]))
		}
	}
	if mixed == 0 {
		t.Error("no step is between two that read the entry")
	}
}
