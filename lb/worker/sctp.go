package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/sctp"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// SCTP (RFC 9260). An association has a single address on each side here: packets to or
// from a second address would be of another flow, and go to another endpoint. A peer that
// announces a second address is refused, so that the error shows at once and not when a
// path fails.
// Addresses that are added later (RFC 5061) are not looked for.
//
// The CRC covers no address: it is updated for the new ports, by a difference that depends
// on the packet's length alone. So a full CRC is neither verified nor repaired. Only a CRC
// that is left to the device is computed.

// trackSCTP follows packet p of an entry's flow.
func (w *flows) trackSCTP(p *pkt, ref conntrack.Ref) verdict {
	if ref.Forward() {
		if v := singleHomed(p); v != pass {
			return v
		}
	}
	c := p.Chunks(p.data)
	// The COOKIE ACK makes the association, see mayOpen.
	completes := !ref.Forward() && c.Types&(1<<header.ChunkCookieAck) != 0 &&
		w.conns.Conn(ref).State() == flowstate.SCTPCookieEchoed
	if completes {
		if v := w.roomToOpen(ref); v != pass {
			return v
		}
	}
	g := sctp.Packet{
		Tag: header.SCTP(p.data[p.L4:]).Tag(), InitiateTag: c.InitiateTag,
		Chunks: c.Types, Reflected: c.Reflected,
	}
	before := w.conns.Conn(ref).State()
	switch w.conns.TrackSCTP(ref, &g, w.tick) {
	case flowstate.Reopen:
		return w.supersede(ref)
	case flowstate.Gone:
		return again
	}
	switch conn := w.conns.Conn(ref); {
	case completes:
		w.watch.attempts.Answered(atomic.LoadUint32(&conn.EndpointID))
	case before == flowstate.SCTPInit && !ref.Forward() && conn.State() == flowstate.Close:
		w.noteRefused(conn, ref)
	}
	return pass
}

// singleHomed passes packet p unless it is an INIT that may not begin an association. In modes
// with midstream pickup any other packet may.
func singleHomed(p *pkt) verdict {
	if p.Flags != header.ChunkInit {
		return pass
	}
	sound, single := p.Init(p.data)
	switch {
	case !sound:
		return drop(DropBadTransport)
	case !single:
		return reject(DropMultihomed)
	}
	return pass
}

// mayFragmentSCTP reports whether an entry can forward fragments of an SCTP packet: not if
// it changes the ports. The change of the CRC depends on the length of the whole packet,
// which the first fragment does not have.
func mayFragmentSCTP(d *fragtrack.Datagram, e *conntrack.Entry) bool {
	return e.Mode.DSR() || d.Ports == e.NewPorts
}
