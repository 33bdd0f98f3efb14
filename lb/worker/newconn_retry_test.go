package worker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// newFlows sends the first packets of n connections from client ports firstPort on,
// and makes of those that leave ones that go on. It returns these packets.
func (b *bench) newFlows(n int, firstPort uint16, proto uint8) (out [][]byte) {
	b.t.Helper()
	for i := range n {
		req := request(false, proto)
		req.src = ap(client4, firstPort+uint16(i))
		b.give(portClient, req.build(b.t))
		got := b.round()
		out = append(out, got[portServer]...)
		b.keepFlows()
	}
	return out
}

// keepFlows makes all UDP flows ones that go on for good.
func (b *bench) keepFlows() {
	flows := b.lb.flows
	flows.Range(func(r conntrack.Ref) bool {
		if flows.Entry(r).Key.Proto() == header.ProtoUDP {
			goOn(flows, r, b.w.tick)
		}
		return true
	})
	b.prove()
}

// goOn has both sides of a UDP flow send datagrams until twenty seconds after tick.
func goOn(flows *conntrack.Table, r conntrack.Ref, tick uint32) {
	flows.TrackUDP(r.Other(), tick)
	flows.TrackUDP(r, tick+20*secondTicks)
}

// prove has ageing look at all flows often enough to hear both sides of those that go on.
func (b *bench) prove() {
	for range 3 {
		b.lb.flows.Sweep(b.w.tick, b.lb.flows.MaxFlows())
	}
}

// serveAt publishes the Service with more than one endpoint.
func (b *bench) serveAt(pool table.Pool, mode conntrack.Mode, endpoints ...netip.Addr) {
	b.t.Helper()
	port := uint16(8080)
	if mode.DSR() {
		port = 80
	}
	for _, a := range endpoints {
		pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(a, port)})
	}
	s := table.Service{Name: "ns/web", Pools: []table.Pool{pool}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: netip.AddrPortFrom(node4, 80), Proto: proto, Mode: mode})
	}
	if change, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil || len(change.Errors) > 0 {
		b.t.Fatal(err, change.Errors)
	}
}

// fewPorts gives the worker SNAT sources with n ports each.
func (b *bench) fewPorts(n int, sources ...netip.Addr) {
	b.lb.node.Store(benchNode(61000, 61000+uint16(n)-1, sources...))
}

func dstOf(f []byte) netip.Addr { return netip.AddrFrom4([4]byte(f[30:34])) }
func srcOf(f []byte) netip.Addr { return netip.AddrFrom4([4]byte(f[26:30])) }

func TestOtherSNATSourcesServeWhenOneIsExhausted(t *testing.T) {
	b := newBench(t)
	other := netip.MustParseAddr("10.1.0.2")
	b.fewPorts(4, snat4, other)
	got := b.newFlows(8, 3000, header.ProtoUDP)
	sources := map[netip.Addr]int{}
	for _, f := range got {
		sources[srcOf(f)]++
	}
	if len(got) != 8 || sources[snat4] != 4 || sources[other] != 4 {
		t.Errorf("%d connections are served, by %v; want all ports of both", len(got), sources)
	}
	b.newFlows(2, 4000, header.ProtoUDP)
	if n := b.drops()["snat-ports-exhausted"]; n != 2 {
		t.Errorf("drops %v", b.drops())
	}
	b.framesHome()
}

func TestOtherEndpointsServeWhenOneIsOutOfPorts(t *testing.T) {
	for _, c := range []struct {
		name string
		pool table.Pool
		move bool
	}{
		{"maglev", table.Pool{}, true},
		{"random", table.Pool{Algorithm: table.Random}, true},
		{"least connections", table.Pool{Algorithm: table.LeastConn}, true},
		{"session affinity", table.Pool{AffinitySeconds: 100}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.serveAt(c.pool, conntrack.ModeNAT, endpoint4, narrow4)
			b.fewPorts(4)
			got := b.newFlows(8, 3000, header.ProtoUDP)
			served := map[netip.Addr]int{}
			for _, f := range got {
				served[dstOf(f)]++
			}
			if c.move && (served[endpoint4] != 4 || served[narrow4] != 4) {
				t.Errorf("served %v, want 4 each", served)
			}
			if !c.move && len(served) != 1 {
				t.Errorf("served %v: the client has an endpoint of its own", served)
			}
			if int(b.drops()["snat-ports-exhausted"])+len(got) != 8 {
				t.Errorf("drops %v", b.drops())
			}
			b.framesHome()
		})
	}
}

// fillFlows fills the flow table with UDP flows that go on, which are never evicted.
func (b *bench) fillFlows() {
	b.t.Helper()
	for i, refused := 0, 0; refused < 64; i++ {
		f := conntrack.NewFlow{
			Client:   conntrack.MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i >> 15)}), uint16(1024+i&0x7fff)), ap(node4, 99), header.ProtoUDP),
			Endpoint: netip.AddrPortFrom(endpoint4, uint16(1+i>>10)), Mode: conntrack.ModeNAT, SNAT: snat4, PortLo: 1024, PortHi: 65535, Tick: b.w.tick,
		}
		if r, outcome := b.w.conntrack.Create(&f); outcome == conntrack.Created {
			goOn(b.lb.flows, r, b.w.tick)
			refused = 0
		} else {
			refused++
		}
		if i%64 == 0 || refused == 1 {
			b.prove()
		}
		b.w.conntrack.Quiesce()
	}
}

// Where no address is translated a full table takes nothing from a client but the
// choice of algorithms that do not follow from the tuple.
func TestAFullTableForwardsWhatNeedsNoFlow(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeL2DSR, conntrack.ModeIPIP, conntrack.ModeGUE} {
		for name, pool := range map[string]table.Pool{"maglev": {}, "random": {Algorithm: table.Random},
			"least connections": {Algorithm: table.LeastConn}, "affinity": {AffinitySeconds: 100}} {
			t.Run(fmt.Sprintf("%s/%s", modeNames[mode], name), func(t *testing.T) {
				b := newBench(t)
				b.serveAt(pool, mode, endpoint4, narrow4)
				b.round()
				b.fillFlows()
				const connections = 20
				for i := range connections {
					var macs, dst [3]string
					for n, flags := range []uint8{header.SYN, header.ACK, header.ACK} {
						p := request(false, header.ProtoTCP)
						p.src, p.flags = ap(client4, uint16(3000+i)), flags
						f := b.one(portClient, p.build(t), portServer)
						macs[n], dst[n] = fmt.Sprintf("%x", f[:6]), dstOf(f).String()
					}
					if macs[0] != macs[1] || macs[1] != macs[2] || dst[0] != dst[1] || dst[1] != dst[2] {
						t.Fatalf("connection %d goes to %v", i, dst)
					}
				}
				if n := b.w.published.read().Values[counter.Flowless]; n != 3*connections {
					t.Errorf("%d packets went without a flow, want %d", n, 3*connections)
				}
				// Translation needs a flow.
				b.serve(endpoint4, endpoint6)
				b.one(portClient, request(false, header.ProtoTCP).build(t), -1)
				if n := b.drops()["flow-table-full"]; n != 1 {
					t.Errorf("drops %v", b.drops())
				}
				b.framesHome()
			})
		}
	}
}

// 4,536 SYNs that nobody completes fill all ports towards an endpoint. The next client
// is served all the same.
func TestSYNsFromNowhereDoNotCloseAnEndpoint(t *testing.T) {
	b := newBench(t)
	const ports = 65535 - 61000 + 1
	for i := range ports {
		p := request(false, header.ProtoTCP)
		p.src = ap(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i>>12)}), uint16(1024+i&0xfff))
		b.give(portClient, p.build(t))
		if i%64 == 63 || i == ports-1 {
			b.round()
		}
	}
	if n := b.lb.flows.Flows(); n != ports {
		t.Fatalf("%d flows, want %d", n, ports)
	}
	b.one(portClient, request(false, header.ProtoTCP).build(t), portServer)
	b.framesHome()
}

// A new connection to endpoints whose ports are all in use costs no more than a served
// connection (BenchmarkNewFlow), however many endpoints are tried.
func BenchmarkNewFlowRefusedForPorts(b *testing.B) {
	const ports = 256
	for _, endpoints := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			l := newBench(b)
			var at []netip.Addr
			for n := range endpoints {
				at = append(at, netip.AddrFrom4([4]byte{10, 1, 0, byte(5 + n)}))
			}
			l.serveAt(table.Pool{}, conntrack.ModeNAT, at...)
			l.fewPorts(ports)
			l.round()
			for n := range endpoints * ports {
				var f conntrack.NewFlow
				f.Client = conntrack.MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n >> 8)}), uint16(1024+n&0xff)), ap(node4, 99), header.ProtoUDP)
				f.Endpoint, f.Mode, f.SNAT, f.PortLo, f.PortHi, f.Tick = ap(at[n/ports], 8080), conntrack.ModeNAT, snat4, 61000, 61000+ports-1, l.w.tick
				r, _ := l.w.conntrack.Create(&f)
				goOn(l.lb.flows, r, l.w.tick)
			}
			l.prove()
			frames := make([][]byte, 4096)
			for i := range frames {
				p := request(false, header.ProtoUDP)
				p.src = ap(client4, uint16(1024+i))
				frames[i] = p.build(b)
			}
			runPackets(b, l, func(i int) []byte { return frames[i%len(frames)] })
			if got := l.drops()["snat-ports-exhausted"]; got < uint64(b.N) {
				b.Fatalf("%d of %d are refused", got, b.N)
			}
		})
	}
}
