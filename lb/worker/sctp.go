package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
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
// on the packet's length alone, so that a full CRC is neither verified nor repaired. Only a
// CRC that is left to the device is computed.

// trackSCTP follows packet p of an entry's flow; false when it has been dealt with.
func (w *flows) trackSCTP(p *pkt, ref conntrack.Ref) bool {
	f := p.data
	if ref.Forward() && p.Flags == header.ChunkInit && !w.singleHomed(p) {
		return false
	}
	c := p.Chunks(f)
	// The COOKIE ACK makes the association, see mayOpen.
	completes := !ref.Forward() && c.Types&(1<<header.ChunkCookieAck) != 0 &&
		w.conns.Conn(ref).State() == conntrack.StateSCTPCookieEchoed
	if completes && !w.roomToOpen(p, ref) {
		return false
	}
	g := conntrack.SCTPPacket{
		Tag: header.SCTP(f[p.L4:]).Tag(), InitiateTag: c.InitiateTag,
		Chunks: c.Types, Reflected: c.Reflected,
	}
	switch w.conns.TrackSCTP(ref, &g, w.tick) {
	case conntrack.Reopen:
		if !w.conntrack.Supersede(ref) {
			w.drop(p, DropNoConntrackEntry) // another worker is at it; the client asks again
			return false
		}
		w.counts[counter.ReplacedFlows]++
		w.lookUpAgain(p)
		return false
	case conntrack.Gone:
		w.lookUpAgain(p)
		return false
	}
	return true
}

// singleHomed reports whether packet p, an INIT, may begin an association. In modes with
// midstream pickup any other packet may. A packet that may not is consumed.
func (w *admission) singleHomed(p *pkt) bool {
	if p.Flags != header.ChunkInit {
		return true
	}
	sound, single := p.Init(p.data)
	switch {
	case !sound:
		w.drop(p, DropBadTransport)
	case !single:
		w.rejectSCTP(p, DropMultihomed)
	}
	return sound && single
}

// rejectSCTP answers packet p with an ABORT, or another due chunk, within the rate limit.
func (w *rejecter) rejectSCTP(p *pkt, reason Drop) {
	if !w.mayReject(p) {
		w.drop(p, reason)
		return
	}
	f := p.data
	if !p.Refusable(f) {
		w.drop(p, reason)
		return
	}
	if !w.resets.Take(w.source(p), w.tick) {
		w.drop(p, DropReplyLimit)
		return
	}
	w.drops[reason]++
	w.sampleDrop(p, reason)
	w.counts[counter.Aborts]++
	w.outputReply(p, p.Refuse(f))
}

// mayFragmentSCTP reports whether an entry can forward fragments of an SCTP packet: not if
// it changes the ports. The change of the CRC depends on the length of the whole packet,
// which the first fragment does not have.
func mayFragmentSCTP(d *fragtrack.Datagram, e *conntrack.Entry) bool {
	return e.Mode.DSR() || d.Ports == e.NewPorts
}

// completeCRC computes the CRC that was left to the device, over all of packet p.
func (w *frameMemory) completeCRC(p *pkt) {
	f := p.data
	field := f[int(p.L4)+header.SCTPChecksum:]
	binary.LittleEndian.PutUint32(field, 0)
	end := int(p.L3) + int(p.Len)
	crc := header.CRC(0, f[p.L4:min(end, len(f))])
	done := len(f)
	for _, x := range p.desc[1:p.n] {
		if done >= end {
			break
		}
		part := w.area[x.Addr : x.Addr+uint64(x.Len)]
		part = part[:min(len(part), end-done)]
		crc = header.CRC(crc, part)
		done += len(part)
	}
	binary.LittleEndian.PutUint32(field, crc)
}
