package worker

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/table"
)

// narrow4 is an endpoint behind a route whose MTU is below its link's.
var narrow4 = netip.MustParseAddr("10.2.0.5")

func TestTheRoutesMTUCounts(t *testing.T) {
	b := newBench(t)
	b.serve(narrow4, endpoint6)
	req := request(false, header.ProtoUDP)
	req.payload = 1250
	b.one(portClient, req.build(t), portServer) // 1278 bytes
	req.payload = 1300                          // 1328 bytes
	for range 2 {
		f := b.one(portClient, req.build(t), portClient)
		isICMP(3, 4)(t, f)
		if mtu := binary.BigEndian.Uint16(f[14+20+6:]); mtu != 1280 {
			t.Errorf("told an MTU of %d", mtu)
		}
	}
	req.df = false // may be cut into fragments beyond the link
	b.one(portClient, req.build(t), portServer)
	b.framesHome()
}

func TestMartianSourcesGetNothing(t *testing.T) {
	for name, src := range map[string]netip.Addr{
		"the node's own address": node4,
		"directed broadcast":     netip.MustParseAddr("192.0.2.255"),
		"IPv4-mapped":            netip.MustParseAddr("::ffff:192.0.2.7"),
	} {
		for _, dst := range []netip.Addr{node4, empty4} {
			t.Run(name+"/"+dst.String(), func(t *testing.T) {
				b := newBench(t)
				p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(src, 40000), dst: ap(dst, 80), proto: header.ProtoTCP, flags: header.SYN}
				var f []byte
				if src.Is4() {
					f = p.build(t)
				} else {
					p.src, p.dst = ap(client6, 40000), ap(node6, 80)
					f = p.build(t)
					a := src.As16()
					copy(f[14+8:], a[:])
				}
				b.one(portClient, f, -1)
				if b.drops()["martian"] != 1 || b.lb.flows.Flows() != 0 {
					t.Errorf("drops %v, %d flows", b.drops(), b.lb.flows.Flows())
				}
				b.framesHome()
			})
		}
	}
}

// What is answered to would come back as a request: where both sides answer
// everything one packet would go round for ever.
func TestWeirsOwnPortsAreMartianSources(t *testing.T) {
	for name, src := range map[string]netip.AddrPort{
		"the frontend itself":     ap(vip4, 80),
		"another frontend":        ap(empty4, 80),
		"a port of SNAT":          ap(snat4, 62000),
		"a frontend's other port": ap(vip4, 40000),
		"below the ports of SNAT": ap(snat4, 40000),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serveOn(vip4)
			p := packet{srcMAC: macClient, dstMAC: macWeir, src: src, dst: ap(vip4, 80), proto: header.ProtoUDP}
			out, martian := -1, uint64(1)
			if src.Port() == 40000 {
				out, martian = portServer, 0
			}
			b.one(portClient, p.build(t), out)
			if b.drops()["martian"] != martian {
				t.Errorf("drops %v", b.drops())
			}
			b.framesHome()
		})
	}
}

var vip4 = netip.MustParseAddr("198.51.100.9")

// serveOn publishes another Service: UDP port 80 on addr.
func (b *bench) serveOn(addr netip.Addr) {
	b.t.Helper()
	s := table.Service{Name: "ns/vip", Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint4, 8080)}}}},
		Frontends: []table.Frontend{{AddrPort: ap(addr, 80), Proto: header.ProtoUDP}}}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// What a client on the node sends has the node's own source.
func TestAClientOnTheNodeIsNoMartian(t *testing.T) {
	b := newBench(t)
	req := request(false, header.ProtoUDP)
	req.src = ap(node4, 40000)
	b.one(portHost, req.build(t), portServer)
}

func TestNoAnswerToAGroupOfStations(t *testing.T) {
	for _, p := range []packet{
		{dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN},
		{dst: ap(empty4, 80), proto: header.ProtoUDP},
		{dst: ap(node4, 80), proto: header.ProtoUDP, ttl: 1},
	} {
		b := newBench(t)
		p.srcMAC, p.dstMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, macWeir
		p.src = ap(client4, 40000)
		b.one(portClient, p.build(t), -1)
		b.framesHome()
	}
}

// The kernel sums up to the end of the frame: what lies behind the packet must
// not be part of it.
func TestPaddingIsNotSummedUp(t *testing.T) {
	b := newBench(t)
	b.w.ports[portServer].Metadata = true
	req := request(false, header.ProtoTCP)
	req.partial = true
	padded := append(req.build(t), 0xde, 0xad, 0xbe, 0xef, 0x01, 0x02)
	f := b.one(portClient, padded, portServer)
	f = f[:len(padded)-6]
	ip := f[header.EthernetLen:]
	if c := header.Fold(header.Sum(header.PseudoSum4(ip, header.ProtoTCP, len(ip)-20), ip[20:])); c != 0xffff {
		t.Errorf("TCP checksum is wrong: sum %#x", c)
	}
}

func TestASleeperLooksAfterWhatIsNotSent(t *testing.T) {
	b := newBench(t)
	idle := b.w.sleeper.pollTimeout(len(b.w.neighQueue) > 0)
	b.w.ports[portServer].sending = 1
	if n := b.w.sleeper.pollTimeout(len(b.w.neighQueue) > 0); n >= idle {
		t.Errorf("sleeps for %d ms with a packet on the way out", n)
	}
}

func TestErrorsOfTheWayOutAreCounted(t *testing.T) {
	b := newBench(t)
	b.q[portServer].KickError = errors.New("network is down")
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	b.round()
	if n := b.w.published.read().Values[counter.TxErrors]; n != 1 {
		t.Errorf("%d counted", n)
	}
}

// stuck is a queue whose device sends nothing any more.
type stuck struct{ *lbtest.Memory }

func (stuck) Complete([]uint64) int { return 0 }

func TestAStuckWayOutLeavesTheOthersTheirFrames(t *testing.T) {
	b := newBench(t)
	b.w.ports[portServer].Queue = stuck{b.q[portServer]}
	for i := range 6000 {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(1024+i%4000))
		b.give(portClient, req.build(t))
		if i%64 == 63 {
			b.round()
		}
	}
	b.round()
	for i := range b.w.ports {
		if p := &b.w.ports[i]; p.filled < p.Ring-batchSize {
			t.Errorf("port %d has %d frames to receive into, of %d", i, p.filled, p.Ring)
		}
	}
	if b.drops()["transmit-ring-full"] == 0 {
		t.Errorf("drops %v", b.drops())
	}
}
