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
// A slot has a flow. A flow that shares the slot begins its silence anew: it is answered later,
// never sooner.
type silences struct {
	ticks uint32 // how long; 0: answers at once
	slots []silence
}

type silence struct {
	hash        uint64
	since, last uint32 // the first packet and the last, in ticks
}

const (
	silenceSlots = 4096 // of a worker
	// silenceForgotten is after how long without a packet a flow begins its silence anew. TCP
	// sends again after 120 s at most.
	silenceForgotten = 150 * conntrack.TicksPerSecond
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
	if x.hash != hash || tick-x.last > silenceForgotten {
		*x = silence{hash: hash, since: tick}
	}
	x.last = tick
	return tick-x.since >= s.ticks
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
