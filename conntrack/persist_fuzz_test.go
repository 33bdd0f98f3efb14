package conntrack

import (
	"encoding/binary"
	"testing"
	"unsafe"
)

// heapMemory is Memory on the heap, with a table that an earlier process has left.
type heapMemory struct{ last []byte }

func (m *heapMemory) Last() []byte                   { return m.last }
func (*heapMemory) Table(size int64) ([]byte, error) { return pages(size), nil }
func (*heapMemory) Index(size int64) ([]byte, error) { return pages(size), nil }
func (*heapMemory) Keep() error                      { return nil }
func (*heapMemory) Drop() error                      { return nil }

// pages returns size bytes at a cache line's start.
func pages(size int64) []byte {
	lines := make([][8]uint64, (size+63)/64)
	return unsafe.Slice((*byte)(unsafe.Pointer(&lines[0])), size)
}

// leftTable is a table of all kinds of connections, with next-hop words.
func leftTable(t testing.TB, cfg Config) []byte {
	t.Helper()
	m := &heapMemory{}
	cfg.Memory = m
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	flows := []*NewFlow{natFlow(1), natFlow6(1), dsrFlow(ModeL2DSR, false, false), dsrFlow(ModeL2DSR, true, true), dsrFlow(ModeGUE, true, false)}
	for i, f := range flows {
		f.Established = true
		c := f.Client
		c.W[4] = c.W[4]&^0xffff | uint64(i+1)
		f.Client = c
		r := mustCreate(t, w, f)
		conn := tab.Conn(r)
		conn.state &^= slow | young
		conn.Adj = [2]uint64{9<<32 | 3, 9<<32 | 4}
		tab.Settle(r)
	}
	w.Offline()
	size := planFor(int64(cfg.MaxFlows)).size
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(tab.head)), size)...)
}

// FuzzRestore changes the memory that an earlier process has left, word by word: a number of
// the word and what is added to it. What is restored must be sound, and the table of use.
func FuzzRestore(f *testing.F) {
	cfg := Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 64, NextHops: 5}
	left := leftTable(f, cfg)
	p := planFor(int64(cfg.MaxFlows))
	first, words := p.conns/8, (p.size-p.conns)/8
	seed := func(pairs ...uint64) {
		var b []byte
		for _, v := range pairs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		f.Add(b)
	}
	entry := uint64(p.entries-p.conns) / 8
	seed()
	seed(entry+1, 1)          // the next hop of an IPv4 entry
	seed(entry+1, 0xfff0)     // one that does not exist
	seed(entry+4, 1<<40)      // family
	seed(entry+4+8, 2<<40)    // of the reverse entry
	seed(entry+7, 3)          // mode
	seed(entry+16+5, 0xfff0)  // the next hop of an IPv6 entry
	seed(2, 0xf, 2, 1<<31)    // state
	seed(entry+16, 1, 8*3, 1) // keys
	f.Fuzz(func(t *testing.T, changes []byte) {
		if len(changes) > 16*64 {
			return
		}
		b := pages(int64(len(left)))
		copy(b, left)
		for ; len(changes) >= 16; changes = changes[16:] {
			at := 8 * (first + int64(binary.LittleEndian.Uint64(changes)%uint64(words)))
			binary.NativeEndian.PutUint64(b[at:], binary.NativeEndian.Uint64(b[at:])+binary.LittleEndian.Uint64(changes[8:]))
		}
		cfg.Memory = &heapMemory{last: b}
		tab := open(t, cfg)
		defer tab.Close()
		if a := tab.Restoration(); !a.Restored || a.Flows+a.Discarded > cfg.MaxFlows {
			t.Fatalf("restoration %+v", a)
		}
		checkTable(t, tab)
		tab.Range(func(r Ref) bool {
			if n := tab.NextHop(r) & 0xffff; n >= uint64(cfg.NextHops) {
				t.Fatalf("entry %d has next hop %d", r, n)
			}
			return true
		})
		w := tab.Worker(0)
		w.Online()
		r, outcome := w.Create(natFlow(7))
		if outcome == Created && !w.Delete(r) {
			t.Fatal("a new connection cannot be deleted")
		}
		w.Offline()
		tab.Range(func(r Ref) bool { tab.Delete(r); return true })
		checkTable(t, tab)
		checkFree(t, tab)
	})
}
