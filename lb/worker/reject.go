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

// rejectTCP answers packet p with a RST, within the rate limit, unless p is a RST (RFC 9293
// section 3.10.7.1).
func (w *rejecter) rejectTCP(p *pkt, reason Drop) {
	if p.Flags&header.RST != 0 || !w.mayReject(p) {
		w.drop(p, reason)
		return
	}
	if !w.resets.Take(w.source(p), w.tick) {
		w.drop(p, DropReplyLimit)
		return
	}
	w.drops[reason]++
	w.sampleDrop(p, reason)
	w.counts[counter.Resets]++
	w.outputReply(p, header.Reset(p.data, &p.Packet))
}

// rejectICMP answers packet p with an ICMP error, at the rate that is allowed.
func (w *rejecter) rejectICMP(p *pkt, e header.Error, mtu int, reason Drop) {
	if !w.mayReject(p) || !w.errors.Take(w.source(p), w.tick) {
		w.drop(p, reason)
		return
	}
	w.drops[reason]++
	w.sampleDrop(p, reason)
	w.counts[counter.ICMPErrors]++
	f := p.data
	w.outputReply(p, header.Unreachable(f[:cap(f)], len(f), &p.Packet, e, mtu))
}

// mayReject says whether a packet may be answered with a refusal (RFC 1122
// section 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443 section 2.4): not if it is
// ICMP itself or a later fragment, nor if it was sent to or by a group of
// stations. The answer goes to the MAC address that the packet came from.
func (w *rejecter) mayReject(p *pkt) bool {
	f := p.data
	if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 || (f[0]|f[6])&1 != 0 {
		return false
	}
	if p.Frag == 0 {
		return true
	}
	fragment := p.Fragment(f)
	return fragment.Offset == 0
}

// outputReply sends the reply in packet p's first frame back by the ingress port.
func (w *portIO) outputReply(p *pkt, n int) {
	w.shrinkTo(p, n)
	w.outputBack(p)
}

// outputBack sends the reply made of packet p back by the ingress port, in the same VLAN.
// A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names no VLAN: the sender alone
// chose it, and the answer has none.
func (w *portIO) outputBack(p *pkt) {
	if p.L3 == header.EthernetLen+header.TagLen && binary.BigEndian.Uint16(p.data[header.EthernetLen:])&0xfff == 0 {
		w.untag(p)
	}
	w.outputPort(p, p.in)
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

// onParseError handles a packet that is not a whole TCP, UDP or SCTP packet. Packets that
// the kernel may handle are punted, malformed packets dropped.
func (w *Worker) onParseError(p *pkt, problem header.Problem) {
	p.data = w.frame(p)
	switch problem {
	case header.NotIP:
		w.punt(p, DropNotIP)
	case header.IsFragment:
		w.onFragment(p)
	case header.NotTransport:
		if proto := p.Proto; proto == header.ProtoICMP || proto == header.ProtoICMPv6 {
			w.icmp(p)
			return
		}
		w.punt(p, DropUnsupportedProtocol)
	case header.Truncated:
		w.drop(p, DropTruncated)
	case header.BadIPHeader:
		w.drop(p, DropBadIPHeader)
	case header.Martian:
		w.drop(p, DropMartian)
	case header.BadExtension:
		w.drop(p, DropExtension)
	case header.SourceRouted:
		w.drop(p, DropSourceRoute)
	case header.BadFragment:
		w.drop(p, DropBadFragment)
	case header.TinyFragment:
		w.drop(p, DropTinyFragment)
	default:
		w.drop(p, DropBadTransport)
	}
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
