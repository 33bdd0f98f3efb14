package worker

import (
	"github.com/weirlb/weir/lb/denylist"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// admission decides which packets may begin a flow, by snapshots that are read once per
// round.
type admission struct {
	rejecter
	frontends     *table.Table
	snapshot      *table.Snapshot
	node          *Node
	routes        *route.Table
	routesBack    routesBack
	takeoverUntil uint32
	silences      silences
	// dryRun is true in a trace: what other workers see stays as it is.
	dryRun bool
	denied denyCounts
}

// miss handles a packet that belongs to no flow.
func (w *flows) miss(p *pkt) verdict {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	if fe == nil || fe.Kind == table.ClusterIP && p.in == w.hostVeth {
		return w.onNoMatch(p, &k)
	}
	p.service = fe.ServiceID
	if v := w.checkSource(p, fe); v != pass {
		return v
	}
	if v := checkSourceRange(p, fe); v != pass {
		return v
	}
	if !fe.Mode.DSR() && !opens(&p.Packet) {
		return w.onMidstream(p, fe)
	}
	if v := w.checkTCPSum(p); v != pass {
		return v
	}
	if p.Proto == header.ProtoSCTP {
		if v := singleHomed(p); v != pass {
			return v
		}
	}
	ep := w.endpointByCID(p, fe)
	if ep == nil && w.node.Draining {
		return w.onDraining(p)
	}
	if ep == nil && fe.Pool.Len() == 0 {
		return w.onNoEndpoints(p, fe.Pool)
	}
	if !p.began && p.silent == 0 { // else its flow was admitted, and begins again elsewhere
		if v := w.withinPrefixRate(p); v != pass {
			return v
		}
		if v := w.withinLimits(fe); v != pass {
			return v
		}
	}
	return w.beginConn(p, fe, ep)
}

// opens reports whether a packet may begin a new flow: any datagram, a TCP SYN, or an SCTP
// INIT.
func opens(p *header.Packet) bool {
	if p.Proto == header.ProtoSCTP {
		return p.Flags == header.ChunkInit
	}
	return p.Proto != header.ProtoTCP || p.Flags&(header.SYN|header.ACK|header.RST|header.FIN) == header.SYN
}

// checkTCPSum passes packet p if the TCP checksum is right. It looks at segments with SYN, FIN
// or RST only: damaged or carelessly forged segments change no connection, and the receiver
// checks the others. A partial checksum is right by definition, and a fragment has none.
func (w *admission) checkTCPSum(p *pkt) verdict {
	if p.Proto != header.ProtoTCP || p.Flags&(header.SYN|header.FIN|header.RST) == 0 || p.Partial || p.Frag != 0 {
		return pass
	}
	ip := p.data[p.L3:]
	var pseudo uint64
	if p.Family == 4 {
		pseudo = header.PseudoSum4(ip, p.Proto, p.L4Len())
	} else {
		pseudo = header.PseudoSum6(ip, p.Proto, p.L4Len())
	}
	if header.Fold(w.sum(p, pseudo, int(p.L4), int(p.L3)+int(p.Len))) == 0xffff {
		return pass
	}
	return drop(DropBadChecksum)
}

// checkDenied passes packet p if its source is on no deny list of the node and of the frontend, nil for
// a ping. Other sources get no answer, and cost neither a route nor a count of a limit.
func (w *admission) checkDenied(p *pkt, fe *table.FrontendEntry) verdict {
	denied := w.cfg.Denied
	if denied == nil {
		return pass
	}
	lists := denied.Node
	if fe != nil {
		lists |= denylist.Mask(fe.DenyLists())
	}
	if lists == 0 {
		return pass
	}
	i := denied.Set.Load().Find(p.key.Src().Addr(), lists)
	if i < 0 {
		return pass
	}
	w.denied[i]++
	return drop(DropDenied)
}

// mayUse passes packet p if its source may use the frontend at all.
func (w *admission) mayUse(p *pkt, fe *table.FrontendEntry) verdict {
	if v := w.checkDenied(p, fe); v != pass {
		return v
	}
	return checkSourceRange(p, fe)
}

// admit passes packet p if it may begin a connection to the frontend now.
func (w *admission) admit(p *pkt, fe *table.FrontendEntry) verdict {
	if v := w.mayUse(p, fe); v != pass {
		return v
	}
	if v := w.withinPrefixRate(p); v != pass {
		return v
	}
	return w.withinLimits(fe)
}

// withinPrefixRate passes packet p if the prefix of its source may begin another connection
// now. Packets of this node and its pods pass, and in DSR modes those in the middle of a
// connection. A packet beyond the rate gets no answer: a client sends it again.
func (w *admission) withinPrefixRate(p *pkt) verdict {
	limit := w.cfg.Prefixes
	switch {
	case limit == nil || p.in == w.hostVeth || !opens(&p.Packet):
	case w.dryRun && limit.Refuses(p.key.W[0], p.Family, w.tick), !w.dryRun && !limit.Take(p.key.W[0], p.Family, w.tick):
		return drop(DropPrefixRate)
	}
	return pass
}

// checkSourceRange passes packet p if the client may use the frontend at all. Other clients
// get no answer, as from kube-proxy.
func checkSourceRange(p *pkt, fe *table.FrontendEntry) verdict {
	if fe.Policy == nil || fe.Policy.Admits(fe.Kind, p.key.Src().Addr()) {
		return pass
	}
	return drop(DropSourceRange)
}

// withinLimits passes a packet if the frontend's Service may have another connection now. A
// packet beyond the limits is dropped without an answer, so that a client asks again a
// second later and finds room then.
func (w *admission) withinLimits(fe *table.FrontendEntry) verdict {
	policy := fe.Policy
	switch {
	case policy == nil:
	case !w.roomFor(policy, fe.ServiceID):
		return drop(DropConnectionLimit)
	case w.dryRun && !policy.MayTakeConnection(w.tick), !w.dryRun && !policy.TakeConnection(w.tick):
		return drop(DropConnectionRate)
	}
	return pass
}

// roomFor reports whether the Service with that number has room for another open
// connection. Workers that look at the same time may each admit another connection.
func (w *admission) roomFor(p *table.Policy, service uint32) bool {
	return p.MaxConnections == 0 || w.conns.ServiceOpen(service) < p.MaxConnections
}

// onNoEndpoints answers for a frontend that has no endpoint to offer.
func (w *admission) onNoEndpoints(p *pkt, pool *table.PoolEntry) verdict {
	if pool.OnEmpty() == table.Drop {
		return drop(DropNoLocalEndpoint)
	}
	if p.Proto == header.ProtoTCP {
		return reject(DropNoEndpoint)
	}
	return rejectICMP(header.PortUnreachable, 0, DropNoEndpoint)
}

// onNoMatch handles a packet that is neither of a flow nor to a frontend: it is punted,
// except to an SNAT address and port where it cannot belong to a connection of the kernel.
func (w *admission) onNoMatch(p *pkt, destination *table.Key) verdict {
	owned, shared := w.node.Owns(destination)
	if w.node.Draining || !owned || shared && w.mayBeTranslated(p) {
		return punt(DropPuntLoop)
	}
	if p.Proto == header.ProtoUDP || p.Proto == header.ProtoTCP && p.Flags&header.RST != 0 {
		return drop(DropNoConntrackEntry) // a RST is never answered, see mayReject
	}
	return reject(DropNoConntrackEntry)
}

// mayBeTranslated reports whether a packet may be the answer to a packet that the kernel
// translated. It has no flow, and is to a shared SNAT address and port. Masquerade rules
// (kube-proxy's, a network plugin's) choose any port above 1023 of the node's address, or keep
// the client's: with the default range about half of them are a flow's. An answer never opens a TCP connection
// or an SCTP association, so that a listener of the node stays out of reach of both.
func (w *admission) mayBeTranslated(p *pkt) bool {
	return w.hostVeth >= 0 && p.in != w.hostVeth && (p.Proto == header.ProtoUDP || !opens(&p.Packet))
}

// onDraining leaves a packet that belongs to no connection to the kernel while Weir
// drains. If kube-proxy serves the frontend too, a connection that begins there now
// outlives the detachment; else the kernel refuses or routes it, exactly as it will then. A
// client on this node has no path around the host veth: it is refused at once, to try again
// when Weir is gone.
func (w *admission) onDraining(p *pkt) verdict {
	if w.hostVeth >= 0 && p.in != w.hostVeth {
		return punt(DropDraining)
	}
	if p.Proto == header.ProtoUDP {
		return rejectICMP(header.PortUnreachable, 0, DropDraining)
	}
	return reject(DropDraining)
}
