package pipeline

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
)

// mode is a forwarding mode as the command line names it.
type mode struct {
	name string
	conntrack.Mode
}

// modes are all. In dnat port 1 stands for the veth pair into the kernel.
var modes = []mode{
	{"nat", conntrack.ModeNAT}, {"dnat", conntrack.ModeDNAT}, {"l2dsr", conntrack.ModeL2DSR},
	{"ipip", conntrack.ModeIPIP}, {"gue", conntrack.ModeGUE},
}

func modeNames() (names []string) {
	for _, m := range modes {
		names = append(names, m.name)
	}
	return names
}

func modeNamed(name string) mode {
	for _, m := range modes {
		if m.name == name {
			return m
		}
	}
	return mode{}
}

// answers says whether those of endpoints come back through Weir.
func (m mode) answers() bool { return !m.DSR() }

// outerLen is how many bytes go between the Ethernet header and the packet.
func (m mode) outerLen() int {
	switch m.Mode {
	case conntrack.ModeIPIP:
		return header.IPv4Len
	case conntrack.ModeGUE:
		return header.IPv4Len + header.UDPLen + header.GUELen
	}
	return 0
}

// choice is the load balancer's choice for a flow; in nat it is where the answers
// come from and go to.
type choice struct {
	endpoint uint16
	snat     uint16 // which address; 0 in l2dsr
	port     uint16 // the source port on it; in gue the outer header's, else 0
	client   bool   // dnat: the client's address and port in place of snat and port
}

const maxFrame = packetLen6 + header.MaxEncapLen

// chosen reads the flow, and the choice for it, from a request as it left.
func (b *bench) chosen(f []byte, m *maker) (flow uint32, c choice, err error) {
	at := b.mode.outerLen()
	if len(f) != m.length+at {
		return 0, c, fmt.Errorf("a packet of %d bytes came out: %x", len(f), f)
	}
	flow = binary.LittleEndian.Uint32(f[at+m.payload:])
	if flow >= uint32(b.n) {
		return 0, c, fmt.Errorf("a packet of flow %d came out: %x", flow, f)
	}
	if b.mode.Mode == conntrack.ModeL2DSR {
		c.endpoint = uint16(f[5])
		return flow, c, nil
	}
	src, dst, l4 := atIP+12, atIP+16, atIP+header.IPv4Len
	if m.ipv6 {
		src, dst, l4 = atIP+20, atIP+36, m.l4
	}
	c.endpoint = uint16(binary.BigEndian.Uint32(f[dst:]) - endpointNet)
	if c.client = b.mode.Mode == conntrack.ModeDNAT; c.client {
		return flow, c, nil
	}
	c.snat = uint16(binary.BigEndian.Uint32(f[src:]) - snatNet)
	if b.mode.Mode != conntrack.ModeIPIP {
		c.port = binary.BigEndian.Uint16(f[l4:])
	}
	if c.snat >= snatAddresses || c.endpoint >= endpoints {
		return 0, c, fmt.Errorf("flow %d is sent to where nobody is: %x", flow, f)
	}
	return flow, c, nil
}

// asSent is the frame in which a flow's packet is to leave, made anew: a request
// towards the endpoint, or an answer towards the client. It is written to frame.
func (b *bench) asSent(frame []byte, port int, m *maker, flow uint32) []byte {
	c := b.choices[flow]
	var p packet
	switch addr, sport := client(flow); {
	case port == portClient:
		p = m.make(vipHost, vipPort, addr, sport, flow)
	case c.client:
		p = m.make(addr, sport, endpointNet+uint32(c.endpoint), endpointPort, flow)
	case b.mode.answers():
		p = m.make(snatNet+uint32(c.snat), c.port, endpointNet+uint32(c.endpoint), endpointPort, flow)
	default:
		p = m.request(flow)
	}
	at := 0
	if port == portServer {
		at = b.mode.outerLen()
	}
	f := frame[:m.length+at]
	m.write(f[at:], &p)
	etherType := uint16(header.EtherTypeIPv4)
	if ip := f[at+atIP:]; m.ipv6 {
		ip[7]-- // the hop limit
		etherType = header.EtherTypeIPv6
	} else {
		ip[8]-- // the TTL
		putIPv4Sum(ip)
	}
	if at > 0 {
		b.putOuter(f, c)
	}
	copy(f[6:12], macWeir[:])
	copy(f, macRouter[:])
	if port == portServer {
		mac := endpointMAC(uint32(c.endpoint))
		if c.client {
			mac = macKernel
		}
		copy(f, mac[:])
	}
	binary.BigEndian.PutUint16(f[12:], etherType)
	return f
}

// putOuter writes the outer header of ipip or gue into frame f.
func (b *bench) putOuter(f []byte, c choice) {
	ip := f[atIP:]
	clear(ip[:b.mode.outerLen()])
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, header.ProtoIPIP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint32(ip[12:], snatNet+uint32(c.snat))
	binary.BigEndian.PutUint32(ip[16:], endpointNet+uint32(c.endpoint))
	if b.mode.Mode == conntrack.ModeGUE {
		ip[9] = header.ProtoUDP
		udp := ip[header.IPv4Len:]
		binary.BigEndian.PutUint16(udp, c.port)
		binary.BigEndian.PutUint16(udp[2:], header.GUEPort)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		udp[header.UDPLen+1] = header.ProtoIPIP
	}
	putIPv4Sum(ip)
}

func putIPv4Sum(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:header.IPv4Len]))
}

// checkOut reports whether each of n packets that left by a port, made by m, has the
// bytes that are due to its flow.
func (b *bench) checkOut(q *lbtest.Memory, port int, m *maker, n int) error {
	if len(q.Out) != n {
		return fmt.Errorf("%d packets of %d came out", len(q.Out), n)
	}
	var buf [maxFrame]byte
	at := 0
	if port == portServer {
		at = b.mode.outerLen()
	}
	for _, d := range q.Out {
		got := b.m.Umem().Data(d)
		if len(got) != m.length+at {
			return fmt.Errorf("a packet of %d bytes came out: %x", len(got), got)
		}
		flow := binary.LittleEndian.Uint32(got[at+m.payload:])
		if flow >= uint32(b.n) {
			return fmt.Errorf("a packet of flow %d came out: %x", flow, got)
		}
		if want := b.asSent(buf[:], port, m, flow); !bytes.Equal(got, want) {
			return fmt.Errorf("flow %d: %x came out, want %x", flow, got, want)
		}
	}
	return nil
}
