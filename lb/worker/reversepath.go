package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// ReversePathFilter selects the sources of new flows that a worker accepts, by the route back
// to them (RFC 3704, Linux' rp_filter). The kernel checks packets from the host veth.
type ReversePathFilter uint8

// Reverse path filters. A source without a route, or with a route to the interface of a
// default route, passes ReversePathAuto by every interface.
const (
	// ReversePathAuto is strict where source ranges admit the client, and loose for
	// all other frontends.
	ReversePathAuto ReversePathFilter = iota
	// ReversePathStrict: the route leads out of the interface by which the packet came.
	ReversePathStrict
	// ReversePathLoose: there is a route, which does not lead into the node's own
	// networks alone.
	ReversePathLoose
	// ReversePathOff: every source passes.
	ReversePathOff
)

// checkSource passes packet p if the source may begin a flow with the frontend, nil for a
// ping.
func (w *admission) checkSource(p *pkt, fe *table.FrontendEntry) verdict {
	if v := w.checkDenied(p, fe); v != pass {
		return v
	}
	if p.in == w.hostVeth {
		return pass
	}
	source := table.SourceKey(&p.key.W)
	back := w.routeBack(p, &source)
	if w.isMartianSource(&source, back) {
		return drop(DropMartian)
	}
	if !w.passesReversePath(p, back, fe) {
		return drop(DropReversePath)
	}
	return pass
}

// isMartianSource reports whether a packet claims to come from where none can come
// from that an attached interface receives: the node itself, or a broadcast
// address (RFC 1812 section 5.3.7), a frontend, or a port from which Weir
// translates. Nothing is to be sent there: it would come back as a request, and
// servers that answer answers would never end.
func (w *admission) isMartianSource(source *table.Key, back route.Reverse) bool {
	if back.Local() || back.Kind() == route.NotUnicast {
		return true
	}
	owned, _ := w.node.Owns(source)
	return owned || w.snapshot.Lookup(source) != nil
}

// routesBack are the routes back to the sources of late: clients begin several connections
// in a row, and a table of the Internet's routes is in no cache.
type routesBack struct {
	of   *route.Table
	list [64]struct {
		w0, w1 uint64
		family uint8
		back   route.Reverse
	}
}

// routeBack is the route back to the source of packet p.
func (w *admission) routeBack(p *pkt, source *table.Key) route.Reverse {
	c := &w.routesBack
	answer := route.Packet{Src: p.key.Dst(), Dst: p.key.Src(), Proto: p.Proto}
	if w.routes.HasRules() {
		return w.routes.Reverse(&answer)
	}
	if c.of != w.routes {
		*c = routesBack{of: w.routes}
	}
	k := &c.list[(source.W0^source.W1)*nextPick>>58]
	if k.w0 != source.W0 || k.w1 != source.W1 || k.family != p.Family {
		k.w0, k.w1, k.family = source.W0, source.W1, p.Family
		k.back = w.routes.Reverse(&answer)
	}
	return k.back
}

// passesReversePath reports whether packet p passes the reverse path filter.
func (w *admission) passesReversePath(p *pkt, source route.Reverse, fe *table.FrontendEntry) bool {
	filter := w.cfg.ReversePathFilter
	if filter == ReversePathAuto {
		if source.Default() || source.Kind() == route.NoRoute {
			return true
		}
		filter = ReversePathLoose
		if fe != nil && fe.Policy.Restricts(fe.Kind, p.Family) {
			filter = ReversePathStrict
		}
	}
	switch filter {
	case ReversePathOff:
		return true
	case ReversePathStrict:
		return source.By(arrivalInterface(w.ports, p.in, p.data[:p.L3]))
	}
	switch source.Kind() {
	case route.Attached, route.Host, route.NoHostVeth:
		return !source.Inside()
	}
	return false
}

// arrivalInterface is the interface by which a frame with this Ethernet header came in by a port, as
// routes name it: of the member of a bond the bond, of a tagged frame the VLAN's. -1 is a VLAN that is
// not attached.
func arrivalInterface(ports []port, in int32, ethernet []byte) int {
	if len(ethernet) == header.EthernetLen {
		return int(ports[in].Interface)
	}
	// Not the priority, and not the drop eligible bit.
	tag := binary.BigEndian.Uint32(ethernet[12:]) & 0xffff0fff
	if tag&0xfff == 0 {
		return int(ports[in].Interface)
	}
	for j := range ports {
		if port := &ports[j]; port.Tag == tag && port.Under == in {
			return int(port.Interface)
		}
	}
	return -1
}
