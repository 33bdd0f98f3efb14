package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// A QUIC connection outlasts the client's address: the bytes of the connection IDs that
// name the server stay. If a Service declares these bytes, Weir reads them in the
// endpoints' answers on forwarded flows. It sends a datagram without a flow to the named
// endpoint.
//
// The DSR modes have no part in it: there the answers do not pass Weir.

// cidMapSize is for how many names of servers there is room: 512 KiB.
const cidMapSize = 1 << 16

// cidSeconds is the lifetime of a name after the last handshake of the endpoint. It is less
// than the range of an affinity.Store.
const cidSeconds = 24 * 60 * 60

// NewCIDs makes the store of the endpoints of QUIC connection IDs.
func NewCIDs(flows *conntrack.Table) *affinity.Store {
	seed := flows.Seed()
	return affinity.New(cidMapSize, [2]uint64{seed[1], seed[2]})
}

// udpPayload is the part of a UDP packet's payload in frame f, packet p's first buffer.
func udpPayload(f []byte, p *header.Packet) []byte {
	from, to := int(p.L4)+header.UDPLen, min(len(f), int(p.L3)+int(p.Len))
	return f[min(from, to):to]
}

// endpointByCID is the endpoint that packet p, which belongs to no flow, names by its
// connection ID; nil if there is no name, or an unknown name, or the endpoint is no longer
// in the Service. An endpoint without new clients still gets those that name it.
func (w *selector) endpointByCID(p *pkt, fe *table.FrontendEntry) *table.EndpointEntry {
	if !fe.FollowsConnectionIDs() || p.Frag != 0 { // QUIC does not fragment
		return nil
	}
	key, ok := fe.CIDKey(header.QUICDestination(udpPayload(p.data, &p.Packet)))
	if !ok {
		return nil
	}
	number, ok := w.cidMap.Get(key, w.tick/secondTicks, cidSeconds)
	if !ok {
		return nil
	}
	return fe.QUICEndpoint(number)
}

// mayCarryCID reports whether packet p of a watched entry may name its endpoint: hardly any
// packet of an established connection does.
func (w *frameMemory) mayCarryCID(p *pkt) bool {
	d := udpPayload(w.area[p.desc[0].Addr:][:p.desc[0].Len], &p.Packet)
	return len(d) > 0 && header.QUICLong(d[0])
}

// learnCID reads the server name in packet p, of a watched reverse entry. A known name
// stays with its endpoint as long as that exists: an attacker that forges an answer, on a
// flow whose ports it has guessed, does not draw the clients of another endpoint.
func (w *selector) learnCID(p *pkt, c *conntrack.Conn, ref conntrack.Ref) {
	id := header.QUICSource(udpPayload(p.data, &p.Packet))
	if id == nil || p.Frag != 0 || w.dryRun {
		return
	}
	asked := table.DestinationKey(&w.conns.Entry(ref.Other()).Key.W)
	fe := w.snapshot.Lookup(&asked)
	if fe == nil || !fe.FollowsConnectionIDs() {
		return
	}
	number := atomic.LoadUint32(&c.EndpointID)
	if fe.QUICEndpoint(number) == nil {
		return // the frontend is another Service's now, or the endpoint is gone
	}
	key, ok := fe.CIDKey(id)
	if !ok {
		return
	}
	now := w.tick / secondTicks
	if other, ok := w.cidMap.Get(key, now, cidSeconds); ok && other != number && fe.QUICEndpoint(other) != nil {
		return
	}
	w.cidMap.Put(key, number, now)
}
