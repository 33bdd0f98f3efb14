package pipeline

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/xsk"
)

// Lengths of the packets: the shortest Ethernet frame without its check sequence, and the
// next multiple of 16 that has room for the headers of TCP over IPv6.
const (
	packetLen4 = 60
	packetLen6 = 80
)

// packet has the bytes that differ between the packets of a trace: a trace is made before
// the clock runs and read in order, so that no cache miss of the generator is in the
// figures.
type packet struct {
	addrs uint64 // IPv6: the last 4 bytes of each; prefix6 is before them
	ports uint32
	flow  uint32 // goes into the payload
	ipSum uint16
	l4Sum uint16
}

// maker makes packets of a protocol.
type maker struct {
	template [packetLen6]byte
	ipv6     bool
	proto    uint8
	length   int // of a packet
	l4       int // offset of the transport header
	l4Sum    int // offset of the transport checksum
	payload  int // offset of the payload
}

const atIP = header.EthernetLen

// firstSeq is the first sequence number of both sides. It is between two milestones (see
// [conntrack.Milestone]): nearly all segments of a real connection are.
const firstSeq = 1 << 15

// newMaker makes the template; flags are for TCP only.
func newMaker(ipv6 bool, proto, flags uint8) *maker {
	m := &maker{ipv6: ipv6, proto: proto, length: packetLen4, l4: atIP + header.IPv4Len}
	f := &m.template
	copy(f[0:6], macWeir[:])
	copy(f[6:12], macRouter[:])
	if ipv6 {
		m.length, m.l4 = packetLen6, atIP+header.IPv6Len
		binary.BigEndian.PutUint16(f[12:], header.EtherTypeIPv6)
		f[atIP] = 0x60
		binary.BigEndian.PutUint16(f[atIP+4:], uint16(m.length-m.l4))
		f[atIP+6], f[atIP+7] = proto, 64
		copy(f[atIP+8:], prefix6[:12])
		copy(f[atIP+24:], prefix6[:12])
	} else {
		binary.BigEndian.PutUint16(f[12:], header.EtherTypeIPv4)
		f[atIP] = 0x45
		binary.BigEndian.PutUint16(f[atIP+2:], uint16(m.length-atIP))
		f[atIP+6] = 0x40 // DF
		f[atIP+8], f[atIP+9] = 64, proto
	}
	atL4 := m.l4
	m.l4Sum, m.payload = atL4+6, atL4+header.UDPLen
	if proto == header.ProtoTCP {
		m.l4Sum, m.payload = atL4+16, atL4+header.TCPLen
		f[atL4+12], f[atL4+13] = 5<<4, flags
		// Both sides begin at the same number: the numbers of all packets belong to the
		// same connection.
		seq := uint32(firstSeq)
		if flags&header.SYN == 0 {
			seq++
		}
		binary.BigEndian.PutUint32(f[atL4+4:], seq)
		ack := uint32(firstSeq + 1)
		if flags&header.SYN == 0 {
			ack += uint32(m.length - m.payload) // the SYN-ACK has a payload too
		}
		if flags&header.ACK != 0 {
			binary.BigEndian.PutUint32(f[atL4+8:], ack)
		}
	} else {
		binary.BigEndian.PutUint16(f[atL4+4:], uint16(m.length-atL4))
	}
	return m
}

// make makes the packet from src to dst, both in host order, of a flow.
func (m *maker) make(src uint32, sport uint16, dst uint32, dport uint16, flow uint32) packet {
	var buf [packetLen6]byte
	f := buf[:m.length]
	p := packet{flow: flow}
	var b [12]byte
	binary.BigEndian.PutUint32(b[0:], src)
	binary.BigEndian.PutUint32(b[4:], dst)
	binary.BigEndian.PutUint16(b[8:], sport)
	binary.BigEndian.PutUint16(b[10:], dport)
	p.addrs, p.ports = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint32(b[8:])
	m.write(f, &p)
	var pseudo uint64
	if m.ipv6 {
		pseudo = header.PseudoSum6(f[atIP:], m.proto, m.length-m.l4)
	} else {
		p.ipSum = header.Checksum(0, f[atIP:m.l4])
		pseudo = header.PseudoSum4(f[atIP:], m.proto, m.length-m.l4)
	}
	p.l4Sum = header.Checksum(pseudo, f[m.l4:])
	if p.l4Sum == 0 && m.proto == header.ProtoUDP {
		p.l4Sum = 0xffff // 0 would be none
	}
	return p
}

// write writes a packet into a frame.
func (m *maker) write(frame []byte, p *packet) {
	if m.ipv6 {
		m.write6(frame, p)
		return
	}
	const atL4 = atIP + header.IPv4Len
	f := (*[packetLen4]byte)(frame)
	*f = [packetLen4]byte(m.template[:])
	binary.LittleEndian.PutUint16(f[atIP+10:], p.ipSum)
	binary.LittleEndian.PutUint64(f[atIP+12:], p.addrs)
	binary.LittleEndian.PutUint32(f[atL4:], p.ports)
	binary.LittleEndian.PutUint16(f[m.l4Sum:], p.l4Sum)
	binary.LittleEndian.PutUint32(f[m.payload:], p.flow)
}

// write6 is write of an IPv6 packet.
func (m *maker) write6(frame []byte, p *packet) {
	const atL4 = atIP + header.IPv6Len
	f := (*[packetLen6]byte)(frame)
	*f = m.template
	binary.LittleEndian.PutUint32(f[atIP+20:], uint32(p.addrs))
	binary.LittleEndian.PutUint32(f[atIP+36:], uint32(p.addrs>>32))
	binary.LittleEndian.PutUint32(f[atL4:], p.ports)
	binary.LittleEndian.PutUint16(f[m.l4Sum:], p.l4Sum)
	binary.LittleEndian.PutUint32(f[m.payload:], p.flow)
}

// request is a packet from flow n's client to the frontend.
func (m *maker) request(n uint32) packet {
	addr, port := client(n)
	return m.make(addr, port, vipHost, vipPort, n)
}

// answer is a packet from flow n's endpoint, in dnat to the client's own address.
func (m *maker) answer(n uint32, c choice) packet {
	to, port := snatNet+uint32(c.snat), c.port
	if c.client {
		to, port = client(n)
	}
	return m.make(endpointNet+uint32(c.endpoint), endpointPort, to, port, n)
}

// answerWithoutFlow is a packet to an SNAT port that belongs to no flow.
func (m *maker) answerWithoutFlow(n uint32) packet {
	return m.make(endpointNet+uint32(n%endpoints), uint16(20000+n/endpoints%20000), snatNet+n%snatAddresses, uint16(snatLo+n%60000), n)
}

// give writes packets into frames of a queue, and their descriptors into the queue's next
// input.
func (m *maker) give(q *lbtest.Memory, memory []byte, packets []packet) {
	n := len(q.Empty) - len(packets)
	frames := q.Empty[n:]
	q.Empty = q.Empty[:n]
	for i := range packets {
		at := frames[i] + xsk.Headroom
		m.write(memory[at:], &packets[i])
		q.In = append(q.In, xsk.Desc{Addr: at, Len: uint32(m.length)})
	}
}

// takeBack undoes give.
func takeBack(q *lbtest.Memory) {
	for _, d := range q.In {
		q.Empty = append(q.Empty, d.Addr-xsk.Headroom)
	}
	q.In = q.In[:0]
}
