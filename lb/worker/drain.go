package worker

import "github.com/weirlb/weir/lb/header"

// decline leaves a packet that belongs to no connection to the kernel while Weir
// drains. If kube-proxy serves the frontend too, a connection that it begins now
// outlives the detachment; else the kernel refuses it, or routes it, exactly as it
// will then. A client on this node has no way around the host port: it is refused
// at once, to try again when Weir is gone.
func (w *Worker) decline(p *pkt) {
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
