package header

import (
	"encoding/binary"
	"hash/crc32"
)

// SCTP chunk types (RFC 9260 section 3.2) that a load balancer looks at.
const (
	ChunkData             = 0
	ChunkInit             = 1
	ChunkInitAck          = 2
	ChunkAbort            = 6
	ChunkError            = 9
	ChunkShutdownAck      = 8
	ChunkCookieAck        = 11
	ChunkShutdownComplete = 14

	chunkIData = 64 // RFC 8260
)

const (
	// SCTPLen is the length of the common header.
	SCTPLen = 12
	// SCTPChecksum is where in it the CRC is.
	SCTPChecksum = 8

	chunkLen = 4  // of a chunk's header
	initLen  = 20 // of an INIT without parameters, chunk header included
	// maxChunks of a packet are examined. Senders bundle two or three before the data.
	maxChunks = 32
)

// Parameters of an INIT that name addresses (RFC 9260 section 3.3.2).
const (
	paramIPv4     = 5
	paramIPv6     = 6
	paramHostName = 11
)

// SCTP is a view of an SCTP packet from the common header on.
type SCTP []byte

// Tag is the verification tag.
func (h SCTP) Tag() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// sctp parses the common header and the first chunk's: of p.Flags it makes the
// first chunk's type. A checksum of 0 is left to the device: so Linux sends it
// (CHECKSUM_PARTIAL with csum_not_inet). A real CRC is 0 once in 2^32 packets, and a peer
// that has agreed on packets without a CRC (RFC 9653) accepts packets with a CRC too.
func (p *Packet) sctp(l4 []byte, n int) Problem {
	if n < SCTPLen+chunkLen || len(l4) < SCTPLen+chunkLen {
		return BadTransport
	}
	length := int(binary.BigEndian.Uint16(l4[SCTPLen+2:]))
	if length < chunkLen || p.Frag == 0 && SCTPLen+length > n {
		return BadTransport
	}
	p.Flags = l4[SCTPLen]
	p.Partial = p.Frag == 0 && binary.LittleEndian.Uint32(l4[SCTPChecksum:]) == 0
	return OK
}

// Chunks has the fields of an SCTP packet's chunks about the association.
type Chunks struct {
	Types       uint16 // 1<<type of every chunk of a type below 16
	InitiateTag uint32 // of an INIT or INIT ACK
	Reflected   bool   // an ABORT or SHUTDOWN COMPLETE has the T bit
}

// Has reports whether there is a chunk of a type below 16.
func (c *Chunks) Has(chunk uint8) bool { return c.Types>>chunk&1 != 0 }

// Chunks reads the chunks of p, an SCTP packet that Parse took, as far as they
// lie in the frame's first buffer, up to the first with data: those that say
// anything come before (RFC 9260 section 6.10).
func (p *Packet) Chunks(frame []byte) Chunks {
	var c Chunks
	l4 := frame[p.L4:min(len(frame), int(p.L3)+int(p.Len))]
	at := SCTPLen
	for range maxChunks {
		if at+chunkLen > len(l4) {
			break
		}
		typ, flags, n := l4[at], l4[at+1], int(binary.BigEndian.Uint16(l4[at+2:]))
		if n < chunkLen {
			break
		}
		if typ < 16 {
			c.Types |= 1 << typ
		}
		switch typ {
		case ChunkData, chunkIData:
			return c
		case ChunkInit, ChunkInitAck:
			if at+8 <= len(l4) {
				c.InitiateTag = binary.BigEndian.Uint32(l4[at+4:])
			}
		case ChunkAbort, ChunkShutdownComplete:
			c.Reflected = c.Reflected || flags&1 != 0
		}
		at += (n + 3) &^ 3
	}
	return c
}

// Init judges an INIT, the first chunk of p: sound when it is whole, alone and as
// RFC 9260 sections 3.3.2 and 8.5.1 want it; single when it names no address but
// the packet's source, and no host name.
func (p *Packet) Init(frame []byte) (sound, single bool) {
	l4 := frame[p.L4:min(len(frame), int(p.L3)+int(p.Len))]
	n := int(binary.BigEndian.Uint16(l4[SCTPLen+2:]))
	if n < initLen || SCTPLen+n > len(l4) || len(l4) > SCTPLen+(n+3)&^3 || SCTP(l4).Tag() != 0 {
		return false, false
	}
	init := l4[SCTPLen : SCTPLen+n]
	if binary.BigEndian.Uint32(init[4:]) == 0 {
		return false, false
	}
	source := string(frame[p.L3+12 : p.L3+16])
	if p.Family == 6 {
		source = string(frame[p.L3+8 : p.L3+24])
	}
	single = true
	for params := init[initLen:]; len(params) > 0; {
		if len(params) < 4 {
			return false, false
		}
		n := int(binary.BigEndian.Uint16(params[2:]))
		if n < 4 || n > len(params) {
			return false, false
		}
		switch binary.BigEndian.Uint16(params) {
		case paramIPv4, paramIPv6:
			single = single && string(params[4:n]) == source
		case paramHostName:
			single = false
		}
		params = params[min(len(params), (n+3)&^3):]
	}
	return true, single
}

// Refusable reports whether p, an SCTP packet, may be answered with a refusal (RFC 9260
// section 8.4).
func (p *Packet) Refusable(frame []byte) bool {
	c := p.Chunks(frame)
	return !c.Has(ChunkAbort) && !c.Has(ChunkShutdownComplete) && !c.Has(ChunkError) && !c.Has(ChunkCookieAck)
}

// Refuse turns the SCTP packet in frame, if refusable, into the refusal, and returns the
// new frame's length. An INIT gets an ABORT with the INIT's initiate tag (RFC 9260 section
// 5.1). A packet of no association gets an ABORT with the packet's tag and the T bit, or a
// SHUTDOWN COMPLETE (section 8.4).
func (p *Packet) Refuse(frame []byte) int {
	c := p.Chunks(frame)
	tag, chunk, reflected := SCTP(frame[p.L4:]).Tag(), uint8(ChunkAbort), uint8(1)
	switch {
	case p.Flags == ChunkInit:
		tag, reflected = c.InitiateTag, 0
	case p.Flags == ChunkShutdownAck:
		chunk = ChunkShutdownComplete
	}
	swapMACs(frame)
	ports := binary.LittleEndian.Uint32(frame[p.L4:])
	const n = SCTPLen + chunkLen
	off := reverseIP(frame, p, ProtoSCTP, n)
	l4 := frame[off : off+n]
	binary.LittleEndian.PutUint32(l4, ports<<16|ports>>16)
	binary.BigEndian.PutUint32(l4[4:], tag)
	binary.LittleEndian.PutUint32(l4[SCTPChecksum:], 0)
	l4[SCTPLen], l4[SCTPLen+1], l4[SCTPLen+2], l4[SCTPLen+3] = chunk, reflected, 0, chunkLen
	binary.LittleEndian.PutUint32(l4[SCTPChecksum:], CRC(0, l4))
	return off + n
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC adds bytes to a running CRC32c, 0 at first. It is stored in little-endian
// order (RFC 9260 appendix A), computed over a field of 0.
func CRC(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

var zeros [2048]byte

// CRCDelta is the change in bits of the CRC32c of an SCTP packet of n bytes, when the bits
// set in ports change in the first four bytes, the little-endian ports. A CRC
// is linear: the change goes through the zeros behind it as it would through the
// packet, which need not be read, and a wrong CRC stays wrong by the same bits.
func CRCDelta(ports uint32, n int) uint32 {
	for range 4 {
		ports = castagnoli[ports&0xff] ^ ports>>8
	}
	if ports == 0 {
		return 0
	}
	state := ^ports // Update inverts before and after
	for n -= 4; n > 0; n -= len(zeros) {
		state = crc32.Update(state, castagnoli, zeros[:min(n, len(zeros))])
	}
	return ^state
}

// sctpLen is the length of the SCTP packet that an error quotes the beginning of,
// 0 when the quote does not say.
func (q *Quote) sctpLen(frame []byte, p *Packet) int {
	ip := frame[q.L3:]
	switch {
	case p.Family == 4 && !IPv4(ip).Fragment():
		return IPv4(ip).TotalLen() - (q.L4 - q.L3)
	case p.Family == 6 && q.L4 == q.L3+IPv6Len:
		return IPv6(ip).PayloadLen()
	}
	return 0
}

// quotedSCTP is quotedTransport of an SCTP packet of n bytes.
func (t *ErrorTranslation) quotedSCTP(l4 []byte, n int) uint64 {
	changed := binary.LittleEndian.Uint32(l4) ^ t.Ports
	delta := put16(l4, uint16(t.Ports)) + put16(l4[2:], uint16(t.Ports>>16))
	if n < SCTPLen || len(l4) < SCTPLen {
		return delta
	}
	crc := l4[SCTPChecksum:]
	v := binary.LittleEndian.Uint32(crc) ^ CRCDelta(changed, n)
	return delta + put16(crc, uint16(v)) + put16(crc[2:], uint16(v>>16))
}
