package decap

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/lb/header"
)

// Drop is why a packet was not handed on.
type Drop uint8

// Drop reasons.
const (
	Delivered Drop = iota // not dropped
	DropMalformed
	DropGUE
	DropSource
	DropMartian
	DropDestination
	DropECN
	DropWrite
	dropReasons
)

var dropNames = [dropReasons]string{
	Delivered:       "delivered",
	DropMalformed:   "malformed",
	DropGUE:         "unknown-gue-header",
	DropSource:      "sender-not-allowed",
	DropMartian:     "martian",
	DropDestination: "destination-not-served",
	DropECN:         "congestion-experienced-not-ect",
	DropWrite:       "write-failed",
}

// String is the reason's name.
func (d Drop) String() string {
	if d < dropReasons {
		return dropNames[d]
	}
	return fmt.Sprint(uint8(d))
}

// Rules say which packets are handed on.
type Rules struct {
	// Addresses are those that inner packets may be to: the frontends'.
	Addresses []netip.Addr
	// From are the senders of outer packets that are heard; empty: all.
	From []netip.Prefix
}

// outer describes the outer packet.
type outer struct {
	src netip.Addr
	ecn uint8 // the two low bits of TOS or traffic class
}

// GUE bits of the first byte (draft-ietf-intarea-gue-09 sections 3.1 and 4.1).
const (
	gueVariant = 0xc0
	gueDirect  = 0x40 // variant 1: no header, the byte is the inner packet's
	gueControl = 0x20
	gueHlen    = 0x1f
)

// gue takes the GUE header off the payload of a UDP datagram: variant 0 without
// optional fields, or variant 1, as Katran sends it.
func gue(b []byte) (inner []byte, proto uint8, d Drop) {
	if len(b) < header.GUELen {
		return nil, 0, DropMalformed
	}
	switch b[0] & gueVariant {
	case gueDirect:
		if b[0]>>4 == 6 {
			return b, header.ProtoIPv6, Delivered
		}
		return b, header.ProtoIPIP, Delivered
	case 0:
		// An unknown flag may change the meaning of the rest.
		if b[0]&(gueControl|gueHlen) != 0 || binary.BigEndian.Uint16(b[2:]) != 0 {
			return nil, 0, DropGUE
		}
		return b[header.GUELen:], b[1], Delivered
	}
	return nil, 0, DropGUE
}

// accept checks an inner packet of the protocol that the outer header named, and returns it
// without trailing bytes. The ECN bits are merged in place.
func (r *Rules) accept(b []byte, proto uint8, o outer) ([]byte, Drop) {
	if !r.hears(o.src) {
		return nil, DropSource
	}
	var src, dst netip.Addr
	switch proto {
	case header.ProtoIPIP:
		if len(b) < header.IPv4Len || b[0]>>4 != 4 {
			return nil, DropMalformed
		}
		ip := header.IPv4(b)
		ihl, n := ip.HeaderLen(), ip.TotalLen()
		if ihl < header.IPv4Len || n < ihl || n > len(b) || header.Fold(header.Sum(0, b[:ihl])) != 0xffff {
			return nil, DropMalformed
		}
		b = b[:n]
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	case header.ProtoIPv6:
		if len(b) < header.IPv6Len || b[0]>>4 != 6 {
			return nil, DropMalformed
		}
		n := header.IPv6Len + header.IPv6(b).PayloadLen()
		if n > len(b) {
			return nil, DropMalformed
		}
		b = b[:n]
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	default:
		return nil, DropMalformed
	}
	if !r.serves(dst) {
		return nil, DropDestination
	}
	if martian(src) || r.serves(src) {
		return nil, DropMartian
	}
	if !mergeECN(b, o.ecn) {
		return nil, DropECN
	}
	return b, Delivered
}

func (r *Rules) hears(src netip.Addr) bool {
	if len(r.From) == 0 {
		return true
	}
	for _, p := range r.From {
		if p.Contains(src.Unmap()) {
			return true
		}
	}
	return false
}

func (r *Rules) serves(a netip.Addr) bool {
	for _, own := range r.Addresses {
		if own == a {
			return true
		}
	}
	return false
}

// martian reports sources that must not be on a wire (RFC 1812 section 5.3.7,
// RFC 4291). An IPv4-mapped address stands for another host than it looks like.
func martian(a netip.Addr) bool {
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is4In6() {
		return true
	}
	return a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240)
}

// ECN codepoints (RFC 3168).
const (
	notECT = 0
	ect1   = 1
	ce     = 3
)

// mergeECN gives the inner packet the codepoint of RFC 6040 section 4.2; false when the
// packet must be dropped: it experienced congestion, and the inner transport does not
// understand such marks.
func mergeECN(b []byte, out uint8) bool {
	in := tos(b) & 3
	switch {
	case in == notECT:
		return out != ce
	case out == ce, out == ect1 && in != ce:
		setECN(b, out)
	}
	return true
}

func tos(b []byte) uint8 {
	if b[0]>>4 == 6 {
		return b[0]<<4 | b[1]>>4
	}
	return b[1]
}

func setECN(b []byte, ecn uint8) {
	if b[0]>>4 == 6 {
		b[1] = b[1]&^0x30 | ecn<<4
		return
	}
	old := binary.LittleEndian.Uint16(b)
	b[1] = b[1]&^3 | ecn
	c := binary.LittleEndian.Uint16(b[10:])
	binary.LittleEndian.PutUint16(b[10:], header.Update(c, uint64(^old)+uint64(binary.LittleEndian.Uint16(b))))
}
