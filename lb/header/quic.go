package header

import "encoding/binary"

// First byte of a QUIC packet (RFC 8999, RFC 9000 section 17).
const (
	quicLong  = 0x80
	quicFixed = 0x40 // also set in all packets; clear only by agreement (RFC 9287)
)

const (
	quicVersions = 5  // bytes before the connection IDs of a long header
	quicMaxID    = 20 // bytes of a connection ID in versions 1 and 2
)

// QUICLong reports whether a datagram that is QUIC begins with a long header.
func QUICLong(first uint8) bool { return first&quicLong != 0 }

// QUICDestination is the connection ID that a client's datagram is addressed to: of a short
// header, which does not have the ID's length, at most the longest ID that fits;
// nil if the datagram is not QUIC. Of coalesced packets all have the same.
func QUICDestination(datagram []byte) []byte {
	if len(datagram) == 0 || datagram[0]&quicFixed == 0 {
		return nil
	}
	if !QUICLong(datagram[0]) {
		return datagram[1:min(len(datagram), 1+quicMaxID)]
	}
	dst, _ := quicIDs(datagram)
	return dst
}

// QUICSource is the connection ID that the sender of a datagram has chosen, nil if there is
// none: only a long header has it. Version Negotiation repeats the client's ID, which is
// not the sender's choice.
func QUICSource(datagram []byte) []byte {
	if len(datagram) == 0 || datagram[0]&(quicLong|quicFixed) != quicLong|quicFixed {
		return nil
	}
	_, src := quicIDs(datagram)
	return src
}

// quicIDs are the connection IDs of a long header, nil if it is none or Version
// Negotiation, which is version 0.
func quicIDs(d []byte) (dst, src []byte) {
	if len(d) <= quicVersions || binary.BigEndian.Uint32(d[1:]) == 0 {
		return nil, nil
	}
	dst, rest := quicID(d[quicVersions:])
	src, _ = quicID(rest)
	if src == nil {
		return nil, nil
	}
	return dst, src
}

// quicID takes a connection ID off the front of d, behind the byte with the length:
// not nil unless there is none.
func quicID(d []byte) (id, rest []byte) {
	if len(d) == 0 || d[0] > quicMaxID || len(d) <= int(d[0]) {
		return nil, nil
	}
	n := 1 + int(d[0])
	return d[1:n], d[n:]
}
