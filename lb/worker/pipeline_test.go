package worker

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gaissmai/bart"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// control is the owner of workers: what they share, and the snapshots that they read.
type control struct {
	flows    *conntrack.Table
	tables   *table.Table
	router   *route.Watcher
	memory   *xsk.Umem
	affinity *affinity.Store
	servers  *affinity.Store
	node     atomic.Pointer[Node]
	vips     atomic.Pointer[bart.Lite]
}

// newWorker makes a worker without queues or frames.
func (l *control) newWorker(id, ports int) *Worker {
	return New(Config{
		ID: id, CPU: -1, Ports: ports, MaxPorts: 64,
		Flows: l.flows, Frontends: l.tables, Affinity: l.affinity, CIDs: l.servers,
		Router: l.router, Memory: l.memory, Node: &l.node, VIPs: &l.vips,
		EndpointRemovalGrace: 10 * time.Second, MinPathMTU: 1280,
	})
}

// drain leaves new connections to the kernel, as lb.LB.Drain does.
func (l *control) drain() {
	node := *l.node.Load()
	node.Draining = true
	l.node.Store(&node)
}

// bench is a load balancer in memory: port 0 towards clients, port 1 towards
// endpoints, port 2 the host veth.
type bench struct {
	t  testing.TB
	lb *control
	w  *Worker
	q  [3]*lbtest.Memory
}

const (
	portClient = iota
	portServer
	portHost
)

var (
	macClient = net.HardwareAddr{2, 0, 0, 0, 0, 0x0c}
	macWeir   = net.HardwareAddr{2, 0, 0, 0, 0, 0x10}
	macServer = net.HardwareAddr{2, 0, 0, 0, 0, 0x0e}
	macWeirB  = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
	macKernel = net.HardwareAddr{2, 0, 0, 0, 0, 0x20}
	macXDP    = net.HardwareAddr{2, 0, 0, 0, 0, 0x21}

	client4   = netip.MustParseAddr("192.0.2.7")
	client6   = netip.MustParseAddr("2001:db8::7")
	node4     = netip.MustParseAddr("198.51.100.1")
	node6     = netip.MustParseAddr("2001:db8:1::1")
	snat4     = netip.MustParseAddr("10.1.0.1")
	snat6     = netip.MustParseAddr("2001:db8:2::1")
	endpoint4 = netip.MustParseAddr("10.1.0.5")
	endpoint6 = netip.MustParseAddr("2001:db8:2::5")
	empty4    = netip.MustParseAddr("198.51.100.2")
)

func macOf(m net.HardwareAddr) [6]byte { return [6]byte(m) }

func newBench(t testing.TB) *bench { return newBenchOf(t, 1) }

// newBenchOf leaves room for more workers; the first one is made.
func newBenchOf(t testing.TB, workers int) *bench {
	t.Helper()
	flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1 << 14, Workers: workers, MaxEndpoints: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flows.Close() })
	memory, err := xsk.NewUmem(4096, xsk.FrameSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memory.Close() })
	via := func(port int, source netip.Addr) route.Path {
		return route.Path{Kind: route.Attached, Port: port, Interface: port + 1, MTU: 1500, Source: source, LocalSource: source}
	}
	router := route.Static(map[netip.Prefix]route.Path{
		netip.MustParsePrefix("192.0.2.0/24"):    via(portClient, node4),
		netip.MustParsePrefix("2001:db8::/64"):   via(portClient, node6),
		netip.MustParsePrefix("44.0.0.0/8"):      {Kind: route.Attached, Port: portClient, Interface: portClient + 1, NextHop: client4, MTU: 1500, Source: node4, LocalSource: node4},
		netip.MustParsePrefix("10.1.0.0/24"):     via(portServer, snat4),
		netip.MustParsePrefix("2001:db8:2::/64"): via(portServer, snat6),
		netip.MustParsePrefix("203.0.113.0/24"):  {Kind: route.Blackhole},
		netip.MustParsePrefix("192.0.2.255/32"):  {Kind: route.NotUnicast},
		netip.PrefixFrom(node4, 32):              {Kind: route.Host, Port: portHost, Local: true, MTU: 1500},
		netip.PrefixFrom(narrow4, 32):            {Kind: route.Attached, Port: portServer, MTU: 1280, Source: snat4, LocalSource: snat4},
	}, []route.StaticHop{
		{Port: portClient, NextHop: client4, MAC: macOf(macClient), Src: macOf(macWeir), MTU: 1500},
		{Port: portClient, NextHop: client6, MAC: macOf(macClient), Src: macOf(macWeir), MTU: 1500},
		{Port: portServer, NextHop: endpoint4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1400},
		{Port: portServer, NextHop: narrow4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1400},
		{Port: portServer, NextHop: endpoint6, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1400},
	})
	l := &control{
		flows: flows, memory: memory, router: router,
		tables: table.New(table.Config{Tick: flows.Tick}), affinity: affinity.New(1<<10, [2]uint64{}), servers: affinity.New(1<<10, [2]uint64{}),
	}
	l.vips.Store(new(bart.Lite))
	l.node.Store(benchNode(61000, 65535))
	b := &bench{t: t, lb: l, w: l.newWorker(0, 3)}
	b.w.SetHostVeth(portHost, macOf(macKernel), macOf(macXDP))
	for i := range b.q {
		b.q[i] = &lbtest.Memory{}
		b.w.ports[i].Queue, b.w.ports[i].Ring, b.w.ports[i].Metadata = b.q[i], 512, i != portServer
		b.w.ports[i].Interface = int32(i + 1)
	}
	b.w.links = []*link{nil}
	for i := range memory.Frames() {
		b.w.free.push(memory.Addr(i))
	}
	b.serve(endpoint4, endpoint6)
	return b
}

// benchNode is the node of a bench, with the range of ports that new flows get, and
// the configured SNAT addresses.
func benchNode(lo, hi uint16, pool ...netip.Addr) *Node {
	cfg := snat.Config{Lo: lo, Hi: hi}
	for _, a := range pool {
		cfg.Pool = append(cfg.Pool, snat.Source{Addr: a, Lo: lo, Hi: hi})
	}
	for _, a := range []netip.Addr{snat4, snat6} {
		cfg.Owned = append(cfg.Owned, snat.Source{Addr: a, Lo: 61000, Hi: 65535})
	}
	return &Node{Addresses: snat.New(cfg)}
}

// serve publishes the Services: TCP and UDP port 80 on the node's addresses,
// and an empty one on empty4.
func (b *bench) serve(v4, v6 netip.Addr) {
	b.t.Helper()
	pool := func(a netip.Addr) table.Pool {
		if !a.IsValid() {
			return table.Pool{}
		}
		return table.Pool{Endpoints: []table.Endpoint{{AddrPort: netip.AddrPortFrom(a, 8080)}}}
	}
	s := table.Service{Name: "ns/web", Pools: []table.Pool{pool(v4), pool(v6), {}, {OnEmpty: table.Drop}}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		s.Frontends = append(s.Frontends,
			table.Frontend{AddrPort: netip.AddrPortFrom(node4, 80), Proto: proto, Pool: 0},
			table.Frontend{AddrPort: netip.AddrPortFrom(node6, 80), Proto: proto, Pool: 1},
			table.Frontend{AddrPort: netip.AddrPortFrom(empty4, 80), Proto: proto, Pool: 2},
			table.Frontend{AddrPort: netip.AddrPortFrom(empty4, 81), Proto: proto, Pool: 3})
	}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// packet is a packet to be built, and to be compared with.
type packet struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.AddrPort
	proto          uint8
	ttl            uint8
	flags          uint8
	seq, ack       uint32
	payload        int
	data           []byte // the payload, if it matters
	df             bool
	partial        bool // only the pseudo header's sum in the checksum field
	noSum          bool // UDP without a checksum
	mss            uint16
}

func (p packet) build(t testing.TB) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: p.srcMAC, DstMAC: p.dstMAC, EthernetType: layers.EthernetTypeIPv4}
	if p.ttl == 0 {
		p.ttl = 64
	}
	if p.data != nil {
		p.payload = len(p.data)
	}
	var l3 gopacket.SerializableLayer
	var nl gopacket.NetworkLayer
	n := header.EthernetLen + p.payload
	if p.src.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: p.ttl, Protocol: layers.IPProtocol(p.proto), SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		if p.df {
			ip.Flags = layers.IPv4DontFragment
		}
		l3, nl = ip, ip
		n += header.IPv4Len
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: p.ttl, NextHeader: layers.IPProtocol(p.proto), SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		l3, nl = ip, ip
		n += header.IPv6Len
	}
	payload := make([]byte, p.payload)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	copy(payload, p.data)
	var l4 gopacket.SerializableLayer
	at := 16
	if p.proto == header.ProtoTCP {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.src.Port()), DstPort: layers.TCPPort(p.dst.Port()), Seq: p.seq, Ack: p.ack, Window: 512,
			SYN: p.flags&header.SYN != 0, ACK: p.flags&header.ACK != 0, FIN: p.flags&header.FIN != 0, RST: p.flags&header.RST != 0}
		if p.mss != 0 {
			tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(p.mss >> 8), byte(p.mss)}}}
			n += 4
		}
		_ = tcp.SetNetworkLayerForChecksum(nl)
		l4 = tcp
		n += header.TCPLen
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.src.Port()), DstPort: layers.UDPPort(p.dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(nl)
		l4 = udp
		at = 6
		n += header.UDPLen
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, l3, l4, gopacket.Payload(payload))
	if err != nil {
		t.Fatal(err)
	}
	f := bytes.Clone(buf.Bytes()[:n])
	var parsed header.Packet
	header.Parse(f, len(f), &parsed)
	field := f[int(parsed.L4)+at:]
	switch {
	case p.noSum:
		field[0], field[1] = 0, 0
	case p.proto != header.ProtoTCP && field[0]|field[1] == 0:
		field[0], field[1] = 0xff, 0xff // RFC 768; gopacket leaves 0
	case p.partial:
		sum := header.PseudoSum4
		if parsed.Family == 6 {
			sum = header.PseudoSum6
		}
		c := header.Fold(sum(f[header.EthernetLen:], p.proto, parsed.L4Len()))
		field[0], field[1] = byte(c), byte(c>>8)
	}
	return f
}

// give puts a frame on a port's receive ring.
func (b *bench) give(port int, frame []byte) {
	q := b.q[port]
	if len(q.Empty) == 0 {
		b.w.Refill()
	}
	a := q.Empty[len(q.Empty)-1] + xsk.Headroom
	q.Empty = q.Empty[:len(q.Empty)-1]
	copy(b.w.area[a:], frame)
	q.In = append(q.In, xsk.Desc{Addr: a, Len: uint32(len(frame))})
}

// round runs one round of the worker and returns what left, by port.
func (b *bench) round() [3][][]byte {
	b.w.beginRound()
	return b.roundAtTheSameTime()
}

// roundAtTheSameTime is a round in which the clock stands still.
func (b *bench) roundAtTheSameTime() [3][][]byte {
	b.w.receive()
	b.w.releaseQueued()
	b.w.endRound()
	var out [3][][]byte
	for i, q := range b.q {
		for _, d := range q.Out {
			f := bytes.Clone(b.w.area[d.Addr : d.Addr+uint64(d.Len)])
			if d.Options&xsk.WithMetadata != 0 {
				completeByMetadata(b.w.area[d.Addr-xsk.MetadataLen:d.Addr], f)
			}
			out[i] = append(out[i], f)
		}
		q.Out = q.Out[:0]
	}
	return out
}

// completeByMetadata does what the kernel does for XDP_TXMD_FLAGS_CHECKSUM.
func completeByMetadata(meta, f []byte) {
	start := int(meta[8]) | int(meta[9])<<8
	off := int(meta[10]) | int(meta[11])<<8
	c := header.Checksum(0, f[start:])
	if c == 0 {
		c = 0xffff // as skb_checksum_help does
	}
	f[start+off], f[start+off+1] = byte(c), byte(c>>8)
}

// one sends a frame in and expects exactly one out, of the given port.
func (b *bench) one(in int, frame []byte, out int) []byte {
	b.t.Helper()
	b.give(in, frame)
	got := b.round()
	for i := range got {
		want := 0
		if i == out {
			want = 1
		}
		if len(got[i]) != want {
			b.t.Fatalf("port %d sent %d frames, want %d (drops %v)", i, len(got[i]), want, b.drops())
		}
	}
	if out < 0 {
		return nil
	}
	return got[out][0]
}

func (b *bench) drops() map[string]uint64 { return b.w.published.read().Drops }

// framesHome checks that no frame was lost or doubled.
func (b *bench) framesHome() {
	b.t.Helper()
	seen := map[uint64]string{}
	note := func(a uint64, where string) {
		a &^= b.w.frameMask
		if other, twice := seen[a]; twice {
			b.t.Fatalf("frame %#x is in two places: %s and %s", a, other, where)
		}
		seen[a] = where
	}
	for _, a := range b.w.free.addr {
		note(a, "free")
	}
	for i, q := range b.q {
		for _, a := range q.Empty {
			note(a, fmt.Sprintf("fill ring %d", i))
		}
		for _, a := range q.Done {
			note(a, fmt.Sprintf("completion ring %d", i))
		}
		for _, d := range q.In {
			note(d.Addr, fmt.Sprintf("receive ring %d", i))
		}
	}
	for _, h := range b.w.neighQueue {
		for _, d := range h.bufs() {
			note(d.Addr, "held")
		}
	}
	for _, x := range b.w.fragQueue.list {
		for _, d := range x.bufs() {
			note(d.Addr, "waiting")
		}
	}
	if len(seen) != b.lb.memory.Frames() {
		b.t.Fatalf("%d frames accounted for, want %d", len(seen), b.lb.memory.Frames())
	}
}

func ap(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// request and answer are the packets of one connection of each kind.
func request(v6 bool, proto uint8) packet {
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 80), proto: proto, payload: 33, df: true}
	if v6 {
		p.src, p.dst = ap(client6, 40000), ap(node6, 80)
	}
	if proto == header.ProtoTCP {
		p.flags, p.seq, p.payload = header.SYN, 1000, 0
	}
	return p
}

func TestAFlowIsTranslatedBothWays(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("v6=%v/proto=%d/partial=%v", v6, proto, partial), func(t *testing.T) {
					b := newBench(t)
					req := request(v6, proto)
					req.partial = partial
					f := b.one(portClient, req.build(t), portServer)

					snat, ep := snat4, endpoint4
					if v6 {
						snat, ep = snat6, endpoint6
					}
					var p header.Packet
					if header.Parse(f, len(f), &p) != header.OK {
						t.Fatal("what was sent does not parse")
					}
					port := uint16(f[p.L4])<<8 | uint16(f[p.L4+1])
					if port < 61000 {
						t.Errorf("SNAT port %d", port)
					}
					want := req
					want.srcMAC, want.dstMAC, want.ttl, want.partial = macWeirB, macServer, 63, false
					want.src, want.dst = ap(snat, port), ap(ep, 8080)
					if w := want.build(t); !bytes.Equal(f, w) {
						t.Errorf("to the endpoint:\n got %x\nwant %x", f, w)
					}

					ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(ep, 8080), dst: ap(snat, port), proto: proto, payload: 200, partial: partial, df: true}
					if proto == header.ProtoTCP {
						ans.flags, ans.seq, ans.ack, ans.payload = header.SYN|header.ACK, 5000, 1001, 0
					}
					g := b.one(portServer, ans.build(t), portClient)
					back := ans
					back.srcMAC, back.dstMAC, back.ttl, back.partial = macWeir, macClient, 63, false
					back.src, back.dst = req.dst, req.src
					if w := back.build(t); !bytes.Equal(g, w) {
						t.Errorf("to the client:\n got %x\nwant %x", g, w)
					}
					if n := b.lb.flows.Flows(); n != 1 {
						t.Errorf("%d flows", n)
					}
					b.framesHome()
				})
			}
		}
	}
}

func TestUDPWithoutChecksumStaysWithout(t *testing.T) {
	b := newBench(t)
	req := request(false, header.ProtoUDP)
	req.noSum = true
	f := b.one(portClient, req.build(t), portServer)
	if f[40] != 0 || f[41] != 0 {
		t.Errorf("checksum %x", f[40:42])
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name   string
		in     int
		packet packet
		out    int // -1: nothing
		reason Drop
		check  func(t *testing.T, f []byte)
	}{
		{"TCP to an empty frontend gets RST", portClient, packet{dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN}, portClient, DropNoEndpoint, isReset},
		{"UDP to an empty frontend gets ICMP", portClient, packet{dst: ap(empty4, 80), proto: header.ProtoUDP}, portClient, DropNoEndpoint, isICMP(3, 3)},
		{"an empty Local policy is silent", portClient, packet{dst: ap(empty4, 81), proto: header.ProtoTCP, flags: header.SYN}, -1, DropNoLocalEndpoint, nil},
		{"unknown TCP to a frontend gets RST after the takeover", portClient, packet{dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.ACK}, portClient, DropNoConntrackEntry, isReset},
		{"unknown RST is not answered", portClient, packet{dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.RST}, -1, DropNoConntrackEntry, nil},
		{"stray TCP to an SNAT port gets RST", portServer, packet{src: ap(endpoint4, 8080), dst: ap(snat4, 62000), proto: header.ProtoTCP, flags: header.ACK}, portServer, DropNoConntrackEntry, isReset},
		{"stray UDP to an SNAT port is dropped", portServer, packet{src: ap(endpoint4, 8080), dst: ap(snat4, 62000), proto: header.ProtoUDP}, -1, DropNoConntrackEntry, nil},
		{"TTL 1 gets ICMP time exceeded", portClient, packet{dst: ap(node4, 80), proto: header.ProtoUDP, ttl: 1}, portClient, DropTTL, isICMP(11, 0)},
		{"too large with DF gets ICMP fragmentation needed", portClient, packet{dst: ap(node4, 80), proto: header.ProtoUDP, payload: 1450, df: true}, portClient, DropTooBig, isICMP(3, 4)},
		{"not a frontend from the host veth is dropped", portHost, packet{dst: ap(node4, 22), proto: header.ProtoTCP, flags: header.SYN}, -1, DropPuntLoop, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			p := tt.packet
			if !p.src.IsValid() {
				p.src = ap(client4, 40000)
			}
			p.srcMAC, p.dstMAC = macClient, macWeir
			f := b.one(tt.in, p.build(t), tt.out)
			if tt.check != nil {
				tt.check(t, f)
			}
			if b.drops()[tt.reason.String()] != 1 {
				t.Errorf("counted %v, want %s", b.drops(), tt.reason)
			}
			b.framesHome()
		})
	}
}

func isReset(t *testing.T, f []byte) {
	t.Helper()
	tcp, ok := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || !tcp.RST {
		t.Errorf("not a RST: %x", f)
	}
}

func isICMP(typ, code uint8) func(*testing.T, []byte) {
	return func(t *testing.T, f []byte) {
		t.Helper()
		icmp, ok := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		if !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(typ, code) {
			t.Errorf("not ICMP %d/%d: %x", typ, code, f)
		}
	}
}

func TestWhatIsNotOursGoesBackToTheKernel(t *testing.T) {
	b := newBench(t)
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 22), proto: header.ProtoTCP, flags: header.SYN, partial: true}
	f := b.one(portClient, p.build(t), portHost)
	want := p
	want.srcMAC, want.dstMAC, want.partial = macXDP, macKernel, false
	if w := want.build(t); !bytes.Equal(f, w) {
		t.Errorf("got %x\nwant %x", f, w)
	}
	b.framesHome()
}

func TestMidstreamTCPGoesToTheKernelDuringTakeover(t *testing.T) {
	b := newBench(t)
	b.w.takeoverUntil = b.lb.flows.Tick() + 1000
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.ACK, seq: 9}
	b.one(portClient, p.build(t), portHost)
}

func TestHeldPacketsFollowTheirNeighbor(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	req := request(false, header.ProtoUDP).build(t)
	b.one(portClient, req, -1)
	b.framesHome()
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	if got := b.round(); len(got[portServer]) != 1 {
		t.Fatalf("held packet was not sent: %v", b.drops())
	}
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.one(portClient, req, -1)
	b.lb.router.SetState(portServer, endpoint4, route.Failed)
	got := b.round()
	if len(got[portClient]) != 1 {
		t.Fatalf("no answer for a packet held in vain: %v", b.drops())
	}
	isICMP(3, 1)(t, got[portClient][0])
	b.framesHome()
}

func TestAFullTransmitRingLosesOnlyWhatDoesNotFit(t *testing.T) {
	b := newBench(t)
	b.q[portServer].Room = 5
	for i := range 20 {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(1000+i))
		b.give(portClient, p.build(t))
	}
	got := b.round()
	if n := len(got[portServer]); n < 5 || n > 10 {
		t.Errorf("%d sent", n)
	}
	if b.drops()["transmit-ring-full"] != uint64(20-len(got[portServer])) {
		t.Errorf("drops %v, %d sent", b.drops(), len(got[portServer]))
	}
	b.framesHome()
}

func TestUDPFlowOfAGoneEndpointSelectsAnew(t *testing.T) {
	b := newBench(t)
	b.w.cfg.EndpointRemovalGrace = 0
	b.w.removalGraceTicks = 0
	req := request(false, header.ProtoUDP).build(t)
	b.one(portClient, req, portServer)
	b.serve(netip.Addr{}, endpoint6)
	isICMP(3, 3)(t, b.one(portClient, req, portClient))
	b.serve(endpoint4, endpoint6)
	b.one(portClient, req, portServer)
	b.framesHome()
}

func TestNoAllocationPerPacket(t *testing.T) {
	b := newBench(t)
	syn := request(false, header.ProtoTCP)
	b.one(portClient, syn.build(t), portServer)
	ack := syn
	ack.flags, ack.payload = header.ACK, 64
	established := ack.build(t)
	drop := established[:30]
	port := uint16(1)
	kinds := map[string]func() []byte{
		"established": func() []byte { return established },
		"drop":        func() []byte { return drop },
		"new": func() []byte {
			// Another source port each time, with its checksum kept right.
			port++
			f := syn.buildOnce(t)
			old := f[34:36]
			c := uint16(f[50]) | uint16(f[51])<<8
			delta := uint64(^(uint16(old[0]) | uint16(old[1])<<8)) + uint64(port>>8|port<<8)
			f[34], f[35] = byte(port>>8), byte(port)
			c = header.Update(c, delta)
			f[50], f[51] = byte(c), byte(c>>8)
			return f
		},
	}
	for name, next := range kinds {
		n := testing.AllocsPerRun(500, func() {
			b.give(portClient, next())
			b.w.beginRound()
			b.w.receive()
			b.w.endRound()
			for _, q := range b.q {
				q.Out = q.Out[:0]
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations per packet", name, n)
		}
	}
	b.framesHome()
}

var onceFrame []byte

// buildOnce is build of a frame that is made once and used again.
func (p packet) buildOnce(t testing.TB) []byte {
	if onceFrame == nil {
		onceFrame = p.build(t)
	}
	return onceFrame
}
