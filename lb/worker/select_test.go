package worker

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/denylist"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/table"
)

// offer publishes ns/web on the node's address, port 80, with a policy and n
// endpoints of each family, 10.1.0.5 and 2001:db8:2::5 the first.
func (b *bench) offer(policy *table.Policy, pool table.Pool, n int) {
	b.t.Helper()
	four, six := pool, pool
	a4, a6 := endpoint4, endpoint6
	for range n {
		four.Endpoints = append(four.Endpoints, table.Endpoint{AddrPort: ap(a4, 8080)})
		six.Endpoints = append(six.Endpoints, table.Endpoint{AddrPort: ap(a6, 8080)})
		a4, a6 = a4.Next(), a6.Next()
	}
	b.offerPools(policy, four, six)
}

func (b *bench) offerPools(policy *table.Policy, four, six table.Pool) {
	b.t.Helper()
	s := table.Service{Name: "ns/web", Policy: policy, Pools: []table.Pool{four, six}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for port, kind := range map[uint16]table.Kind{80: table.LoadBalancer, 81: table.NodePort} {
			s.Frontends = append(s.Frontends,
				table.Frontend{AddrPort: ap(node4, port), Proto: proto, Kind: kind, Pool: 0, Port: 80},
				table.Frontend{AddrPort: ap(node6, port), Proto: proto, Kind: kind, Pool: 1, Port: 80})
		}
	}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// from is the request with another source port.
func from(v6 bool, proto uint8, port uint16) packet {
	p := request(v6, proto)
	p.src = ap(p.src.Addr(), port)
	return p
}

// chosen sends a request in and returns the endpoint that its flow goes to. The
// packet itself may have to wait for the next hop.
func (b *bench) chosen(p packet) netip.AddrPort {
	b.t.Helper()
	before := b.lb.flows.Stats().Created
	b.give(portClient, p.build(b.t))
	b.round()
	if b.lb.flows.Stats().Created != before+1 {
		b.t.Fatalf("no flow was made of %v: %v", p.src, b.drops())
	}
	k := conntrack.MakeKey(p.src, p.dst, p.proto)
	ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k)
	return b.lb.flows.EndpointAddr(ref)
}

func TestSourceRangesKeepOthersOut(t *testing.T) {
	ranges := func(texts ...string) *table.Policy {
		p := &table.Policy{}
		for _, text := range texts {
			p.SourceRanges = append(p.SourceRanges, netip.MustParsePrefix(text))
		}
		return p
	}
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			t.Run(fmt.Sprintf("v6=%v/proto=%d", v6, proto), func(t *testing.T) {
				b := newBench(t)
				b.offer(ranges("192.0.2.0/29", "2001:db8::/125"), table.Pool{}, 1)
				b.one(portClient, from(v6, proto, 1000).build(t), portServer)

				b.offer(ranges("192.0.2.0/30", "2001:db8::/126"), table.Pool{}, 1)
				out := from(v6, proto, 1001)
				b.one(portClient, out.build(t), -1)
				if b.drops()["source-range"] != 1 {
					t.Errorf("counted %v", b.drops())
				}
				if proto == header.ProtoTCP { // no RST either
					out.flags = header.ACK
					b.one(portClient, out.build(t), -1)
				}
				// As with kube-proxy: a flow that exists goes on, node ports are open.
				old := from(v6, proto, 1000)
				if proto == header.ProtoTCP {
					old.flags = header.ACK
				}
				b.one(portClient, old.build(t), portServer)
				np := from(v6, proto, 1002)
				np.dst = ap(np.dst.Addr(), 81)
				b.one(portClient, np.build(t), portServer)
				b.framesHome()
			})
		}
	}
}

func TestConnectionLimit(t *testing.T) {
	b := newBench(t)
	b.offer(&table.Policy{MaxConnections: 2}, table.Pool{}, 1)
	first := b.openFrom(1)
	query := from(true, header.ProtoUDP, 2)
	f := b.one(portClient, query.build(t), portServer)
	b.one(portClient, from(false, header.ProtoTCP, 3).build(t), portServer) // nobody has answered that query
	answer := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint6, 8080), dst: ap(snat6, binary.BigEndian.Uint16(f[54:])), proto: header.ProtoUDP}
	b.one(portServer, answer.build(t), portClient)
	b.one(portClient, from(false, header.ProtoTCP, 4).build(t), -1)
	if b.drops()["connection-limit"] != 1 {
		t.Errorf("counted %v", b.drops())
	}
	// One that was reset leaves room, though the table remembers it for a while.
	first.flags = header.RST
	b.one(portClient, first.build(t), portServer)
	third := b.openFrom(3)
	b.one(portClient, from(false, header.ProtoTCP, 4).build(t), -1)
	// What exists goes on.
	b.one(portClient, third.build(t), portServer)
	b.framesHome()
}

// openFrom makes a TCP connection from a client's port and returns the client's next
// packet.
func (b *bench) openFrom(port uint16) packet {
	b.t.Helper()
	p := from(false, header.ProtoTCP, port)
	f := b.one(portClient, p.build(b.t), portServer)
	answer := packet{
		srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, binary.BigEndian.Uint16(f[34:])),
		proto: header.ProtoTCP, flags: header.SYN | header.ACK, seq: 5000, ack: p.seq + 1,
	}
	b.one(portServer, answer.build(b.t), portClient)
	p.flags, p.seq, p.ack = header.ACK, p.seq+1, 5001
	b.one(portClient, p.build(b.t), portServer)
	return p
}

func TestConnectionRate(t *testing.T) {
	b := newBench(t)
	b.offer(&table.Policy{NewConnectionsPerSecond: 3}, table.Pool{}, 1)
	made := 0
	for port := range uint16(10) {
		b.give(portClient, from(false, header.ProtoTCP, 1000+port).build(t))
	}
	made = len(b.round()[portServer])
	if made < 3 || made > 4 || b.drops()["connection-rate"] != uint64(10-made) { // a tick may have passed
		t.Errorf("%d made, %v", made, b.drops())
	}
	old := from(false, header.ProtoTCP, 1000)
	b.one(portClient, old.build(t), portServer)
	b.framesHome()
}

// The clients of a prefix begin as many connections as flood.newConnectionsPerPrefix allows;
// those of others, of the node, and established ones are not concerned.
func TestPrefixRate(t *testing.T) {
	b := newBench(t)
	b.offer(nil, table.Pool{}, 1)
	limit := ratelimit.NewPrefixes([2]uint64{1, 2})
	limit.Set(ratelimit.PrefixLimit{PerSecond: 3, Bits4: 24, Bits6: 56})
	b.w.cfg.Prefixes = limit
	old := b.openFrom(999)
	for port := range uint16(10) {
		b.give(portClient, from(false, header.ProtoTCP, 1000+port).build(t))
	}
	made := len(b.roundAtTheSameTime()[portServer])
	if made < 2 || made > 3 || b.drops()["prefix-rate"] != uint64(10-made) { // a tick may have passed
		t.Errorf("%d made, %v", made, b.drops())
	}
	b.one(portClient, old.build(t), portServer)
	other := from(false, header.ProtoTCP, 1000)
	other.src = ap(netip.MustParseAddr("44.1.2.3"), 1000)
	b.one(portClient, other.build(t), portServer)
	limit.Set(ratelimit.PrefixLimit{})
	b.one(portClient, from(false, header.ProtoTCP, 2000).build(t), portServer)
	b.framesHome()
}

// Clients of a deny list begin nothing, and established flows of theirs go on here. Each list counts
// its own, and not what others count already.
func TestDenied(t *testing.T) {
	b := newBench(t)
	b.offer(nil, table.Pool{}, 1)
	b.w.cfg.Denied = &Denied{Node: 7}
	set := denylist.New()
	b.w.cfg.Denied.Set.Store(set)
	old := b.openFrom(999)
	first := from(false, header.ProtoTCP, 1000)
	src := first.src.Addr()
	for i, a := range []netip.Addr{netip.MustParseAddr("44.1.2.3"), src, src} {
		set, _ = set.With(i, []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, denylist.Heap)
	}
	b.w.cfg.Denied.Set.Store(set)
	for port := range uint16(5) {
		b.give(portClient, from(false, header.ProtoTCP, 1000+port).build(t))
	}
	if n := len(b.roundAtTheSameTime()[portServer]); n != 0 || b.drops()["denied"] != 5 {
		t.Errorf("%d made, %v", n, b.drops())
	}
	if got := b.w.Counters().Denied; got != [denylist.MaxLists]uint64{1: 5} {
		t.Errorf("counted %v", got)
	}
	b.one(portClient, old.build(t), portServer)
	other := from(false, header.ProtoTCP, 1000)
	other.src = ap(netip.MustParseAddr("44.1.2.4"), 1000)
	b.one(portClient, other.build(t), portServer)
	b.framesHome()
}

func TestLeastConnectionsGoToTheLeastLoaded(t *testing.T) {
	for _, n := range []int{2, 5, 8, 30} {
		b := newBench(t)
		b.offer(nil, table.Pool{Algorithm: table.LeastConn}, n)
		count := map[netip.AddrPort]int{}
		const each = 20
		for i := range each * n {
			count[b.chosen(from(false, header.ProtoTCP, uint16(1000+i)))]++
		}
		slack := 0 // of small pools all are looked at: evenly to the last one
		if n > leastConnScan {
			slack = each / 2
		}
		for e, c := range count {
			if c < each-slack || c > each+slack {
				t.Errorf("%d endpoints: %v has %d connections, want %d", n, e, c, each)
			}
		}
		if len(count) != n {
			t.Errorf("%d of %d endpoints used", len(count), n)
		}
	}
}

func TestLeastConnectionsByWeight(t *testing.T) {
	b := newBench(t)
	pool := func(a netip.Addr) table.Pool {
		return table.Pool{Algorithm: table.LeastConn, Endpoints: []table.Endpoint{
			{AddrPort: ap(a, 8080), Weight: 3}, {AddrPort: ap(a.Next(), 8080), Weight: 1},
		}}
	}
	b.offerPools(nil, pool(endpoint4), pool(endpoint6))
	for _, v6 := range []bool{false, true} {
		count := map[netip.AddrPort]int{}
		for i := range 40 {
			count[b.chosen(from(v6, header.ProtoTCP, uint16(1000+i)))]++
		}
		heavy := ap(endpoint4, 8080)
		if v6 {
			heavy = ap(endpoint6, 8080)
		}
		if count[heavy] != 30 {
			t.Errorf("%v of 40 connections, want 30 for %v", count, heavy)
		}
	}
}

func TestAClientKeepsItsEndpointWhileEndpointsComeAndGo(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		pool := table.Pool{AffinitySeconds: 10800}
		b.offer(nil, pool, 3)
		client := func(i int, port uint16) packet {
			p := from(v6, header.ProtoTCP, port)
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
			if v6 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i + 1)})
			}
			p.src = ap(a, port)
			return p
		}
		const clients = 100
		had := map[int]netip.AddrPort{}
		for i := range clients {
			had[i] = b.chosen(client(i, 1))
		}
		port, moved := uint16(2), 0
		for _, n := range []int{4, 9, 40, 3} {
			b.offer(nil, pool, n)
			for i := range clients {
				if now := b.chosen(client(i, port)); now != had[i] {
					t.Errorf("v6=%v, %d endpoints: client %d moved from %v to %v", v6, n, i, had[i], now)
				}
			}
			port++
		}
		// The last one goes: its clients choose anew, the others stay; and when it
		// comes back they stay where they are now.
		b.offer(nil, pool, 2)
		for i := range clients {
			now := b.chosen(client(i, port))
			if now != had[i] {
				moved++
				had[i] = now
			}
		}
		if moved == 0 || moved > clients/2 {
			t.Errorf("v6=%v: %d of %d clients moved when one endpoint of three went", v6, moved, clients)
		}
		b.offer(nil, pool, 3)
		for i := range clients {
			if now := b.chosen(client(i, port+1)); now != had[i] {
				t.Errorf("v6=%v: client %d went back to %v", v6, i, now)
			}
		}
		// Other Service ports know nothing of it; the node port does.
		np := client(0, port+2)
		np.dst = ap(np.dst.Addr(), 81)
		if now := b.chosen(np); now != had[0] {
			t.Errorf("v6=%v: by the node port client 0 goes to %v, not %v", v6, now, had[0])
		}
	}
}

// A client that comes back after its time is chosen for anew, and then keeps that endpoint. Without translation
// the packet may be of a flow that another node knows, which has chosen by the client's address.
func TestAffinityEndsWithItsTime(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeL2DSR} {
		b := newBench(t)
		b.offer(nil, table.Pool{AffinitySeconds: 100}, 60)
		key := func(port uint16) *conntrack.Key {
			k := conntrack.MakeKey(from(false, header.ProtoTCP, port).src, ap(node4, 80), header.ProtoTCP)
			return &k
		}
		fk := table.DestinationKey(&key(1).W)
		fe := *b.lb.tables.Load().Lookup(&fk)
		fe.Mode = mode
		chosen := map[uint32]bool{}
		b.w.selectEndpoint(&fe, key(1))
		for port := uint16(1); port < 40; port += 2 {
			b.w.tick += 101 * secondTicks
			other := fe.Pool.SelectAnew(&key(port+100).W, b.w.tick/secondTicks/100, b.w.tick)
			ep := b.w.selectEndpoint(&fe, key(port))
			chosen[ep.ID] = true
			if mode == conntrack.ModeNAT && other != ep {
				t.Errorf("%v: a connection that begins at the same time goes to %v, not %v", mode, other.AddrPort, ep.AddrPort)
			}
			b.w.tick += 100 * secondTicks
			if again := b.w.selectEndpoint(&fe, key(port+1)); again != ep {
				t.Errorf("%v: the client moved to %v within the time", mode, again.AddrPort)
			}
		}
		if anew := len(chosen) > 5; anew == mode.DSR() {
			t.Errorf("%v: %d endpoints in 20 times", mode, len(chosen))
		}
	}
}

func TestNoAllocationForANewFlowOfAnyPolicy(t *testing.T) {
	policy := &table.Policy{MaxConnections: 1 << 20, NewConnectionsPerSecond: 1 << 30, SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	for name, pool := range map[string]table.Pool{
		"least-conn": {Algorithm: table.LeastConn}, "slow start": {SlowStart: 1 << 20}, "affinity": {AffinitySeconds: 100},
	} {
		b := newBench(t)
		b.offer(policy, pool, 3)
		b.offer(policy, pool, 20)
		k := conntrack.MakeKey(request(false, header.ProtoTCP).src, ap(node4, 80), header.ProtoTCP)
		fk := table.DestinationKey(&k.W)
		fe := b.lb.tables.Load().Lookup(&fk)
		p := &b.w.batch.pkts[0]
		p.key = k
		if n := testing.AllocsPerRun(200, func() {
			k.W[0]++
			if b.w.admit(p, fe) != pass || b.w.selectEndpoint(fe, &k) == nil {
				t.Fatal("refused")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The next process knows the endpoint of a client with a connection in the flow table.
func TestAffinityIsRestoredFromFlows(t *testing.T) {
	b := newBench(t)
	b.offer(nil, table.Pool{AffinitySeconds: 100}, 60)
	first := from(false, header.ProtoTCP, 1)
	b.chosen(first)
	k := conntrack.MakeKey(first.src, ap(node4, 80), header.ProtoTCP)
	fk := table.DestinationKey(&k.W)
	fe := b.lb.tables.Load().Lookup(&fk)
	now := b.w.conns.Tick() / secondTicks
	want, _ := b.w.affinity.Get(fe.AffinityKey(&k.W), now, 100)
	next := NewAffinity(b.lb.flows)
	b.lb.flows.Range(func(ref conntrack.Ref) bool { RestoreAffinity(next, b.lb.flows, fe, ref); return true })
	if n, ok := next.Get(fe.AffinityKey(&k.W), now, 100); n != want || !ok || n == 0 {
		t.Errorf("endpoint %d, %v; want %d", n, ok, want)
	}
}
