package lb

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ports"
)

// senderMAC is the source address of frames that are traced: locally administered.
var senderMAC = [6]byte{2, 0, 0, 0, 0, 1}

// The sizes of the parts of a frame that is traced, without the Ethernet header.
const (
	traceRoom    = 64 // for transport header and options
	initChunkLen = 20
)

// build returns the frame of the packet that arrives so. TCP and UDP have Payload bytes of
// zeros, SCTP an INIT alone.
func (q *TraceQuery) build(a *ports.Arrival) []byte {
	f := append(append(make([]byte, 0, header.EthernetLen+header.TagLen+header.IPv6Len+traceRoom+q.Payload), a.MAC[:]...), senderMAC[:]...)
	if a.Tag != 0 {
		f = binary.BigEndian.AppendUint32(f, a.Tag)
	}
	l4 := q.transport()
	l3 := len(f) + 2
	pseudo := uint64(0)
	if q.Source.Addr().Is4() {
		f = binary.BigEndian.AppendUint16(f, header.EtherTypeIPv4)
		f = append(f, 0x45, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(header.IPv4Len+len(l4)))
		f = append(f, 0, 0, 0, 0, q.TTL, q.Proto, 0, 0)
		if q.DontFragment {
			f[l3+6] = 0x40
		}
		f = append(append(f, q.Source.Addr().AsSlice()...), q.Destination.Addr().AsSlice()...)
		putSum(f[l3+10:], header.Checksum(0, f[l3:]))
		pseudo = header.PseudoSum4(f[l3:], q.Proto, len(l4))
	} else {
		f = binary.BigEndian.AppendUint16(f, header.EtherTypeIPv6)
		f = append(f, 0x60, 0, 0, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(len(l4)))
		f = append(f, q.Proto, q.TTL)
		f = append(append(f, q.Source.Addr().AsSlice()...), q.Destination.Addr().AsSlice()...)
		pseudo = header.PseudoSum6(f[l3:], q.Proto, len(l4))
	}
	switch q.Proto {
	case header.ProtoTCP:
		putSum(l4[16:], header.Checksum(pseudo, l4))
	case header.ProtoUDP:
		sum := header.Checksum(pseudo, l4)
		if sum == 0 {
			sum = 0xffff
		}
		putSum(l4[6:], sum)
	case header.ProtoSCTP:
		binary.LittleEndian.PutUint32(l4[header.SCTPChecksum:], header.CRC(0, l4))
	}
	return append(f, l4...)
}

// putSum writes a checksum, which is of little-endian words.
func putSum(to []byte, sum uint16) { binary.LittleEndian.PutUint16(to, sum) }

// transport returns the transport header and what follows, without the checksum.
func (q *TraceQuery) transport() []byte {
	b := binary.BigEndian.AppendUint16(nil, q.Source.Port())
	b = binary.BigEndian.AppendUint16(b, q.Destination.Port())
	switch q.Proto {
	case header.ProtoTCP:
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, header.TCPLen/4<<4, q.Flags, 0xff, 0xff, 0, 0, 0, 0)
	case header.ProtoUDP:
		b = binary.BigEndian.AppendUint16(b, uint16(header.UDPLen+q.Payload))
		b = append(b, 0, 0)
	case header.ProtoSCTP:
		b = append(b, make([]byte, 8)...)
		chunk := make([]byte, initChunkLen) // tag, window, streams out and in, first TSN
		chunk[0], chunk[3], chunk[7], chunk[9], chunk[13], chunk[15], chunk[19] = header.ChunkInit, initChunkLen, 1, 0xff, 1, 1, 1
		return append(b, chunk...)
	}
	return append(b, make([]byte, q.Payload)...)
}
