package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// translate rewrites packet p by the recipe of its flow entry: addresses,
// ports, TTL and checksums. output writes the MAC addresses.
func (w *forwarder) translate(p *pkt, e *conntrack.Entry) {
	w.translateAddresses(p, e)
	if p.Frag != 0 && p.state == untracked { // a later fragment
		return
	}
	l4 := p.data[p.L4:]
	if p.Proto == header.ProtoSCTP {
		translateSCTP(l4, &p.Packet, e.NewPorts)
		return
	}
	binary.LittleEndian.PutUint32(l4, e.NewPorts)
	at := tcpChecksum
	if p.Proto == header.ProtoUDP {
		at = udpChecksum
	}
	c := binary.LittleEndian.Uint16(l4[at:])
	switch {
	case p.Partial:
		// The field holds the folded pseudo header's sum, not complemented:
		// only the addresses count in it.
		c = header.Fold(uint64(c) + uint64(e.AddrDelta))
	case p.Proto == header.ProtoUDP && c == 0:
		// No checksum (RFC 768): none after translation either.
	default:
		c = header.Update(c, uint64(e.L4Delta))
		if p.Proto == header.ProtoUDP && c == 0 {
			c = 0xffff
		}
	}
	binary.LittleEndian.PutUint16(l4[at:], c)
}

// translateAddresses is translate without a transport header.
func (w *forwarder) translateAddresses(p *pkt, e *conntrack.Entry) {
	ip := p.data[p.L3:]
	if p.Family == 4 {
		header.RewriteIPv4(ip, e.Addr4, uint64(e.AddrDelta))
		return
	}
	src, dst := w.conns.NewAddrs6(p.ref)
	header.RewriteIPv6(ip, src, dst)
}

// translateSCTP writes new ports into an SCTP packet, and updates the CRC if there is one.
func translateSCTP(l4 []byte, p *header.Packet, ports uint32) {
	changed := binary.LittleEndian.Uint32(l4) ^ ports
	binary.LittleEndian.PutUint32(l4, ports)
	if p.Partial || p.Frag != 0 {
		return
	}
	crc := l4[header.SCTPChecksum:]
	binary.LittleEndian.PutUint32(crc, binary.LittleEndian.Uint32(crc)^header.CRCDelta(changed, p.L4Len()))
}
