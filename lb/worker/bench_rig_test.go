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

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/attempts"
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
	services *ServiceCounts
	attempts *attempts.Table
}

// newWorker makes a worker without queues or frames.
func (l *control) newWorker(id, ports int) *Worker {
	return New(Config{
		Services: l.services, Attempts: l.attempts,
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

	ahead uint32 // ticks that through adds to the clock
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
	return newBenchWith(t, conntrack.Config{Workers: workers})
}

// newBenchWith has a flow table of its own configuration.
func newBenchWith(t testing.TB, cfg conntrack.Config) *bench {
	t.Helper()
	cfg.MaxFlows, cfg.MaxEndpoints = 1<<14, 1<<10
	flows, err := conntrack.Open(cfg)
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
	tried := attempts.New(1 << 10)
	l := &control{
		flows: flows, memory: memory, router: router, attempts: tried,
		tables: table.New(table.Config{Tick: flows.Tick, OnAssign: tried.Assign}), affinity: affinity.New(1<<10, [2]uint64{}), servers: affinity.New(1<<10, [2]uint64{}),
	}
	l.services = NewServiceCounts(cfg.Workers)
	l.services.Grow(100)
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
		for _, d := range h.desc[:h.n] {
			note(d.Addr, "held")
		}
	}
	for _, x := range b.w.fragQueue.list {
		for _, d := range x.desc[:x.n] {
			note(d.Addr, "waiting")
		}
	}
	if len(seen) != b.lb.memory.Frames() {
		b.t.Fatalf("%d frames accounted for, want %d", len(seen), b.lb.memory.Frames())
	}
}
