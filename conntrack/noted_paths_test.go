package conntrack

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// sides is a steady connection of IPv4 with the two numbers of its ends, and a Conn that is told
// of every segment at once.
type sides struct {
	tab  *Table
	w    *Worker
	r    Ref
	next [2]uint32 // of the client and of the endpoint
	told Conn
}

func newSides(t *testing.T, tab *Table, client, endpoint uint32) *sides {
	t.Helper()
	x := &sides{tab: tab, w: tab.Worker(0), next: [2]uint32{client, endpoint}}
	x.w.Online()
	x.r = settled(t, tab, x.w, 1)
	c := tab.Changing(x.r)
	c.clientNext, c.endpointNext = client, endpoint
	x.told.clientNext, x.told.endpointNext = client, endpoint
	return x
}

// ref is the entry of the client's or the endpoint's segments.
func (x *sides) ref(side int) Ref { return x.r + Ref(side) }

// send has n bytes of a side pass, on the fast path or as a program in the kernel notes them.
func (x *sides) send(side int, n uint32, kernel bool) {
	x.pass(side, x.next[side], n, x.next[1-side], kernel)
	x.next[side] += n
}

func (x *sides) pass(side int, seq, n, ack uint32, kernel bool) {
	x.told.Sample(side == 0, seq, seq+n, ack)
	if kernel {
		x.tab.Changing(x.r).Sample(side == 0, seq, seq+n, ack)
		return
	}
	pass(x.tab, x.ref(side), seq, n, ack)
}

// numbers are those that a segment is judged by.
func (x *sides) numbers() [2]uint32 {
	client, endpoint, _ := x.tab.Conn(x.r).numbers()
	return [2]uint32{client, endpoint}
}

// rst has a side abort, and returns the state.
func (x *sides) rst(side int) flowstate.State {
	x.tab.TrackTCP(x.ref(side), &tcp.Segment{Flags: tcp.FlagRST | tcp.FlagACK, Seq: x.next[side], Ack: x.next[1-side]}, 99)
	return x.tab.Conn(x.r).State()
}

// With numbers in the entries a segment is judged by the same numbers as without: whatever
// path the segments take, who reads the connection meanwhile, and whatever is forged.
func TestNotedNumbersAreThoseOfTheConnection(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom([]uint32{0, 1, 1 << 16, 1<<16 - 1, 1<<31 - 9, 1<<32 - 9, 1<<32 - 1<<16}).Draw(rt, "first number")
		x := newSides(t, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}), first, first+5)
		side := func() int { return rapid.IntRange(0, 1).Draw(rt, "side") }
		send := func(rt *rapid.T, kernel bool) {
			x.send(side(), rapid.SampledFrom([]uint32{0, 1, 7, 1400, 1 << 15, 1 << 16, 1 << 18}).Draw(rt, "length"), kernel)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"fast path":       func(rt *rapid.T) { send(rt, false) },
			"fast path again": func(rt *rapid.T) { send(rt, false) },
			"kernel":          func(rt *rapid.T) { send(rt, true) },
			"gigabytes": func(*rapid.T) { // 1.9 in the kernel; never nearly 4 in all
				for range 61 {
					x.send(1, 1<<25, true)
				}
			},
			"not the first of a tick": func(rt *rapid.T) { x.next[side()] += rapid.SampledFrom([]uint32{1, 1400}).Draw(rt, "length") },
			"sent again": func(rt *rapid.T) {
				i, back := side(), []uint32{1, 100, 70000}
				x.pass(i, x.next[i]-rapid.SampledFrom(back).Draw(rt, "back"), 1, x.next[1-i]-rapid.SampledFrom(back).Draw(rt, "ack back"), false)
			},
			"forged": func(rt *rapid.T) {
				i, seq, ack := side(), rapid.Uint32().Draw(rt, "seq"), rapid.Uint32().Draw(rt, "ack")
				if tcp.Span(seq-x.next[i])*tcp.Span(ack-x.next[1-i]) > tcp.Nearby<<8 {
					x.pass(i, seq, 9, ack, rapid.Bool().Draw(rt, "kernel"))
				}
			},
			"read": func(*rapid.T) { x.numbers() },
			"settled again": func(*rapid.T) {
				x.numbers()
				x.tab.Unsettle(x.r)
				settle(x.tab, x.r)
			},
			"": func(rt *rapid.T) {
				if rapid.IntRange(0, 3).Draw(rt, "compare") == 0 {
					if got, want := x.numbers(), [2]uint32{x.told.clientNext, x.told.endpointNext}; got != want {
						rt.Fatalf("numbers %#x, want %#x", got, want)
					}
				}
			},
		})
	})
}

// The kernel forwards a connection for hours, and nobody reads it: 3 or 20 GB after its number
// the entry has no say. Those who read it all the time do not take the number again either.
func TestNumbersThatAConnectionHasLeftBehindAreNotAhead(t *testing.T) {
	for name, mega := range map[string]int{"3 GB": 3 << 10, "20 GB": 20 << 10} {
		for _, reads := range []bool{false, true} {
			x := newSides(t, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}), 100, 7000)
			x.send(0, 1000, false)
			x.send(0, 1000, false)
			x.send(0, 1<<15, true)
			for range mega {
				for range 16 {
					x.send(0, 1<<16, true)
					if reads && x.numbers() != x.next {
						t.Fatalf("%s: numbers %#x, want %#x", name, x.numbers(), x.next)
					}
				}
				if got := x.tab.Changing(x.r).clientNext; got != x.next[0] {
					t.Fatalf("%s: the client's number is %#x, want %#x", name, got, x.next[0])
				}
			}
			x.send(0, 10, true)
			x.tab.TrackTCP(x.r, &tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: x.next[0], Ack: x.next[1]}, 99)
			if s := x.tab.Conn(x.r).State(); s != flowstate.FinWait {
				t.Errorf("%s, read %v: state %v after a FIN, numbers %#x, want %#x", name, reads, s, x.numbers(), x.next)
			}
		}
	}
}

// In the worst case the connection was nobody's to read, and ends just before it has sent 4 GB:
// 1 of 65,536 ends so. Its number then is ahead by less than a block. A FIN counts all the same,
// and a RST leaves it in doubt: it is not kept as a living connection.
func TestAnEndJustBeforeFourGigabytes(t *testing.T) {
	for _, behind := range []uint32{1, 1000, 1<<16 - 8001} {
		for _, flags := range []uint8{tcp.FlagFIN | tcp.FlagACK, tcp.FlagRST | tcp.FlagACK} {
			x := newSides(t, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}), 100, 7000)
			x.send(0, 1000, false)
			x.send(0, 1000, false)
			for range 1<<16 - 1 {
				x.send(0, 1<<16, true)
			}
			x.send(0, 1<<16-behind, true)
			x.tab.TrackTCP(x.r, &tcp.Segment{Flags: flags, Seq: x.next[0], Ack: x.next[1]}, 99)
			c := x.tab.Conn(x.r)
			if s := c.State(); flags&tcp.FlagFIN != 0 && s != flowstate.FinWait || flags&tcp.FlagRST != 0 && atomic.LoadUint32(&c.state)&flowstate.Doubted == 0 {
				t.Errorf("%d bytes behind, flags %#x: state %v, word %#x", behind, flags, s, c.state)
			}
		}
	}
}

// A segment in the block of a number of 4 GB before leaves the number ahead by less than a block.
func TestANumberOfTheSameBlockFourGigabytesLater(t *testing.T) {
	x := newSides(t, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}), 100, 7000)
	x.send(0, 60000, false)
	x.send(0, 1000, false)
	for range 1<<16 - 1 {
		x.send(0, 1<<16, true)
	}
	x.send(0, 10000, true)
	x.send(0, 1000, false)
	if d := x.numbers()[0] - x.next[0]; d >= milestone {
		t.Fatalf("the client's number is %d ahead", int32(d))
	}
	x.send(0, 1<<16, false)
	x.send(0, 100, false)
	if x.numbers() != x.next {
		t.Errorf("numbers %#x, want %#x", x.numbers(), x.next)
	}
	if s := x.rst(0); s != flowstate.Close {
		t.Errorf("state %v after an exact RST", s)
	}
}

// A SYN that takes the place of a reset connection keeps the entries. Their numbers are those of
// the connection before, and may be just ahead.
func TestNumbersOfTheConnectionBeforeAreNotTaken(t *testing.T) {
	x := newSides(t, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}), 100, 7000)
	x.send(0, 5000, false)
	x.send(0, 5000, false)
	late := x.next
	if s := x.rst(0); s != flowstate.Close {
		t.Fatalf("state %v after an exact RST", s)
	}
	x.next = [2]uint32{x.next[0] - 3000, x.next[1] - 2000}
	client, endpoint := x.next[0], x.next[1]
	for _, p := range []struct {
		side  int
		flags uint8
		seq   uint32
		ack   uint32
	}{{0, tcp.FlagSYN, client - 1, 0}, {1, tcp.FlagSYN | tcp.FlagACK, endpoint - 1, client}, {0, tcp.FlagACK, client, endpoint}} {
		x.tab.TrackTCP(x.ref(p.side), &tcp.Segment{Flags: p.flags, Seq: p.seq, Ack: p.ack}, 300)
	}
	c := x.tab.Conn(x.r)
	if c.State() != flowstate.Established {
		t.Fatalf("state %v after a new handshake", c.State())
	}
	// A worker that was stopped with a segment of the connection before.
	atomic.StoreUint64(&x.tab.Entry(x.r).Key.W[2], uint64(late[0])<<32|uint64(late[1]))
	atomic.AndUint32(&c.state, ^uint32(flowstate.Young|flowstate.Slow))
	settle(x.tab, x.r)
	if x.numbers() != x.next {
		t.Errorf("numbers %#x, want %#x", x.numbers(), x.next)
	}
}

// A process was killed before anybody had read the numbers in its entries: the next one judges
// segments by them. What is no number does no harm.
func TestTheNextProcessHasTheNotedNumbers(t *testing.T) {
	memories(t, func(t *testing.T, cfg Config) {
		for name, garbage := range map[string]uint64{"killed": 0, "numbers far ahead": 1<<63 | 1<<40, "zero and one": 1, "all ones": ^uint64(0)} {
			if m, ok := cfg.Memory.(*mapMemory); ok {
				*m = mapMemory{}
			}
			cfg.Path += "x"
			tab := open(t, cfg)
			x := newSides(t, tab, 5<<16, 9<<16)
			for range 3 {
				x.send(0, 500, false)
				x.send(1, 700, false)
			}
			if tab.Changing(x.r).clientNext == x.next[0] {
				t.Fatal("nothing is left in the entry")
			}
			x.w.Offline()
			if garbage != 0 {
				x.numbers()
				for i := range 2 {
					tab.entries[2*x.r.Conn()+uint32(i)].Key.W[2] = garbage
				}
			}
			tab.Close()

			x.tab = open(t, cfg)
			if a := x.tab.Restoration(); a.Flows != 1 || a.Discarded != 0 {
				t.Fatalf("%s: restoration %+v", name, a)
			}
			checkTable(t, x.tab)
			if x.numbers() != x.next {
				t.Errorf("%s: numbers %#x, want %#x", name, x.numbers(), x.next)
			}
			for i := range 2 {
				if n := x.tab.Entry(x.ref(i)).Key.W[2]; n != 0 {
					t.Errorf("%s: the entry has kept %#x", name, n)
				}
			}
			x.tab.Worker(0).Online()
			if s := x.rst(1); s != flowstate.Close {
				t.Errorf("%s: state %v after an exact RST", name, s)
			}
			x.tab.Worker(0).Offline()
			x.tab.Close()
		}
	})
}

// A FIN keeps its number beside those who read the numbers before it, and beside a segment of the
// other side on the fast path of another worker.
func TestAFINKeepsItsNumberBesideNotedNumbers(t *testing.T) {
	before := func(tab *Table, r Ref) {
		talk(t, tab, r, 5, handshakeDone...)
		atomic.AndUint32(&tab.Changing(r).state, ^uint32(flowstate.Young|flowstate.Slow))
		for side := range uint32(2) {
			seq, ack, _ := tab.Changing(r).numbers()
			if side == 1 {
				seq, ack = ack, seq
			}
			pass(tab, r+Ref(side), seq, 500, ack)
			pass(tab, r+Ref(side), seq+500, 300, ack)
		}
	}
	for name, second := range map[string]func(tab *Table, r Ref){
		"a listing":      func(tab *Table, r Ref) { tab.Conn(r) },
		"the other side": func(tab *Table, r Ref) { tab.Sample(r.Other(), 7800, 7900, 800); tab.Entry(r.Other()).Note(8000, 900) },
	} {
		n := race(t, before, func(tab *Table, r Ref) {
			tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: 900, Ack: 7000}, 6)
		}, second, func(tab *Table, r Ref) bool {
			c := tab.Conn(r)
			return c.clientNext != 901 || c.State() != flowstate.FinWait
		})
		if n != 0 {
			t.Errorf("%s: %d FINs lost their number", name, n)
		}
	}
}
