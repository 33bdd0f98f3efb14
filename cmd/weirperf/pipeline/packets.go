package pipeline

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/xsk"
)

// packetLen is the shortest Ethernet frame without its check sequence.
const packetLen = 60

// packet has the bytes that differ between the packets of a trace: a trace is made before
// the clock runs and read in order, so that no cache miss of the generator is in the
// figures.
type packet struct {
	addrs uint64
	ports uint32
	flow  uint32 // goes into the payload
	ipSum uint16
	l4Sum uint16
}

// maker makes packets of a protocol.
type maker struct {
	template [packetLen]byte
	l4Sum    int // offset of the transport checksum
	payload  int // offset of the payload
}

const (
	atIP = header.EthernetLen
	atL4 = atIP + header.IPv4Len
)

// firstSeq is the first sequence number of both sides. It is between two milestones (see
// [conntrack.Milestone]): nearly all segments of a real connection are.
const firstSeq = 1 << 15

// newMaker makes the template; flags are for TCP only.
func newMaker(proto, flags uint8) *maker {
	m := &maker{l4Sum: atL4 + 6, payload: atL4 + header.UDPLen}
	f := &m.template
	copy(f[0:6], macWeir[:])
	copy(f[6:12], macRouter[:])
	binary.BigEndian.PutUint16(f[12:], header.EtherTypeIPv4)
	f[atIP] = 0x45
	binary.BigEndian.PutUint16(f[atIP+2:], packetLen-atIP)
	f[atIP+6] = 0x40 // DF
	f[atIP+8], f[atIP+9] = 64, proto
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
			ack += uint32(packetLen - m.payload) // the SYN-ACK has a payload too
		}
		if flags&header.ACK != 0 {
			binary.BigEndian.PutUint32(f[atL4+8:], ack)
		}
	} else {
		binary.BigEndian.PutUint16(f[atL4+4:], packetLen-atL4)
	}
	return m
}

// make makes the packet from src to dst, both in host order, of a flow.
func (m *maker) make(src uint32, sport uint16, dst uint32, dport uint16, flow uint32) packet {
	var f [packetLen]byte
	p := packet{flow: flow}
	var b [12]byte
	binary.BigEndian.PutUint32(b[0:], src)
	binary.BigEndian.PutUint32(b[4:], dst)
	binary.BigEndian.PutUint16(b[8:], sport)
	binary.BigEndian.PutUint16(b[10:], dport)
	p.addrs, p.ports = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint32(b[8:])
	m.write(f[:], &p)
	p.ipSum = header.Checksum(0, f[atIP:atL4])
	p.l4Sum = header.Checksum(header.PseudoSum4(f[atIP:], f[atIP+9], packetLen-atL4), f[atL4:])
	if p.l4Sum == 0 && f[atIP+9] == header.ProtoUDP {
		p.l4Sum = 0xffff // 0 would be none
	}
	return p
}

// write writes a packet into a frame.
func (m *maker) write(frame []byte, p *packet) {
	f := (*[packetLen]byte)(frame)
	*f = m.template
	binary.LittleEndian.PutUint16(f[atIP+10:], p.ipSum)
	binary.LittleEndian.PutUint64(f[atIP+12:], p.addrs)
	binary.LittleEndian.PutUint32(f[atL4:], p.ports)
	binary.LittleEndian.PutUint16(f[m.l4Sum:], p.l4Sum)
	binary.LittleEndian.PutUint32(f[m.payload:], p.flow)
}

// request is a packet from flow n's client to the frontend.
func (m *maker) request(n uint32) packet {
	addr, port := client(n)
	return m.make(addr, port, host(vip.Addr().As4()), vip.Port(), n)
}

// answer is a packet from flow n's endpoint.
func (m *maker) answer(n uint32, c choice) packet {
	return m.make(endpointNet+uint32(c.endpoint), endpointPort, snatNet+uint32(c.snat), c.port, n)
}

// answerWithoutFlow is a packet to an SNAT port that belongs to no flow.
func (m *maker) answerWithoutFlow(n uint32) packet {
	return m.make(endpointNet+uint32(n%endpoints), uint16(20000+n/endpoints%20000), snatNet+n%snatAddresses, uint16(snatLo+n%60000), n)
}

func host(a [4]byte) uint32 { return binary.BigEndian.Uint32(a[:]) }

// give writes packets into frames of a queue, and their descriptors into the queue's next
// input.
func (m *maker) give(q *lbtest.Memory, memory []byte, packets []packet) {
	n := len(q.Empty) - len(packets)
	frames := q.Empty[n:]
	q.Empty = q.Empty[:n]
	for i := range packets {
		at := frames[i] + xsk.Headroom
		m.write(memory[at:], &packets[i])
		q.In = append(q.In, xsk.Desc{Addr: at, Len: packetLen})
	}
}

// takeBack undoes give.
func takeBack(q *lbtest.Memory) {
	for _, d := range q.In {
		q.Empty = append(q.Empty, d.Addr-xsk.Headroom)
	}
	q.In = q.In[:0]
}
