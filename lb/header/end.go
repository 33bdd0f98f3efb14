package header

import "encoding/binary"

// ResetReceiver turns frame, the headers of a TCP packet up to the end of the fixed TCP header, into
// the RST with number seq by which the sender of the packet ends the connection. acknowledges keeps
// the packet's acknowledgment: a receiver in SYN_SENT accepts no other RST.
func ResetReceiver(frame []byte, p *Packet, seq uint32, acknowledges bool) {
	l4 := frame[p.L4:]
	binary.BigEndian.PutUint32(l4[4:], seq)
	flags := uint8(RST)
	if acknowledges && l4[13]&ACK != 0 {
		flags |= ACK
	} else {
		clear(l4[8:12])
	}
	clear(l4[12:])
	l4[12], l4[13] = TCPLen/4<<4, flags
	shortenIP(frame, p)
	sealL4(frame, p, ProtoTCP, int(p.L4), TCPLen, 16)
}

// AbortLen is the length of an SCTP packet with nothing but an ABORT.
const AbortLen = SCTPLen + chunkLen

// AbortReceiver turns frame, the headers of an SCTP packet up to AbortLen bytes of SCTP, into the
// ABORT by which the sender of the packet ends the association. The tag of the packet is the
// receiver's (RFC 9260 section 8.5.1).
func AbortReceiver(frame []byte, p *Packet) {
	l4 := frame[p.L4:]
	l4[SCTPLen], l4[SCTPLen+1], l4[SCTPLen+2], l4[SCTPLen+3] = ChunkAbort, 0, 0, chunkLen
	binary.LittleEndian.PutUint32(l4[SCTPChecksum:], 0)
	binary.LittleEndian.PutUint32(l4[SCTPChecksum:], CRC(0, l4))
	shortenIP(frame, p)
}

// shortenIP writes the length of frame, an IP packet whose end was cut off, into the IP header.
func shortenIP(frame []byte, p *Packet) {
	ip := frame[p.L3:]
	if p.Family == 6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len))
		return
	}
	headers := ip[:p.L4-p.L3]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, headers))
}
