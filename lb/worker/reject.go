package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
)

// rejecter answers packets with RST, ABORT and ICMP errors, each at a limited rate.
type rejecter struct {
	portIO
	conns      *conntrack.Table
	resets     ratelimit.Limiter
	errors     ratelimit.Limiter
	pathMTUs   ratelimit.Limiter
	echoes     ratelimit.Limiter
	challenged challenges
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
	if !limit.Take(w.source(p), w.tick) {
		return drop(beyond)
	}
	w.drops[v.reason()]++
	w.sampleDrop(p, v.reason())
	return w.outputReply(p, w.makeReply(p, v))
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
// RFC 1812 section 4.3.2.7, RFC 4443 section 2.4): not if it is ICMP itself, a RST (RFC 9293
// section 3.10.7.1) or a later fragment, nor if it was sent to or by a group of stations.
// The answer goes to the MAC address that the packet came from.
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

// outputReply sends the reply in packet p's first frame back by the ingress port.
func (w *portIO) outputReply(p *pkt, n int) verdict {
	w.shrinkTo(p, n)
	return w.outputBack(p)
}

// outputBack sends the reply made of packet p back by the ingress port, in the same VLAN.
// A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names no VLAN: the sender alone
// chose it, and the answer has none.
func (w *portIO) outputBack(p *pkt) verdict {
	if p.L3 == header.EthernetLen+header.TagLen && binary.BigEndian.Uint16(p.data[header.EthernetLen:])&0xfff == 0 {
		w.untag(p)
	}
	return w.outputPort(p, p.in)
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

// parseDrop is the reason to drop a malformed packet.
func parseDrop(problem header.Problem) Drop {
	switch problem {
	case header.Truncated:
		return DropTruncated
	case header.BadIPHeader:
		return DropBadIPHeader
	case header.Martian:
		return DropMartian
	case header.BadExtension:
		return DropExtension
	case header.SourceRouted:
		return DropSourceRoute
	case header.BadFragment:
		return DropBadFragment
	case header.TinyFragment:
		return DropTinyFragment
	}
	return DropBadTransport
}

// onParseError handles a packet that is not a whole TCP, UDP or SCTP packet. Packets that
// the kernel may handle are punted, malformed packets dropped.
func (w *Worker) onParseError(p *pkt, problem header.Problem) {
	p.data = w.frame(p)
	v := pass
	switch problem {
	case header.NotIP:
		v = punt(DropNotIP)
	case header.IsFragment:
		v = w.onFragment(p)
	case header.NotTransport:
		v = punt(DropUnsupportedProtocol)
		if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 {
			v = w.icmp(p)
		}
	default:
		v = drop(parseDrop(problem))
	}
	w.conclude(p, v)
	p.state = consumed // the stages are not to do it again
}

// source is the hash of packet p's source that the limits count by: of an IPv4
// address, or of the /64 that an IPv6 host may have all to itself.
func (w *rejecter) source(p *pkt) uint64 {
	return w.sourceOf(p.data[p.L3:], p.Family)
}

func (w *rejecter) sourceOf(ip []byte, family uint8) uint64 {
	v := binary.LittleEndian.Uint64(ip[8:])
	if family == 4 {
		v = uint64(binary.LittleEndian.Uint32(ip[12:]))
	}
	seed := w.conns.Seed()
	hi, lo := bits.Mul64(v^seed[0], seed[1]|1)
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
