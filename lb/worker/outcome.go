package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/xsk"
)

// rejecter answers packets with RST, ABORT and ICMP errors, each at a limited rate.
type rejecter struct {
	classifier
	resets     ratelimit.Limiter
	errors     ratelimit.Limiter
	pathMTUs   ratelimit.Limiter
	echoes     ratelimit.Limiter
	challenged challenges
}

// act brings about the outcome of packet p. A packet that cannot be punted or answered is
// dropped.
func (w *rejecter) act(p *pkt, v verdict) {
	switch v.kind() {
	case kindDrop:
		w.drop(p, v.reason())
		return
	case kindPunt:
		v = w.punt(p, v.reason())
	case kindReject, kindICMP, kindChallenge:
		v = w.reject(p, v)
	}
	if v == reply {
		if w.obs != nil {
			w.obs.answer(&p.desc[0])
		}
		v = w.outputBack(p)
	}
	if v.kind() == kindDrop {
		w.drop(p, v.reason())
	}
}

// drop counts the packet under the reason and frees all frames.
func (w *portIO) drop(p *pkt, reason Drop) {
	w.drops[reason]++
	w.sampleDrop(p, reason)
	if w.obs != nil {
		w.obs.dropped(&p.desc[0], reason, w.tick)
	}
	if p.service != 0 {
		w.services.add(p.service, serviceDrops+int(reason), 1)
	}
	w.freeBuffers(p.desc[:p.n])
}

// sampleDrop keeps packet p, unless enough packets of the reason were kept in this tick.
func (w *portIO) sampleDrop(p *pkt, reason Drop) {
	if s := &w.samples[reason]; s.due(w.tick) {
		s.keep(p, w.tick)
	}
}

// dropGathered is drop of packets that are nothing but descriptors any more. They have no
// ingress port.
func (w *portIO) dropGathered(descs []xsk.Desc, reason Drop) {
	for first := 0; first < len(descs); {
		f := frames{in: -1}
		for end := false; !end; first++ {
			d := &descs[first]
			f.desc[f.n&(maxBuffers-1)] = *d
			f.n, f.size = f.n+1, f.size+d.Len
			end = d.Options&xsk.Continued == 0 || first+1 == len(descs)
		}
		w.dropFrames(&f, reason)
	}
}

// dropFrames is drop of a packet that is not in a batch.
func (w *portIO) dropFrames(f *frames, reason Drop) {
	w.drops[reason]++
	if s := &w.samples[reason]; s.due(w.tick) {
		p := pkt{frames: *f}
		p.data = w.frame(&p)
		s.keep(&p, w.tick)
	}
	if w.obs != nil {
		w.obs.dropped(&f.desc[0], reason, w.tick)
	}
	w.freeBuffers(f.desc[:f.n])
}

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
	if w.obs != nil {
		w.obs.punt(&p.desc[0])
	}
	return w.outputFrame(p, w.hostVeth, w.hostVethMACs[0], w.hostVethMACs[1])
}

// reject answers packet p by verdict v, at the rate that is allowed. A packet that may not be
// answered is to be dropped.
func (w *rejecter) reject(p *pkt, v verdict) verdict {
	if !w.mayReject(p, v) {
		return drop(v.reason())
	}
	limit, beyond := &w.resets, DropReplyLimit
	if v.kind() == kindICMP {
		limit, beyond = &w.errors, v.reason()
	}
	if limit.Empty() || !limit.Take(w.sourceOf(p.data[p.L3:], p.Family), w.tick) {
		return drop(beyond)
	}
	w.drops[v.reason()]++
	w.sampleDrop(p, v.reason())
	if w.obs != nil {
		w.obs.refuse(&p.desc[0], v)
	}
	if p.service != 0 {
		w.services.add(p.service, serviceDrops+int(v.reason()), 1)
	}
	w.shrinkTo(p, w.makeReply(p, v))
	return reply
}

// makeReply turns packet p into the answer, and returns the length.
func (w *rejecter) makeReply(p *pkt, v verdict) int {
	f := p.data
	switch {
	case v.kind() == kindICMP:
		w.counts[counter.ICMPErrors]++
		return header.Unreachable(f[:cap(f)], len(f), &p.Packet, v.icmp(), int(v.argument()))
	case v.kind() == kindChallenge:
		w.challenged.note(p.hash, v.argument(), w.tick)
		seq, ack := cookie(&p.key, w.tick>>cookieBits)
		return header.Challenge(f, &p.Packet, seq, ack)
	case p.Proto == header.ProtoSCTP:
		w.counts[counter.Aborts]++
		return p.Refuse(f)
	default:
		w.counts[counter.Resets]++
		return header.Reset(f, &p.Packet)
	}
}

// mayReject reports whether packet p may be answered with a refusal (RFC 1122 section 3.2.2,
// RFC 1812 section 4.3.2.7, RFC 4443 section 2.4). It may not if it is ICMP itself, a RST (RFC
// 9293 section 3.10.7.1) or a later fragment. Nor may a packet that was sent to or by a group
// of stations. The answer goes to the MAC address that the packet came from.
func (w *rejecter) mayReject(p *pkt, v verdict) bool {
	f := p.data
	if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 || (f[0]|f[6])&1 != 0 {
		return false
	}
	if v.kind() == kindReject {
		if p.Proto == header.ProtoSCTP && !p.Refusable(f) ||
			p.Proto == header.ProtoTCP && p.Flags&header.RST != 0 {
			return false
		}
	}
	if p.Frag == 0 {
		return true
	}
	fragment := p.Fragment(f)
	return fragment.Offset == 0
}

// shrinkTo leaves of packet p the first n bytes of the first frame, and frees the other
// frames.
func (w *frameMemory) shrinkTo(p *pkt, n int) {
	w.freeBuffers(p.desc[1:p.n])
	p.n, p.size = 1, uint32(n)
	d := &p.desc[0]
	d.Len, d.Options = uint32(n), 0
	p.data = p.data[:n]
}

// sourceOf is the hash of an IP packet's source that the limits count by: of an IPv4 address,
// or of the /64 that an IPv6 host may have all to itself.
func (w *rejecter) sourceOf(ip []byte, family uint8) uint64 {
	v := binary.LittleEndian.Uint64(ip[8:])
	if family == 4 {
		v = uint64(binary.LittleEndian.Uint32(ip[12:]))
	}
	return w.sourceHash(v)
}

// sourceHash is sourceOf of the source in a little-endian load.
func (w *rejecter) sourceHash(source uint64) uint64 {
	seed := w.conns.Seed()
	hi, lo := bits.Mul64(source^seed[0], seed[1]|1)
	return hi ^ lo
}

// Limits of the packets that a worker originates per second: RSTs for a whole Service that
// has just lost all endpoints, ICMP errors with Linux' limit (net.ipv4.icmp_msgs_per_sec),
// and echo replies. The limits per source leave
// room for a gateway with many hosts behind it.
const (
	resetsPerSecond = 10000
	resetsPerSource = 1000
	errorsPerSecond = 1000
	errorsPerSource = 50
	echoesPerSecond = 1000
	echoesPerSource = 50
)
