package conntrack

import (
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// noted makes a steady connection of IPv4 whose client has sent n bytes more, on the fast path.
func noted(t *testing.T, tab *Table, w *Worker, n uint32) (r Ref, seq, ack uint32) {
	t.Helper()
	r = settled(t, tab, w, 1)
	seq, ack, _ = tab.Conn(r).numbers()
	pass(tab, r, seq, 0, ack) // the number in the entry is n behind, if it is in the same block
	pass(tab, r, seq, n, ack)
	return r, seq + n, ack
}

// pass is what a lane does with a segment of n bytes, the first in a tick.
func pass(tab *Table, r Ref, seq, n, ack uint32) {
	if tab.Entry(r).Note(seq+n, ack) {
		tab.Sample(r, seq, seq+n, ack)
	}
}

// The numbers that the fast path has left in the entry count when the connection ends.
func TestARSTWithTheNumberNotedInTheEntryIsExact(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, seq, ack := noted(t, tab, w, 1000)
	tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagRST | tcp.FlagACK, Seq: seq, Ack: ack}, 9)
	if s := tab.Conn(r).State(); s != flowstate.Close {
		t.Errorf("state %v after an exact RST", s)
	}
}

// A forged segment may be the one that the entry has.
func TestForeignNumbersInAnEntryAreLeftOut(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, _, _ := noted(t, tab, w, 0)
	was, wasAck, _ := tab.Conn(r).numbers()
	tab.Entry(r).Key.W[2] = uint64(was+1<<30)<<32 | uint64(wasAck+1<<30)
	if seq, ack, _ := tab.Conn(r).numbers(); seq != was || ack != wasAck {
		t.Errorf("numbers %d and %d, were %d and %d", seq, ack, was, wasAck)
	}
}

// A connection that follows another with the same tuple has numbers just ahead of that one's.
func TestNumbersOfAnEarlierConnectionAreForgotten(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, seq, _ := noted(t, tab, w, 5000)
	c := tab.Changing(r)
	s := atomic.LoadUint32(&c.state)
	if !tab.setState(c, s, s&^flowstate.Mask|uint32(flowstate.Close)) {
		t.Fatal("the state has changed")
	}
	atomic.StoreUint32(&c.clientNext, seq-1000)
	atomic.StoreUint32(&c.state, s)
	settle(tab, r)
	if next, _, _ := tab.Conn(r).numbers(); next != seq-1000 {
		t.Errorf("the client's next number is %d, want %d", next, seq-1000)
	}
}

// A connection has more bytes than the Conn is told of only in the same block of 64 kB.
func TestNoteAsksForASampleInEveryBlock(t *testing.T) {
	var e Entry
	if !e.Note(1, 1) {
		t.Error("an entry without numbers asks for no sample")
	}
	e.Key.W[2] = 1<<32 | 1
	for _, tt := range []struct {
		end, ack uint32
		want     bool
	}{
		{2, 1, false}, {milestone - 1, 1, false}, {milestone, 1, true}, {milestone + 5, milestone - 1, false},
		{milestone + 6, milestone, true}, {1<<32 - 1, milestone, true}, {0, milestone, true}, {0, 1<<32 - 1, true},
	} {
		if got := e.Note(tt.end, tt.ack); got != tt.want {
			t.Errorf("numbers %#x and %#x: %v", tt.end, tt.ack, got)
		}
		e.Key.W[2] = uint64(tt.end)<<32 | uint64(tt.ack) // as Table.Sample does
	}
}

// The words of an IPv6 entry that an IPv4 entry has for numbers are its addresses.
func TestAnIPv6EntryHasNoNumbers(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	e, r := tab.Entry(1), Ref(1)
	e.Key.W = [5]uint64{1, 2, 3, 4, 6 << 40}
	tab.forgetNumbers(r)
	tab.noteNumbers(r.Conn())
	if seq, ack, _ := tab.Changing(r).numbers(); e.Key.W[2] != 3 || seq != 0 || ack != 0 {
		t.Errorf("key %x, numbers %d and %d", e.Key.W, seq, ack)
	}
}

// The entry is the only place of the numbers of a segment. A foreign segment, with numbers far
// from them, must not replace them, nor a keepalive or a segment sent again.
func TestANotedNumberIsNotLost(t *testing.T) {
	for _, tt := range []struct {
		name               string
		seq, length, acked uint32
	}{
		{"foreign", 1 << 30, 100, 1 << 30}, {"keepalive", ^uint32(0), 0, 0}, {"sent again", ^uint32(99), 100, 0},
		{"sent again, of the block before", ^uint32(1<<16 - 1), 100, 0}, {"old acknowledgment", 0, 0, ^uint32(99)},
	} {
		tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
		w := tab.Worker(0)
		w.Online()
		r, _, _ := noted(t, tab, w, 0)
		seq, ack := uint32(5<<16), uint32(7<<16)
		tab.Changing(r).clientNext, tab.Changing(r).endpointNext = seq, ack
		pass(tab, r, seq, 100, ack)
		pass(tab, r, seq+100, 400, ack+300)
		seq, ack = seq+500, ack+300
		pass(tab, r, seq+tt.seq, tt.length, ack+tt.acked)
		tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagRST | tcp.FlagACK, Seq: seq, Ack: ack}, 9)
		if s := tab.Conn(r).State(); s != flowstate.Close {
			t.Errorf("%s: state %v after an exact RST", tt.name, s)
		}
	}
}
