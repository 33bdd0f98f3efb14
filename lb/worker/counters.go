package worker

import (
	"sync/atomic"
	"time"
)

// Drop is the one reason under which a dropped packet is counted.
type Drop uint8

// Drop reasons. Their names (see String) are the label values of the metrics
// and the keys of `weir status`.
const (
	DropNotIP Drop = iota
	DropTruncated
	DropBadIPHeader
	DropNotTransport
	DropBadTransport
	DropBadChecksum
	DropMartian
	DropReversePath
	DropExtension
	DropSourceRoute
	DropBadFragment
	DropTinyFragment
	DropICMPMalformed
	DropICMPNoFlow
	DropEchoLimit
	DropFragmentOverlap
	DropFragmentRefused
	DropFragmentExpired
	DropFragmentLimit
	DropTTL
	DropNoEndpoint
	DropNoLocalEndpoint
	DropSourceRange
	DropConnectionLimit
	DropConnectionRate
	DropEndpointGone
	DropNoFlow
	DropSNATPorts
	DropTableFull
	DropNoRoute
	DropNeighbor
	DropTooBig
	DropHoldFull
	DropTxFull
	DropHandoffFull
	DropNotOurs
	DropReplyLimit
	DropUnsupported
	DropNotOnLink
	DropMultihomed
	DropDraining
	dropReasons
)

var dropNames = [dropReasons]string{
	DropNotIP:           "not-ip",
	DropTruncated:       "truncated",
	DropBadIPHeader:     "bad-ip-header",
	DropNotTransport:    "not-tcp-or-udp",
	DropBadTransport:    "bad-transport-header",
	DropBadChecksum:     "bad-checksum",
	DropMartian:         "martian",
	DropReversePath:     "reverse-path",
	DropExtension:       "bad-extension-header",
	DropSourceRoute:     "source-routed",
	DropBadFragment:     "bad-fragment",
	DropTinyFragment:    "tiny-fragment",
	DropICMPMalformed:   "icmp-malformed",
	DropICMPNoFlow:      "icmp-no-flow",
	DropEchoLimit:       "echo-rate-limited",
	DropFragmentOverlap: "fragment-overlap",
	DropFragmentRefused: "fragment-of-no-flow",
	DropFragmentExpired: "fragment-expired",
	DropFragmentLimit:   "fragment-limit",
	DropTTL:             "ttl-exceeded",
	DropNoEndpoint:      "no-endpoint",
	DropNoLocalEndpoint: "no-local-endpoint",
	DropSourceRange:     "source-range",
	DropConnectionLimit: "connection-limit",
	DropConnectionRate:  "connection-rate",
	DropEndpointGone:    "endpoint-gone",
	DropNoFlow:          "no-flow",
	DropSNATPorts:       "snat-ports-exhausted",
	DropTableFull:       "flow-table-full",
	DropNoRoute:         "no-route",
	DropNeighbor:        "neighbor-unresolved",
	DropTooBig:          "larger-than-mtu",
	DropHoldFull:        "hold-queue-full",
	DropTxFull:          "transmit-ring-full",
	DropHandoffFull:     "handoff-ring-full",
	DropNotOurs:         "punt-loop",
	DropReplyLimit:      "reply-rate-limited",
	DropUnsupported:     "unsupported",
	DropNotOnLink:       "endpoint-not-on-link",
	DropMultihomed:      "sctp-multihomed",
	DropDraining:        "draining",
}

// String is the reason's name.
func (d Drop) String() string {
	if d < dropReasons {
		return dropNames[d]
	}
	return "unknown"
}

// DropReasons are the names of all reasons, in order.
func DropReasons() []string { return dropNames[:] }

// tally is what a worker counts. The worker alone writes its own copy with
// plain adds; it publishes the sums to a shared copy (see publish) once per
// round of its loop, so that no packet costs an atomic add.
type tally struct {
	rxPackets, rxBytes uint64
	txPackets, txBytes uint64
	newFlows           uint64
	reopened           uint64 // flows whose port or tuple a new SYN took over
	resets             uint64 // TCP RSTs made
	icmp               uint64 // ICMP errors made
	icmpPassed         uint64 // ICMP errors about a flow, passed on to its other side
	echoes             uint64 // pings answered
	toKernel           uint64 // packets given back through the host veth
	handedOver         uint64 // packets passed to the worker of the way out, or of the datagram
	held               uint64 // packets that waited for a neighbor
	partial            uint64 // partial checksums completed on the way out
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
	tallySums  = 23 // what is before the drops
	tallyWords = tallySums + int(dropReasons)
)

// shared is the readable copy of a worker's tally. It is padded to keep two
// workers' counters out of one cache line.
type sharedTally struct {
	_ [64]byte
	w [tallyWords]atomic.Uint64
	_ [64]byte
}

func (s *sharedTally) publish(t *tally) {
	w := [tallySums]uint64{t.rxPackets, t.rxBytes, t.txPackets, t.txBytes, t.newFlows, t.reopened,
		t.resets, t.icmp, t.toKernel, t.handedOver, t.held, t.partial, t.txErrors, t.batches, t.sleeps, t.busy, t.freeFrames,
		t.icmpPassed, t.echoes, t.fragments, t.fragmentsHeld, t.aborts, t.flowless}
	for i, v := range w {
		if s.w[i].Load() != v {
			s.w[i].Store(v)
		}
	}
	for i, v := range t.drops {
		if p := &s.w[tallySums+i]; p.Load() != v {
			p.Store(v)
		}
	}
}

// Counters are one worker's counters since start.
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

func (s *sharedTally) read() Counters {
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
		if n := v(tallySums + i); n > 0 {
			c.Drops[dropNames[i]] = n
		}
	}
	return c
}

// Counters returns the worker's counters as of its last publication.
func (w *Worker) Counters() Counters { return w.shared.read() }
