package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// punt passes a packet that is not Weir's to the kernel, through the host veth and
// unchanged but for the MAC addresses. A packet that came from the host veth is to be
// dropped under the reason given: no loop.
func (w *portIO) punt(p *pkt, reason Drop) verdict {
	if p.Frag != 0 && p.datagram != nil {
		p.datagram.Punted = true
	}
	if w.hostVeth < 0 || p.in == w.hostVeth || len(p.data) < header.EthernetLen {
		return drop(reason)
	}
	w.counts[counter.Punted]++
	return w.outputFrame(p, w.hostVeth, w.hostVethMACs[0], w.hostVethMACs[1])
}
