package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// forwarder sends packets on: next hop, NAT or tunnel, output. Packets whose next hop has
// to be resolved wait here.
type forwarder struct {
	selector
	router          *route.Watcher
	epoch           uint32 // of the routes
	adjacencies     []route.Adjacency
	routeCache      [routeCacheSize]cachedRoute
	hopCache        [hopCacheSize]cachedHop
	neighQueue      []queuedPacket
	neighQueueOrder uint32     // packets that have been queued
	unreachable     exhaustion // endpoints that l2dsr cannot reach, and the next hop there
	ipID            uint16     // of the last outer header that may be fragmented
	fragmentIDs     fragtrack.IDs
}

// nextHopRef is a connection's word for a direction: the stamp of the adjacency in bits
// 32..63, the route's MTU in 16..31 and the adjacency's number in 0..15.
func nextHopRef(stamp uint32, path *route.Path, n uint32) uint64 {
	return uint64(stamp)<<32 | uint64(min(path.MTU, 0xffff))<<16 | uint64(n&0xffff)
}

// nextHopOf sets the next hop of out for a packet of the entry, with the MAC address and the
// MTU of link and route. It is that of the flow's fast path, that of an earlier packet to the
// same address, or the result of a look-up.
func (w *forwarder) nextHopOf(p *pkt, ref conntrack.Ref, out *egress) verdict {
	if w.leavesBy(w.conns.NextHop(ref), out) {
		return pass
	}
	e := w.conns.Entry(ref)
	to := w.conns.NewTuple(ref)
	rules := w.routes.HasRules()
	k, known := w.cachedHopTo(&to, e.Mode, ref.Forward(), uint32(p.hash))
	if known && !rules && w.leavesBy(k.nextHop, out) {
		return pass
	}
	w.counts[counter.RouteLookups]++
	dst := to.Dst()
	as := routedAs(w.conns, ref)
	path, ok := w.lookUp(p, as, uint32(p.hash))
	if !ok {
		return noRoute(path.Kind)
	}
	if e.Mode.DSR() && !w.canReach(&path, e.Mode, dst) {
		return drop(DropNotAdjacent)
	}
	needed := ref.Forward() || path.NextHop != dst.Addr()
	if ref.Forward() {
		path.NextHop = throughHostVeth(&path, e.Mode)
	}
	word, v := w.resolveNextHop(p, &path, needed, out)
	if out.nextHop = word; word != 0 && !rules {
		k.nextHop, k.hash, k.divided = word, uint32(p.hash), w.routes.NumPaths(&as) != 1
	}
	return v
}

// lookUp is the path of packet p as routing rules see it.
func (w *forwarder) lookUp(p *pkt, as route.Packet, hash uint32) (route.Path, bool) {
	if w.routes.HasRules() {
		as.In = arrivalInterface(w.ports, p.in, p.data[:p.L3])
	}
	return w.routes.Lookup(&as, hash)
}

// routedAs has the facts of a packet of the entry for routing rules: to the endpoint with the client's
// address, see routeTo, to the client with the frontend's.
func routedAs(conns *conntrack.Table, ref conntrack.Ref) route.Packet {
	to := conns.NewTuple(ref)
	as := route.Packet{Src: to.Src(), Dst: to.Dst(), Proto: to.Proto()}
	if ref.Forward() {
		key := conns.Entry(ref).Tuple()
		as.Src = key.Src()
	}
	return as
}

// leavesBy sets the next hop of out to that of a connection's word. It reports false, and
// changes nothing, if that is another's now or has to be resolved.
func (w *forwarder) leavesBy(word uint64, out *egress) bool {
	n := word & 0xffff
	if word>>32 == 0 || n >= uint64(len(w.adjacencies)) {
		return false
	}
	adj := &w.adjacencies[n]
	stamp := adj.Stamp()
	if (uint32(word>>32)^stamp)&^uint32(conntrack.Followed>>32) != 0 {
		return false
	}
	mac, state := adj.Dst()
	if state != route.Valid {
		return false
	}
	out.adj, out.mac, out.mtu = adj, mac, min(adj.MTU(), uint32(word)>>16)
	out.nextHop = uint64(stamp)<<32 | word&0xffffffff
	return true
}

// resolveNextHop sets the next hop of out to that of a path. It returns the word by which a
// connection may find it again, 0 for none. needed is true where an endpoint or a gateway
// is there. Only next hops that have answered get a word: another's number is soon given
// away.
func (w *forwarder) resolveNextHop(
	p *pkt, path *route.Path, needed bool, out *egress,
) (word uint64, v verdict) {
	ask := true
	if n, ok := w.router.Adjacency(path.Port, path.NextHop); ok {
		adj := &w.adjacencies[n]
		stamp := adj.Stamp()
		mac, state := adj.Dst()
		if !adj.Is(path.Port, path.NextHop) {
			state = route.Unresolved // it has become another's meanwhile
		}
		adj.Touch(w.tick)
		switch state {
		case route.Valid:
			if w.router.Load() == w.routes {
				word = nextHopRef(stamp, path, n)
			}
			out.adj, out.mac, out.mtu = adj, mac, min(adj.MTU(), path.MTU)
			return word, pass
		case route.Failed:
			if !needed {
				return 0, rejectICMP(header.HostUnreachable, 0, DropNeighbor)
			}
		}
		ask = state != route.Resolving || needed && !adj.Needed()
	}
	return 0, w.queueForNeighbor(p, path, needed, ask)
}

// silentHop is the number of the adjacency of a path's next hop, if that did not answer when it was last
// asked for, else 0.
func (w *forwarder) silentHop(path *route.Path, mode conntrack.Mode) uint32 {
	to := throughHostVeth(path, mode)
	n, ok := w.router.Adjacency(path.Port, to)
	if !ok {
		return 0
	}
	adj := &w.adjacencies[n]
	if !adj.Silent() || adj.State() == route.Valid || !adj.Is(path.Port, to) {
		return 0
	}
	adj.Touch(w.tick)
	return uint32(n)
}

// askSilent has a silent next hop asked for again that no packet waits for: the link may have returned.
func (w *forwarder) askSilent(n uint32) {
	adj := &w.adjacencies[n]
	if to := adj.NextHop(); n != 0 && to.IsValid() && adj.State() != route.Resolving && !w.dryRun {
		_, port := adj.Src()
		w.router.Resolve(w.id, port, to, true)
	}
}

// noRoute is the verdict on a packet whose destination cannot be reached.
func noRoute(why route.Kind) verdict {
	if why == route.Blackhole {
		return drop(DropNoRoute)
	}
	return rejectICMP(header.HostUnreachable, 0, DropNoRoute)
}

// egress is the path of a packet out of Weir: the next hop and, for DSR, the tunnel to the
// endpoint.
type egress struct {
	adj *route.Adjacency
	mac uint64 // of the next hop
	mtu uint32 // of link and route, less the tunnel's header
	// nextHop is the connection's word for it; 0: none.
	nextHop uint64
	whole   bool // the packet leaves in a single piece
	dsr     bool // not translated: the tunnel is valid
	tunnel  tunnel
}

// egressOf sets out to how packet p leaves by the flow entry ref, unless it cannot leave now.
// The result is too large to be returned: a copy of words that have just been stored stalls.
func (w *forwarder) egressOf(p *pkt, ref conntrack.Ref, out *egress) verdict {
	p.ref = ref
	if v := w.nextHopOf(p, ref, out); v != pass {
		return v
	}
	if e := w.conns.Entry(ref); e.Mode.DSR() {
		out.into(w.tunnelOf(p.hash, e, ref))
	}
	return w.checkSize(p, out)
}

// egressTo sets out to how packet p leaves by a path and through a tunnel, unless it cannot
// leave now.
func (w *forwarder) egressTo(p *pkt, path *route.Path, t tunnel, out *egress) verdict {
	if _, v := w.resolveNextHop(p, path, true, out); v != pass {
		return v
	}
	out.into(t)
	return w.checkSize(p, out)
}

// into makes the packet leave through a tunnel.
func (out *egress) into(t tunnel) {
	out.dsr, out.tunnel = true, t
	out.mtu = t.innerMTU(out.mtu)
}

// checkSize passes packet p unless it is larger than the MTU of the path and may not be
// fragmented. A translated packet that the link takes leaves whole: a router beyond divides
// it, or the host's kernel if that is behind it.
func (w *forwarder) checkSize(p *pkt, out *egress) verdict {
	mtu := out.mtu
	if out.whole = uint32(p.Len) <= mtu; out.whole {
		return pass
	}
	if p.Family == 4 && !header.IPv4(p.data[p.L3:]).DontFragment() {
		out.whole = !out.dsr && uint32(p.Len) <= out.adj.MTU()
		if out.whole || w.canFragment(&p.Packet, mtu) {
			return pass
		}
		return drop(DropTooBig)
	}
	if p.Family == 6 && out.dsr && mtu < minMTU6 {
		if p.Len <= minMTU6 { // no host believes less
			return drop(DropTooBig)
		}
		mtu = minMTU6
	}
	return rejectICMP(header.TooBig, mtu, DropTooBig)
}
