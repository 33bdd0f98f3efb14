package worker

import (
	"sync/atomic"
	"time"
)

// counts has the counters of a worker. The worker alone writes this copy with plain adds,
// and publishes the sums to a shared copy (see publish) once per round, so that no packet
// costs an atomic add.
type counts struct {
	rxPackets, rxBytes uint64
	txPackets, txBytes uint64
	newFlows           uint64
	reopened           uint64 // flows whose port or tuple a new SYN took over
	resets             uint64 // TCP RSTs made
	icmp               uint64 // ICMP errors made
	icmpPassed         uint64 // ICMP errors about a flow, forwarded to the other side
	echoes             uint64 // pings answered
	toKernel           uint64 // packets given back through the host veth
	handedOver         uint64 // packets passed to the worker of the egress port, or of the datagram
	held               uint64 // packets that waited for a neighbor
	partial            uint64 // partial checksums completed at output
	txErrors           uint64 // calls to send that failed: an interface that is down or gone
	batches            uint64 // receptions of at least one packet
	sleeps             uint64 // times that the worker went to sleep
	busy               uint64 // nanoseconds in rounds with something to do
	freeFrames         uint64 // not a sum: on the free list at the end of the round
	fragments          uint64 // fragments sent on
	fragmentsHeld      uint64 // of them and others: waited for the first of their datagram
	aborts             uint64 // SCTP refusals made: ABORT and SHUTDOWN COMPLETE
	flowless           uint64 // packets sent on without a flow, for which the table had no room
	drops              [dropReasons]uint64
}

const (
	countSums  = 23 // the counters before the drops
	countWords = countSums + int(dropReasons)
)

// publishedCounts is the readable copy of a worker's counters. Padding keeps the counters
// of two workers out of the same cache line.
type publishedCounts struct {
	_ [64]byte
	w [countWords]atomic.Uint64
	_ [64]byte
}

func (s *publishedCounts) publish(t *counts) {
	w := [countSums]uint64{t.rxPackets, t.rxBytes, t.txPackets, t.txBytes, t.newFlows, t.reopened,
		t.resets, t.icmp, t.toKernel, t.handedOver, t.held, t.partial, t.txErrors, t.batches, t.sleeps, t.busy, t.freeFrames,
		t.icmpPassed, t.echoes, t.fragments, t.fragmentsHeld, t.aborts, t.flowless}
	for i, v := range w {
		if s.w[i].Load() != v {
			s.w[i].Store(v)
		}
	}
	for i, v := range t.drops {
		if p := &s.w[countSums+i]; p.Load() != v {
			p.Store(v)
		}
	}
}

// Counters are a worker's counters since start.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	NewFlows, Reopened                     uint64
	Resets, Aborts, ICMPErrors             uint64
	ICMPPassed, EchoReplies                uint64
	ToKernel, HandedOver, Held, Partial    uint64
	TxErrors                               uint64
	Batches, Sleeps                        uint64
	Busy                                   time.Duration
	FreeFrames                             uint64 // now
	Fragments, FragmentsHeld               uint64
	Flowless                               uint64
	Drops                                  map[string]uint64 // reasons that occurred
}

func (s *publishedCounts) read() Counters {
	v := func(i int) uint64 { return s.w[i].Load() }
	c := Counters{
		RxPackets: v(0), RxBytes: v(1), TxPackets: v(2), TxBytes: v(3),
		NewFlows: v(4), Reopened: v(5), Resets: v(6), ICMPErrors: v(7),
		ToKernel: v(8), HandedOver: v(9), Held: v(10), Partial: v(11), TxErrors: v(12),
		Batches: v(13), Sleeps: v(14), Busy: time.Duration(v(15)), FreeFrames: v(16),
		ICMPPassed: v(17), EchoReplies: v(18),
		Fragments: v(19), FragmentsHeld: v(20), Aborts: v(21), Flowless: v(22),
		Drops: map[string]uint64{},
	}
	for i := range dropNames {
		if n := v(countSums + i); n > 0 {
			c.Drops[dropNames[i]] = n
		}
	}
	return c
}

// Counters returns the worker's counters as of the last publication.
func (w *Worker) Counters() Counters { return w.published.read() }
