package l2

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
)

// Layout of the frames: an Ethernet header, then ARP for IPv4 over Ethernet (RFC 826) or IPv6 with
// a neighbor discovery message (RFC 4861).
const (
	etherLen     = 14
	arpLen       = 28
	ip6Len       = 40
	ndMessageLen = 24 // type, code, checksum, flags, target
	ndOptionLen  = 8  // a link-layer address of Ethernet

	arpRequest, arpReply = 1, 2

	neighborSolicitation, neighborAdvertisement = 135, 136
	flagSolicited, flagOverride                 = 0x40, 0x20
	optionSource, optionTarget                  = 1, 2

	// linkHops is the hop limit of a packet that no router has forwarded.
	linkHops = 255
)

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// hardware is a link-layer address of Ethernet.
type hardware [6]byte

func (h hardware) String() string { return net.HardwareAddr(h[:]).String() }

// heard is what an ARP packet, neighbor solicitation or neighbor advertisement says.
type heard struct {
	// question is true if the owner of target is to answer. asker is the address of who asks,
	// unspecified for a probe of an address that the asker wants to use (RFC 5227, RFC 4862).
	question bool
	target   netip.Addr
	asker    netip.Addr
	// claimed is the address that its sender holds, with the link-layer address mac; invalid for
	// none.
	claimed netip.Addr
	mac     hardware // of the sender
}

// parse reads a frame. ok is false for one that is neither, or malformed.
func parse(f []byte) (h heard, ok bool) {
	if len(f) < etherLen {
		return h, false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case unix.ETH_P_ARP:
		return parseARP(f[etherLen:])
	case unix.ETH_P_IPV6:
		return parseND(f)
	}
	return h, false
}

func parseARP(p []byte) (h heard, ok bool) {
	if len(p) < arpLen || binary.BigEndian.Uint16(p) != 1 || binary.BigEndian.Uint16(p[2:]) != unix.ETH_P_IP || p[4] != 6 || p[5] != 4 {
		return h, false
	}
	h.mac = hardware(p[8:14])
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	if !sender.IsUnspecified() {
		h.claimed = sender
	}
	switch binary.BigEndian.Uint16(p[6:]) {
	case arpRequest:
		h.question, h.target, h.asker = sender != target && !target.IsUnspecified(), target, sender
	case arpReply:
	default:
		return h, false
	}
	return h, h.question || h.claimed.IsValid()
}

// parseND checks what RFC 4861, sections 7.1.1 and 7.1.2, tell a receiver to check.
func parseND(f []byte) (h heard, ok bool) {
	if len(f) < etherLen+ip6Len+ndMessageLen {
		return h, false
	}
	ip := f[etherLen:]
	size := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != unix.IPPROTO_ICMPV6 || ip[7] != linkHops || size < ndMessageLen || len(ip) < ip6Len+size {
		return h, false
	}
	m := ip[ip6Len : ip6Len+size]
	if m[1] != 0 || header.Fold(header.Sum(header.PseudoSum6(ip, unix.IPPROTO_ICMPV6, size), m)) != 0xffff {
		return h, false
	}
	source := netip.AddrFrom16([16]byte(ip[8:24]))
	target := netip.AddrFrom16([16]byte(m[8:24]))
	if target.IsMulticast() || target.IsUnspecified() {
		return h, false
	}
	option := uint8(optionSource)
	if m[0] == neighborAdvertisement {
		option = optionTarget
	}
	link, given, ok := linkLayer(m[ndMessageLen:], option)
	if !ok {
		return h, false
	}
	if !given {
		link = hardware(f[6:12])
	}
	h.mac = link
	switch m[0] {
	case neighborSolicitation:
		if source.IsUnspecified() && given {
			return h, false
		}
		h.question, h.target, h.asker = true, target, source
		if !source.IsUnspecified() {
			h.claimed = source
		}
	case neighborAdvertisement:
		h.claimed = target
	default:
		return h, false
	}
	return h, true
}

// linkLayer is the link-layer address among options. ok is false for malformed options.
func linkLayer(o []byte, kind uint8) (h hardware, given, ok bool) {
	for len(o) > 0 {
		if len(o) < 2 || o[1] == 0 || len(o) < int(o[1])*8 {
			return h, false, false
		}
		if o[0] == kind && o[1] == 1 && !given {
			h, given = hardware(o[2:8]), true
		}
		o = o[int(o[1])*8:]
	}
	return h, given, true
}

// answer is the frame that tells who asked that target is at mac. Preconditions: h is a question.
func (h *heard) answer(mac hardware) []byte {
	if h.target.Is4() {
		return arp(arpReply, h.mac, mac, h.target, h.mac, h.asker)
	}
	if h.asker.IsUnspecified() { // all nodes are told, as the asker has no address yet
		return advertisement(mac, h.target, multicastMAC(allNodes), allNodes, flagOverride)
	}
	return advertisement(mac, h.target, h.mac, h.asker, flagSolicited|flagOverride)
}

// announcements are the frames that tell everybody on the link that a is at mac. Some
// implementations of ARP take over replies alone.
func announcements(a netip.Addr, mac hardware) [][]byte {
	if a.Is4() {
		return [][]byte{
			arp(arpRequest, hardware(broadcast), mac, a, hardware{}, a),
			arp(arpReply, hardware(broadcast), mac, a, hardware(broadcast), a),
		}
	}
	return [][]byte{advertisement(mac, a, multicastMAC(allNodes), allNodes, flagOverride)}
}

// probe is the frame that asks whether anybody holds a, and tells nobody anything (RFC 5227, RFC
// 4862).
func probe(a netip.Addr, mac hardware) []byte {
	if a.Is4() {
		return arp(arpRequest, hardware(broadcast), mac, netip.IPv4Unspecified(), hardware{}, a)
	}
	group := solicitedNode(a)
	return neighborDiscovery(mac, netip.IPv6Unspecified(), multicastMAC(group), group, neighborSolicitation, 0, a, nil)
}

func arp(operation uint16, to, from hardware, sender netip.Addr, targetMAC hardware, target netip.Addr) []byte {
	f := make([]byte, 0, etherLen+arpLen)
	f = append(append(f, to[:]...), from[:]...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_ARP)
	f = append(f, 0, 1, unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff, 6, 4)
	f = binary.BigEndian.AppendUint16(f, operation)
	f = append(append(f, from[:]...), sender.AsSlice()...)
	return append(append(f, targetMAC[:]...), target.AsSlice()...)
}

func advertisement(mac hardware, a netip.Addr, to hardware, destination netip.Addr, flags uint8) []byte {
	option := append([]byte{optionTarget, 1}, mac[:]...)
	return neighborDiscovery(mac, a, to, destination, neighborAdvertisement, flags, a, option)
}

func neighborDiscovery(mac hardware, source netip.Addr, to hardware, destination netip.Addr, kind, flags uint8, target netip.Addr, option []byte) []byte {
	f := make([]byte, 0, etherLen+ip6Len+ndMessageLen+ndOptionLen)
	f = append(append(f, to[:]...), mac[:]...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IPV6)
	size := ndMessageLen + len(option)
	f = append(f, 6<<4, 0, 0, 0, 0, byte(size), unix.IPPROTO_ICMPV6, linkHops)
	f = append(append(f, source.AsSlice()...), destination.AsSlice()...)
	f = append(f, kind, 0, 0, 0, flags, 0, 0, 0)
	f = append(append(f, target.AsSlice()...), option...)
	ip := f[etherLen:]
	sum := header.Checksum(header.PseudoSum6(ip, unix.IPPROTO_ICMPV6, size), ip[ip6Len:])
	binary.LittleEndian.PutUint16(ip[ip6Len+2:], sum)
	return f
}

// solicitedNode is the multicast group of neighbor solicitations for a (RFC 4291).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

func multicastMAC(group netip.Addr) hardware {
	b := group.As16()
	return hardware{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
