package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// punt passes a packet that is not Weir's to the kernel, through the host veth and
// unchanged but for the MAC addresses. A packet that came from the host veth is dropped
// under the reason given: no loop.
func (w *portIO) punt(p *pkt, reason Drop) {
	if p.Frag != 0 && p.datagram != nil {
		p.datagram.Punted = true
	}
	if w.hostVeth < 0 || p.in == w.hostVeth {
		w.drop(p, reason)
		return
	}
	f := p.data
	if len(f) < header.EthernetLen {
		w.drop(p, reason)
		return
	}
	if p.L3 != header.EthernetLen {
		w.untag(p)
		f = p.data
	}
	copy(f[0:6], w.hostVethMACs[0][:])
	copy(f[6:12], w.hostVethMACs[1][:])
	if p.state != consumed && p.Partial {
		w.completeChecksum(p, &w.ports[w.hostVeth])
	}
	w.counts[counter.Punted]++
	w.outputPort(p, w.hostVeth)
}
