package worker

import (
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/table"
)

// silences are the flows without an entry whose packets get no answer for now. Routers spread
// flows anew when the set of announcing nodes changes, and a node cannot know the set: the first
// packet of a connection that another node has is the sign. A RST would end the connection, which
// goes on where the packets go back to the other node in time.
//
// A slot has a flow, and flows that share it take it from each other. Flows that never had it for a
// whole silence would never be answered, and their clients wait for the end of TCP's
// retransmissions: a slot that has changed hands for a silence answers all of its flows. So does a
// flood of packets without a flow, which makes the node answer at once, as without silences.
type silences struct {
	ticks uint32 // how long; 0: answers at once
	slots []silence
}

type silence struct {
	hash        uint64
	since, last uint32 // the first packet and the last, in ticks
	// contested and taken are when flows began to take the slot from each other, and did last.
	contested, taken uint32
}

const (
	silenceSlots = 1 << 14 // of a worker
	// silenceForgotten is after how long without a packet a flow begins its silence anew. TCP
	// sends again after 120 s at most.
	silenceForgotten = 150 * conntrack.TicksPerSecond
	// contestSilences is how many silences without a change of hands end those of a slot. TCP
	// doubles the pause, so that a flow sends once at least between one silence and two.
	contestSilences = 3
)

func newSilences(d time.Duration) silences {
	s := silences{ticks: uint32(d.Seconds() * conntrack.TicksPerSecond)}
	if s.ticks > 0 {
		s.slots = make([]silence, silenceSlots)
	}
	return s
}

// over reports whether a packet at a tick may be answered.
func (s *silences) over(hash uint64, tick uint32) bool {
	if s.ticks == 0 {
		return true
	}
	x := &s.slots[hash%silenceSlots]
	contested := x.taken != x.contested && tick-x.taken <= contestSilences*s.ticks
	switch {
	case *x == silence{} || tick-x.last > silenceForgotten:
		*x, contested = silence{hash: hash, since: tick}, false
	case x.hash != hash:
		if !contested {
			x.contested = tick - 1 // equal words mean that none has taken the slot
		}
		x.hash, x.since, x.taken, contested = hash, tick, tick, true
	}
	x.last = tick
	return tick-x.since >= s.ticks || contested && tick-x.contested > s.ticks
}

// onMidstream handles a TCP or SCTP packet to a frontend that neither belongs to a flow nor begins
// one. At an address that nodes share it gets no answer before its silence is over: clients of
// this node have no other node, and answers of endpoints come to the SNAT address of the node that
// has the flow. Then, for some time after the start, it may be of a connection that kube-proxy
// began, and is punted; else it is refused. During a drain it may be of a connection that was left
// to kube-proxy, and is punted at once: routers send no others here any more.
func (w *admission) onMidstream(p *pkt, fe *table.FrontendEntry) verdict {
	kernel := w.hostVeth >= 0 && p.in != w.hostVeth
	if kernel && w.node.Draining {
		return punt(DropNoConntrackEntry)
	}
	shared := fe.Kind == table.LoadBalancer || fe.Kind == table.ExternalIP
	if shared && p.in != w.hostVeth && !w.silences.over(p.hash, w.tick) {
		return drop(DropNoConntrackEntry)
	}
	if kernel && w.tick < w.takeoverUntil {
		return punt(DropNoConntrackEntry)
	}
	return reject(DropNoConntrackEntry)
}
