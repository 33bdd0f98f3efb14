package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// A QUIC connection outlasts its client's address: what stays are the bytes of its
// connection IDs that name the server. Where a Service says which these are, Weir
// reads them in the endpoints' own answers on flows that it forwards, and sends a
// datagram without a flow to the endpoint that it names.
//
// The one-way modes have no part in it: there the answers do not pass, and what is
// computed from a server's name leads to the server only by chance.

// cidMapSize is for how many names of servers there is room: 512 KiB.
const cidMapSize = 1 << 16

// cidSeconds is how long a name is known after the last handshake of its
// endpoint. It is less than what an affinity.Store tells apart.
const cidSeconds = 24 * 60 * 60

// NewCIDs makes the store of the endpoints of QUIC connection IDs.
func NewCIDs(flows *conntrack.Table) *affinity.Store {
	seed := flows.Seed()
	return affinity.New(cidMapSize, [2]uint64{seed[1], seed[2]})
}

// udpPayload is what packet p's first buffer has of a UDP packet's payload.
func (w *Worker) udpPayload(p *pkt) []byte {
	f := w.frame(p)
	from, to := int(p.L4)+header.UDPLen, min(len(f), int(p.L3)+int(p.Len))
	return f[min(from, to):to]
}

// endpointByCID is the endpoint that packet p, which belongs to no flow, asks for by
// its connection ID; nil if it asks for none, or for one that is not known, or is no
// endpoint of the Service any more. An endpoint that gets no new clients still gets
// those that know it.
func (w *Worker) endpointByCID(p *pkt, fe *table.FrontendEntry) *table.EndpointEntry {
	if !fe.FollowsConnectionIDs() || p.Frag != 0 { // QUIC does not fragment
		return nil
	}
	key, ok := fe.ServerKey(header.QUICDestination(w.udpPayload(p)))
	if !ok {
		return nil
	}
	number, ok := w.cidMap.Get(key, w.tick/secondTicks, cidSeconds)
	if !ok {
		return nil
	}
	return fe.Server(number)
}

// mayCarryCID says whether packet p of a watched entry is one to learn from: of an
// established connection hardly any is.
func (w *Worker) mayCarryCID(p *pkt) bool {
	d := w.udpPayload(p)
	return len(d) > 0 && header.QUICLong(d[0])
}

// learnCID reads in packet p, of a reverse entry that is watched, which server its
// endpoint calls itself. A name that is known to be another endpoint's stays with
// that one as long as it is there: who answers in an endpoint's name, on one
// flow whose ports he has guessed, does not draw the clients of another.
func (w *Worker) learnCID(p *pkt, c *conntrack.Conn, ref conntrack.Ref) {
	id := header.QUICSource(w.udpPayload(p))
	if id == nil || p.Frag != 0 {
		return
	}
	asked := table.DestinationKey(&w.conns.Entry(ref.Other()).Key.W)
	fe := w.snapshot.Lookup(&asked)
	if fe == nil || !fe.FollowsConnectionIDs() {
		return
	}
	number := atomic.LoadUint32(&c.Endpoint)
	if fe.Server(number) == nil {
		return // the frontend is another Service's now, or the endpoint is gone
	}
	key, ok := fe.ServerKey(id)
	if !ok {
		return
	}
	now := w.tick / secondTicks
	if other, ok := w.cidMap.Get(key, now, cidSeconds); ok && other != number && fe.Server(other) != nil {
		return
	}
	w.cidMap.Put(key, number, now)
}
