package conntrack

import (
	"sync/atomic"
	"testing"
)

// noted makes a steady connection of IPv4 whose client has sent n bytes more, on the fast path.
func noted(t *testing.T, tab *Table, w *Worker, n uint32) (r Ref, seq, ack uint32) {
	t.Helper()
	r = settled(t, tab, w, 1)
	seq, ack, _ = tab.Conn(r).numbers()
	tab.Entry(r).Note(seq+n, ack)
	return r, seq + n, ack
}

// The numbers that the fast path has left in the entry count when the connection ends.
func TestARSTWithTheNumberNotedInTheEntryIsExact(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, seq, ack := noted(t, tab, w, 1000)
	tab.TrackTCP(r, &Segment{Flags: flagRST | flagACK, Seq: seq, Ack: ack}, 9)
	if s := tab.Conn(r).State(); s != StateClose {
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
	tab.Entry(r).Note(was+1<<30, wasAck+1<<30)
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
	if !tab.setState(c, s, s&^stateMask|uint32(StateClose)) {
		t.Fatal("the state has changed")
	}
	atomic.StoreUint32(&c.clientNext, seq-1000)
	atomic.StoreUint32(&c.state, s)
	tab.Settle(r)
	if next, _, _ := tab.Conn(r).numbers(); next != seq-1000 {
		t.Errorf("the client's next number is %d, want %d", next, seq-1000)
	}
}

// A connection has more bytes than the Conn is told of only in the same block of 64 kB.
func TestNoteAsksForASampleInEveryBlock(t *testing.T) {
	var e Entry
	e.Note(1, 1)
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

// Gigabytes may take another path after a segment was noted: that of the program in the kernel, or
// the slow path, as frames of several buffers do. The noted number then seems to be ahead, and a
// FIN that of another connection.
func TestNumbersThatAConnectionHasLeftBehindAreNotAhead(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, seq, ack := noted(t, tab, w, 1000)
	for range 3 << 10 { // 3 GB, as the program samples them, or the slow path
		seq += 1 << 20
		tab.Changing(r).Sample(true, seq, seq, ack)
	}
	tab.TrackTCP(r, &Segment{Flags: flagFIN | flagACK, Seq: seq, Ack: ack}, 9)
	if s := tab.Conn(r).State(); s != StateFinWait {
		next, _, _ := tab.Conn(r).numbers()
		t.Errorf("state %v after a FIN with number %d, the client's next number is %d", s, seq, next)
	}
}
