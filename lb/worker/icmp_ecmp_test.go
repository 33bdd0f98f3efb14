package worker

import (
	"net"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// newNode is one of several nodes that balance ns/web over eight endpoints.
func newNode(t *testing.T, mode conntrack.Mode, v6 bool, policy *table.Policy, pool table.Pool) *bench {
	t.Helper()
	b := newBench(t)
	a, src, node := netip.MustParseAddr("10.1.0.100"), snat4, node4
	if v6 {
		a, src, node = netip.MustParseAddr("2001:db8:2::100"), snat6, node6
	}
	to := map[netip.Prefix]route.Path{}
	var hops []route.StaticHop
	for n := range byte(8) {
		to[netip.PrefixFrom(a, a.BitLen())] = route.Path{Kind: route.Attached, Port: portServer, NextHop: a, MTU: 1500, Source: src, LocalSource: src}
		hops = append(hops, route.StaticHop{Port: portServer, NextHop: a, MAC: [6]byte{2, 0, 0, 0, 1, n}, Src: macOf(macWeirB), MTU: pathMTU})
		pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: ap(a, 80)})
		a = a.Next()
	}
	b.routes(to, hops...)
	s := table.Service{Name: "ns/web", Policy: policy, Pools: []table.Pool{pool}, Frontends: []table.Frontend{
		{AddrPort: ap(node, 80), Proto: header.ProtoTCP, Mode: mode, Kind: table.LoadBalancer, Port: 80}}}
	if change, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil || len(change.Errors) > 0 {
		t.Fatal(err, change.Errors)
	}
	return b
}

// errorAbout is a router's packet too big about the answer to a request.
func errorAbout(t *testing.T, req packet) icmpPacket {
	answer := packet{src: req.dst, dst: req.src, proto: req.proto, flags: header.ACK, payload: 500, ttl: 60, df: true}
	in := icmpPacket{srcMAC: macClient, dstMAC: macWeir, src: netip.MustParseAddr("192.0.2.99"), dst: req.dst.Addr(), typ: 3, code: 4, rest: 1400, body: quoted(t, answer)}
	if req.dst.Addr().Is6() {
		in.src, in.typ, in.code = netip.MustParseAddr("2001:db8::99"), 2, 0
	}
	return in
}

// Routers that spread packets over several Weirs send an error to any of them.
func TestAnErrorThatComesToAnotherNodeReachesTheEndpoint(t *testing.T) {
	for name, pool := range map[string]table.Pool{
		"maglev": {}, "affinity": {AffinitySeconds: 60}, "least-conn with affinity": {AffinitySeconds: 60, Algorithm: table.LeastConn},
	} {
		for mode, modeName := range modeNames {
			bothFamilies(t, name+"/"+modeName, func(t *testing.T, v6 bool) {
				has, asked := newNode(t, mode, v6, nil, pool), newNode(t, mode, v6, nil, pool)
				used := map[string]bool{}
				for port := uint16(1000); port < 1040; port++ {
					req := from(v6, header.ProtoTCP, port)
					to := net.HardwareAddr(has.one(portClient, req.build(t), portServer)[:6])
					used[to.String()] = true
					in := errorAbout(t, req)
					want := in
					want.srcMAC, want.dstMAC, want.ttl = macWeirB, to, 63
					got := asked.one(portClient, in.build(t), portServer)
					inner := got[header.EthernetLen+overhead(mode, v6):]
					sameFrame(t, append(got[:header.EthernetLen:header.EthernetLen], inner...), want.build(t))
				}
				if len(used) < 4 && pool.AffinitySeconds == 0 {
					t.Errorf("all of it at %v", used)
				}
				if asked.lb.flows.Flows() != 0 || asked.w.published.read().Values[counter.ICMPForwarded] != 40 {
					t.Errorf("%d flows, %d errors passed", asked.lb.flows.Flows(), asked.w.published.read().Values[counter.ICMPForwarded])
				}
				asked.framesHome()
			})
		}
	}
}

// What this node remembers of a client counts, and is not changed by an error.
func TestAnErrorGoesWhereTheClientIsPinned(t *testing.T) {
	b := newNode(t, conntrack.ModeIPIP, false, nil, table.Pool{AffinitySeconds: 60})
	req := from(false, header.ProtoTCP, 1000)
	key := conntrack.MakeKey(req.src, req.dst, req.proto)
	k := table.DestinationKey(&key.W)
	fe := b.lb.tables.Load().Lookup(&k)
	for i := range fe.Pool.Endpoints() {
		b.w.affinity.Put(fe.AffinityKey(&key.W), fe.Pool.Endpoints()[i].ID, 0)
		f := b.one(portClient, errorAbout(t, req).build(t), portServer)
		if f[4] != 1 || f[5] != byte(i) {
			t.Errorf("pinned to %d, went to %x", i, f[:6])
		}
	}
	other := from(false, header.ProtoTCP, 1000)
	other.src = ap(client4.Next(), 1000)
	key = conntrack.MakeKey(other.src, other.dst, other.proto)
	b.one(portClient, errorAbout(t, other).build(t), portServer)
	if _, ok := b.w.affinity.Get(fe.AffinityKey(&key.W), 0, 60); ok {
		t.Error("an error pins its client")
	}
}

func TestAnErrorOfNoKnownFlowIsDropped(t *testing.T) {
	ranges := &table.Policy{SourceRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	for name, tt := range map[string]struct {
		mode   conntrack.Mode
		policy *table.Policy
		pool   table.Pool
		ttl    uint8
		reason string
	}{
		"chosen at random":      {mode: conntrack.ModeIPIP, pool: table.Pool{Algorithm: table.Random}, reason: "icmp-no-flow"},
		"chosen by load":        {mode: conntrack.ModeIPIP, pool: table.Pool{Algorithm: table.LeastConn}, reason: "icmp-no-flow"},
		"translated":            {mode: conntrack.ModeNAT, reason: "icmp-no-flow"},
		"client not admitted":   {mode: conntrack.ModeGUE, policy: ranges, reason: "source-range"},
		"at the end of its way": {mode: conntrack.ModeL2DSR, ttl: 1, reason: "ttl-exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, tt.mode, false, tt.policy, tt.pool)
			in := errorAbout(t, from(false, header.ProtoTCP, 1000))
			in.ttl = tt.ttl
			b.one(portClient, in.build(t), -1)
			if b.drops()[tt.reason] != 1 {
				t.Errorf("drops %v", b.drops())
			}
			b.framesHome()
		})
	}
}

func TestAnErrorOfAnotherNodeWaitsForTheNextHop(t *testing.T) {
	for mode, name := range modeNames {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			unknown := endpoint4.Next()
			b.serveDirect(mode, unknown, nil)
			b.one(portClient, errorAbout(t, request(false, header.ProtoTCP)).build(t), -1)
			if n := len(b.w.neighQueue); n != 1 || len(b.drops()) != 0 {
				t.Errorf("%d held, drops %v", n, b.drops())
			}
			nowhere := netip.MustParseAddr("100.64.0.9")
			b.serveDirect(mode, nowhere, nil)
			b.one(portClient, errorAbout(t, request(false, header.ProtoTCP)).build(t), -1)
			if b.drops()["no-route"] != 1 {
				t.Errorf("drops %v", b.drops())
			}
		})
	}
}

func TestAnErrorOfAnotherNodeIsNotAllocatedFor(t *testing.T) {
	b := newNode(t, conntrack.ModeGUE, true, nil, table.Pool{})
	f := errorAbout(t, from(true, header.ProtoTCP, 1000)).build(t)
	n := testing.AllocsPerRun(200, func() {
		b.give(portClient, f)
		b.w.beginRound()
		b.w.receive()
		b.w.endRound()
		b.q[portServer].Out = b.q[portServer].Out[:0]
	})
	if n != 0 {
		t.Errorf("%v allocations per error", n)
	}
}
