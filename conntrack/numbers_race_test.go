package conntrack

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// A pair runs two functions at the same time, again and again: the second one in a goroutine
// of its own, and a little later in each round.
type pair struct {
	round, done atomic.Int32
	second      func()
}

func (p *pair) serve() {
	for round := int32(1); ; round++ {
		for p.round.Load() < round {
			runtime.Gosched()
		}
		if p.second == nil {
			return
		}
		for range round % 64 {
			p.round.Load()
		}
		p.second()
		p.done.Store(round)
	}
}

func (p *pair) run(first, second func()) {
	p.second = second
	round := p.round.Add(1)
	if first == nil {
		return
	}
	first()
	for p.done.Load() < round {
		runtime.Gosched()
	}
}

// race makes a connection, opened by before, and has first and second pass at the same
// time. It returns in how many rounds bad reports true after that.
func race(t *testing.T, before, first, second func(tab *Table, r Ref), bad func(tab *Table, r Ref) bool) (n int) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	var p pair
	go p.serve()
	defer p.run(nil, nil)
	for range 20_000 {
		f := oldFlow(1)
		f.Tick = 5
		r := mustCreate(t, w, f)
		before(tab, r)
		p.run(func() { first(tab, r) }, func() { second(tab, r) })
		if bad(tab, r) {
			n++
		}
		w.Delete(r)
		w.Quiesce()
	}
	return n
}

// A FIN keeps its number beside an acknowledgment of data before it, on another worker.
func TestAFINKeepsItsNumberBesideAnAcknowledgment(t *testing.T) {
	for name, later := range map[string]uint32{"young": 0, "sampled": 2 * TicksPerSecond} {
		t.Run(name, func(t *testing.T) {
			n := race(t, func(tab *Table, r Ref) {
				talk(t, tab, r, 5, handshakeDone...)
				tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK, Seq: 100, Ack: 7000, Length: 1}, 5+later)
			}, func(tab *Table, r Ref) {
				tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: 1100, Ack: 7000}, 6+later)
			}, func(tab *Table, r Ref) {
				tab.TrackTCP(r.Other(), &tcp.Segment{Flags: tcp.FlagACK, Seq: 7000, Ack: 600}, 6+later)
			}, func(tab *Table, r Ref) bool {
				return tab.Conn(r).clientNext != 1101
			})
			if n != 0 {
				t.Errorf("%d FINs lost their number", n)
			}
		})
	}
}

// The number that is noted of a SYN-ACK stays that of the SYN-ACK beside a SYN of a client
// that knows no other number.
func TestANotedSYNACKKeepsItsNumberBesideASYN(t *testing.T) {
	n := race(t, func(tab *Table, r Ref) {
		tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagSYN, Seq: 99}, 5)
		storeRelaxed(&tab.Conn(r).extra, 0) // that of the round before
	}, func(tab *Table, r Ref) {
		tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagSYN, Seq: 4999}, 5)
	}, func(tab *Table, r Ref) {
		tab.TrackTCP(r.Other(), &tcp.Segment{Flags: tcp.FlagSYN | tcp.FlagACK, Seq: 6999, Ack: 2000000}, 5)
	}, func(tab *Table, r Ref) bool {
		tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK, Seq: 5000, Ack: 5000}, 5)
		return tab.Conn(r).State() == flowstate.Established
	})
	if n != 0 {
		t.Errorf("%d handshakes were completed by a client that sees no answer", n)
	}
}

// A change that a worker has begun and never ends stops no other for long.
func TestAChangeThatNeverEndsStopsNobody(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, oldFlow(1))
	atomic.OrUint32(&tab.Conn(r).state, flowstate.Changing)
	talk(t, tab, r, 5, handshakeDone...)
	if c := tab.Conn(r); c.State() != flowstate.Established || c.state&flowstate.Changing != 0 {
		t.Errorf("state %v, word %#x", c.State(), c.state)
	}
}
