package conntrack

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/schema"
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
		conn.state &^= flowstate.Slow | flowstate.Young
		settleBy(tab, r, [2]uint64{9<<32 | 3, 9<<32 | 4})
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

// edited changes text by edits of four bytes each: where, what, and a byte.
func edited(text string, edits []byte) string {
	b := []byte(text)
	for ; len(edits) >= 4 && len(b) > 0; edits = edits[4:] {
		at := int(binary.LittleEndian.Uint16(edits)) % len(b)
		lines := bytes.SplitAfter(b, []byte("\n"))
		line := bytes.Count(b[:at], []byte("\n"))
		other := int(edits[3]) % len(lines)
		switch edits[2] % 4 {
		case 0:
			b[at] = edits[3]
		case 1: // a line less
			b = slices.Concat(slices.Delete(lines, line, line+1)...)
		case 2: // a line twice
			b = slices.Concat(slices.Insert(lines, other, lines[line])...)
		case 3: // another number or letter of a name
			for n := at; n < len(b) && b[n] != '\n'; n++ {
				if '0' <= b[n] && b[n] <= '9' {
					b[n] = '0' + edits[3]%10
					break
				}
			}
		}
	}
	return string(b)
}

// FuzzMigrate changes the schema of a table of another layout, and words of the table. Checksums
// are right. What is restored must be sound, and the table of use.
func FuzzMigrate(f *testing.F) {
	cfg := Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 64, NextHops: 5}
	last := rewritten(f, leftTable(f, cfg), conntracktest.Layout{Version: layoutVersion + 1, Seed: 3, Without: []string{"cursors.At"}})
	good, err := schema.Read(last, int64(len(last)))
	if err != nil {
		f.Fatal(err)
	}
	whole := good.String()
	f.Add([]byte{}, []byte{})
	for _, line := range []string{"part conns", "part entries", "field state", "field Key.W", "field Mode", "bits state number", "bits state published", "value state established", "field Sum"} {
		at := strings.Index(whole, line)
		for what := range byte(4) {
			f.Add([]byte{byte(at), byte(at >> 8), what, 3}, []byte{})
		}
	}
	f.Fuzz(func(t *testing.T, edits, changes []byte) {
		if len(changes) > 16*16 || len(edits) > 4*16 {
			return
		}
		text := edited(whole, edits)
		b := alignedCopy(last)
		for ; len(changes) >= 16; changes = changes[16:] {
			at := 8 * int64(binary.LittleEndian.Uint64(changes)%uint64(len(b)/8))
			binary.NativeEndian.PutUint64(b[at:], binary.NativeEndian.Uint64(b[at:])+binary.LittleEndian.Uint64(changes[8:]))
		}
		s, err := schema.Parse(text, int64(len(b)))
		if err != nil || schema.WriteText(b, text) != nil {
			return
		}
		binary.NativeEndian.PutUint32(b[unsafe.Offsetof(shape{}.Version):], s.Version)
		if head := s.Part(partHeader); head != nil && head.Offset == 0 && head.Count == 1 {
			if sum, ok := head.Number("Sum", 0); ok {
				sum.Store(b, uint64(crc32.ChecksumIEEE(b[:head.Field("Sum").Offset])))
			}
		}
		cfg.Memory = &heapMemory{last: b}
		tab := open(t, cfg)
		defer tab.Close()
		if a := tab.Restoration(); a.Flows > cfg.MaxFlows || !a.Restored && a.MemoryReason == "" {
			t.Fatalf("restoration %+v", a)
		}
		checkTable(t, tab)
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
