package conntrack

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
	"unsafe"
)

// recipes is what a table does with packets, by key. To see more of them does no harm.
func recipes(tab *Table) map[Key]string {
	out := map[Key]string{}
	tab.Range(func(r Ref) bool {
		e := *tab.Entry(r)
		if e.Key.Family() == 4 {
			e.Key.W[1], e.Key.W[2] = 0, 0 // the next-hop word, the numbers of a segment
		}
		out[e.Key] = fmt.Sprintf("%v to %v: %v to %v, %d, kinds %#x %#x, deltas %x %x", e.Key.Src(), e.Key.Dst(), tab.NewSrc(r), tab.NewDst(r),
			e.Key.Proto(), e.Kind(), tab.Entry(r.Other()).Kind()&^(FlagWatched<<8), e.AddrDelta, e.L4Delta)
		return true
	})
	return out
}

// damaged is a table with connections of all kinds that is damaged and restored, and
// damaged again, in memory unless there is a path.
type damaged struct {
	cfg  Config
	good []byte
	want map[Key]string
}

func newDamaged(t *testing.T, path string) *damaged {
	m := &heapMemory{}
	d := &damaged{cfg: Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 64, Memory: m}}
	tab := open(t, d.cfg)
	w := tab.Worker(0)
	w.Online()
	flows := []*NewFlow{natFlow(1), natFlow6(1)}
	for _, m := range []Mode{ModeL2DSR, ModeIPIP, ModeGUE} {
		flows = append(flows, dsrFlow(m, false, false), dsrFlow(m, true, false), dsrFlow(m, false, true), dsrFlow(m, true, true))
	}
	for i, f := range flows {
		c := f.Client
		c.W[4] = c.W[4]&^0xffff | uint64(i+1)
		f.Client, f.Established = c, true
		e := tab.Entry(mustCreate(t, w, f))
		if e.Key.Family() == 4 {
			e.Key.W[1], e.Key.W[2] = 1<<32, 1<<63|7
		}
	}
	w.Offline()
	tab.head.note(tab.Tick(), time.Now())
	d.want = recipes(tab)
	size := planFor(int64(d.cfg.MaxFlows)).size
	d.good = bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(tab.head)), size))
	if path != "" {
		d.cfg.Path, d.cfg.Memory = path, nil
	}
	return d
}

// restore opens a table from b. It adopts b or sets it aside, and no connection is another than
// in the good table. It returns how many are left.
func (d *damaged) restore(t *testing.T, b []byte, what string, args ...any) int {
	t.Helper()
	if d.cfg.Path != "" {
		if err := os.WriteFile(d.cfg.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	} else {
		d.cfg.Memory = &heapMemory{last: b}
	}
	tab, err := Open(d.cfg)
	if err != nil {
		t.Errorf(what+": %v", append(args, err)...)
		return 0
	}
	defer tab.Close()
	a := tab.Restoration()
	if !a.Restored && len(b) > 0 && (a.Reason+a.MemoryReason == "" || d.cfg.Path != "" && a.SetAside == "") {
		t.Errorf(what+": neither restored nor set aside: %+v", append(args, a)...)
	}
	got := recipes(tab)
	for k, recipe := range got {
		if recipe != d.want[k] {
			t.Errorf(what+": restored %s, which was %q", append(args, recipe, d.want[k])...)
		}
	}
	checkTable(t, tab)
	checkFree(t, tab)
	return len(got)
}

// flipped is the good table with a changed byte, in b.
func (d *damaged) flipped(b []byte, at int64, by byte) []byte {
	copy(b, d.good)
	b[at] ^= by
	return b
}

// stride is the distance of the bytes that are damaged, one after the other. Under the race
// detector, which has nothing to find here, it is larger.
func stride() int64 {
	if testing.Short() {
		return 13
	}
	return 1
}

func TestAHeaderWithAFlippedByteIsSetAsideOrMeansTheSame(t *testing.T) {
	d, b := newDamaged(t, ""), pages(planFor(16).size)
	for at := int64(0); at < headerSize; at += stride() {
		changes := []byte{0xff}
		if at < int64(unsafe.Sizeof(header{})) {
			changes = []byte{1, 2, 4, 8, 16, 32, 64, 128, 0xff}
		}
		for _, by := range changes {
			if n := d.restore(t, d.flipped(b, at, by), "byte %d ^ %#x", at, by); n != 0 && n != len(d.want) {
				t.Errorf("byte %d ^ %#x: %d connections are left of %d", at, by, n, len(d.want))
			}
		}
	}
}

func TestATableThatIsCutShortIsSetAside(t *testing.T) {
	d := newDamaged(t, t.TempDir()+"/flows")
	for n := 0; n < len(d.good); n += 4096 {
		if left := d.restore(t, d.good[:n], "%d bytes", n); left > 0 {
			t.Errorf("the first %d bytes of %d have %d connections", n, len(d.good), left)
		}
	}
}

// A connection of which a byte is damaged is left out or means the same, and no other is
// concerned.
func TestADamagedConnectionIsLeftOut(t *testing.T) {
	d, b := newDamaged(t, ""), pages(planFor(16).size)
	p := planFor(int64(d.cfg.MaxFlows))
	used := int64(len(d.want))
	for _, part := range [][2]int64{{p.conns, p.conns + used*connSize}, {p.entries, p.entries + 2*used*entrySize}} {
		for at := part[0]; at < part[1]; at += stride() {
			for _, by := range []byte{1 << (at % 8), 0xff} {
				if n := d.restore(t, d.flipped(b, at, by), "byte %d of %v ^ %#x", at-part[0], part, by); n < len(d.want)-1 {
					t.Errorf("byte %d ^ %#x: %d connections are left of %d", at, by, n, len(d.want))
				}
			}
		}
	}
}

func TestNoiseIsNoConnection(t *testing.T) {
	d, b := newDamaged(t, ""), pages(planFor(16).size)
	p := planFor(int64(d.cfg.MaxFlows))
	rng := rand.NewChaCha8([32]byte{7})
	for i := range 400 {
		copy(b, d.good)
		switch i % 4 {
		case 0: // all of it
			rng.Read(b)
		case 1: // all but the header
			rng.Read(b[headerSize:])
		case 2: // all but the header and the entries
			rng.Read(b[p.conns:p.entries])
		case 3: // a part of the entries
			from := p.entries + int64(rng.Uint64()%uint64(len(d.want)*int(2*entrySize)))
			rng.Read(b[from:min(p.size, from+int64(rng.Uint64()%512))])
		}
		d.restore(t, b, "noise %d", i)
	}
}
