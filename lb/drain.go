package lb

import "github.com/weirlb/weir/lb/header"

// Drain ends the taking of new connections: from the next rounds of the workers on
// they are the kernel's, as they will be after Close. Established ones go on.
// There is no way back.
func (l *LB) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	node := *l.node.Load()
	node.draining = true
	l.node.Store(&node)
}

// Connections counts those that a drain waits for: answered and not over. It looks
// at the whole flow table.
func (l *LB) Connections() int { return l.flows.Awaited() }

// decline leaves a packet that belongs to no connection to the kernel while Weir
// drains. If kube-proxy serves the frontend too, a connection that it begins now
// outlives the detachment; else the kernel refuses it, or routes it, exactly as it
// will then. A client on this node has no way around the host port: it is refused
// at once, to try again when Weir is gone.
func (w *worker) decline(p *pkt) {
	if w.hostPort >= 0 && p.in != w.hostPort {
		w.giveBack(p, DropDraining)
		return
	}
	switch p.Proto {
	case header.ProtoTCP:
		w.reset(p, DropDraining)
	case header.ProtoSCTP:
		w.refuseSCTP(p, DropDraining)
	default:
		w.reply(p, header.PortUnreachable, 0, DropDraining)
	}
}
