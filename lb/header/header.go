package header

import "encoding/binary"

// EtherTypes.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeVLAN = 0x8100 // IEEE 802.1Q
	EtherTypeIPv6 = 0x86dd
	EtherTypeQinQ = 0x88a8 // IEEE 802.1ad: the outer of two tags
)

// Header lengths in bytes.
const (
	EthernetLen = 14
	TagLen      = 4 // of a VLAN tag
	IPv4Len     = 20
	IPv6Len     = 40
	TCPLen      = 20
	UDPLen      = 8
	ICMPLen     = 8
)

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// IPv4 is a view of an IPv4 header (RFC 791).
type IPv4 []byte

// HeaderLen is the header's length in bytes, options included.
func (h IPv4) HeaderLen() int { return int(h[0]&0xf) * 4 }

// TotalLen is the packet's length in bytes, header included.
func (h IPv4) TotalLen() int { return int(binary.BigEndian.Uint16(h[2:])) }

// Fragment reports whether the packet is a fragment of any kind.
func (h IPv4) Fragment() bool { return binary.BigEndian.Uint16(h[6:])&0x3fff != 0 }

// DontFragment reports the DF bit.
func (h IPv4) DontFragment() bool { return h[6]&0x40 != 0 }

// TTL is the time to live.
func (h IPv4) TTL() uint8 { return h[8] }

// Protocol is the upper layer's protocol.
func (h IPv4) Protocol() uint8 { return h[9] }

// IPv6 is a view of an IPv6 header (RFC 8200).
type IPv6 []byte

// PayloadLen is the length of the data after the 40-byte header.
func (h IPv6) PayloadLen() int { return int(binary.BigEndian.Uint16(h[4:])) }

// NextHeader is the type of the following header.
func (h IPv6) NextHeader() uint8 { return h[6] }

// HopLimit is the hop limit.
func (h IPv6) HopLimit() uint8 { return h[7] }

// TCP is a view of a TCP header (RFC 9293).
type TCP []byte

// Seq is the sequence number.
func (h TCP) Seq() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// Ack is the acknowledgment number.
func (h TCP) Ack() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// DataOffset is the header's length in bytes.
func (h TCP) DataOffset() int { return int(h[12]>>4) * 4 }

// Flags are the low eight flag bits.
func (h TCP) Flags() uint8 { return h[13] }
