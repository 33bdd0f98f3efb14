package worker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// FuzzPipeline runs small programs of frames and events through a worker, and
// holds every frame that comes out to what went in (fuzz_check_test.go). Random
// bytes would not get past the parser: a program's bytes are choices. They make packets
// that are mostly whole, packets that belong to what came out before, and changes of bits
// in either.
func FuzzPipeline(f *testing.F) {
	for _, seed := range pipelineSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1024 {
			return
		}
		r := newFuzzRun(t, data)
		for r.at < len(r.data) && len(r.in) < maxMarks {
			r.step()
		}
		r.end()
	})
}

// maxMarks leaves room for the frames of one more step: 0 is no mark.
const maxMarks = 200

// fuzzRun is one program on its way. The clock is the program's.
type fuzzRun struct {
	*bench
	data []byte
	at   int
	now  uint32
	in   []*given
	seen []view // that came out, unfragmented TCP or UDP to an endpoint or a client
	// tunnels are packets in an outer header that came out.
	tunnels []view
	// pending frames have been given to the worker, and no round was run since.
	pending    int
	sent       int
	challenges int  // sent to clients whose endpoint is gone
	whole      bool // frames of up to 3,000 bytes come in a single buffer
	vlan       bool // endpoints are in a VLAN of the clients' interface
	absent     uint32
}

// given is a frame that went in.
type given struct {
	port     int
	frame    []byte
	v        view
	l3       int
	err      error
	pristine bool
	outs     int          // packets that it became, itself or an answer
	pieces   map[int]bool // fragments that it became, by offset
	told     int          // RSTs that told the receiver of the end of the connection
}

// next is the program's next byte, 0 behind its end.
func (r *fuzzRun) next() uint8 {
	if r.at++; r.at > len(r.data) {
		return 0
	}
	return r.data[r.at-1]
}

// The Services of the fuzz target, by frontend port less 80.
var fuzzServices = []struct {
	mode   conntrack.Mode
	ep     [2]netip.Addr // of the IPv4 and of the IPv6 frontend; none: no endpoint
	empty  table.OnEmpty
	policy *table.Policy
}{
	{mode: conntrack.ModeNAT, ep: [2]netip.Addr{endpoint4, endpoint6}},
	{mode: conntrack.ModeDNAT, ep: [2]netip.Addr{pod4, pod6}},
	{mode: conntrack.ModeL2DSR, ep: [2]netip.Addr{endpoint4, endpoint6}},
	{mode: conntrack.ModeIPIP, ep: [2]netip.Addr{endpoint4, endpoint6}},
	{mode: conntrack.ModeGUE, ep: [2]netip.Addr{endpoint4, endpoint6}},
	{mode: conntrack.ModeIPIP, ep: [2]netip.Addr{endpoint6, endpoint4}},
	{mode: conntrack.ModeGUE, ep: [2]netip.Addr{endpoint6, endpoint4}},
	{mode: conntrack.ModeNAT},
	{mode: conntrack.ModeNAT, empty: table.Drop},
	{mode: conntrack.ModeNAT, ep: [2]netip.Addr{narrow4, pod6}, policy: &table.Policy{OnRemoval: table.ResetFlows, MaxConnections: 3}},
	{mode: conntrack.ModeNAT, ep: [2]netip.Addr{pod4, endpoint6}, policy: &table.Policy{OnRemoval: table.DropFlows, NewConnectionsPerSecond: 2}},
	{mode: conntrack.ModeGUE, ep: [2]netip.Addr{narrow4, endpoint6}, policy: &table.Policy{MSSClamp: table.MSSClampAuto, OnRemoval: table.ResetFlows}},
	{mode: conntrack.ModeNAT, ep: [2]netip.Addr{endpoint4, endpoint6}, policy: &table.Policy{SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.8/32")}}},
}

var vipFuzz4 = netip.MustParseAddr("198.51.100.7")

// fuzzFrontends are the addresses of each family that all Services are at: the
// node's, and one that is nobody's.
var fuzzFrontends = [2][2]netip.Addr{{node4, vipFuzz4}, {node6, vip6}}

func newFuzzRun(t *testing.T, data []byte) *fuzzRun {
	r := &fuzzRun{bench: newBench(t), data: data}
	r.now = r.lb.flows.Tick()
	r.lb.tables = table.New(table.Config{Tick: func() uint32 { return r.now }})
	r.w.frontends, r.w.removed.frontends = r.lb.tables, r.lb.tables
	r.route()
	node := benchNode(61000, 65535)
	node.ReturnPath = true
	r.lb.node.Store(node)
	r.answerPings(vipFuzz4, vip6)
	r.serveFuzz()
	set := r.next()
	if set&1 != 0 {
		r.w.takeoverUntil = r.now + 1000
	}
	r.w.ports[portServer].Metadata = set&2 != 0
	r.w.cfg.GUEZeroChecksum = set&8 != 0
	if set&16 != 0 {
		r.vlan = true
		r.onVLAN(portServer, portClient, header.EtherTypeQinQ, 5)
		r.q[portServer] = &lbtest.Memory{}
	}
	return r
}

// route gives the run its routes: clients and endpoints on attached interfaces,
// pods and the node's own addresses behind the kernel.
func (r *fuzzRun) route() {
	to := map[netip.Prefix]route.Path{
		netip.MustParsePrefix("192.0.2.255/32"): {Kind: route.NotUnicast},
		netip.MustParsePrefix("203.0.113.0/24"): {Kind: route.Blackhole},
	}
	var hops []route.StaticHop
	attached := func(port int, prefix string, mtu uint32, source netip.Addr, mac, src [6]byte, hop ...netip.Addr) {
		to[netip.MustParsePrefix(prefix)] = route.Path{Kind: route.Attached, Port: port, MTU: mtu, Source: source, LocalSource: source}
		for _, a := range hop {
			hops = append(hops, route.StaticHop{Port: port, NextHop: a, MAC: mac, Src: src, MTU: min(mtu+200, fuzzMTU[port])})
		}
	}
	attached(portClient, "192.0.2.0/24", 1500, node4, macOf(macClient), macOf(macWeir), client4)
	attached(portClient, "2001:db8::/64", 1500, node6, macOf(macClient), macOf(macWeir), client6)
	attached(portServer, "10.1.0.0/24", 1500, snat4, macOf(macServer), macOf(macWeirB), endpoint4)
	attached(portServer, "2001:db8:2::/64", 1500, snat6, macOf(macServer), macOf(macWeirB), endpoint6)
	attached(portServer, narrow4.String()+"/32", 1000, snat4, macOf(macServer), macOf(macWeirB), narrow4)
	behind := func(a netip.Addr, hop [3]netip.Addr, local bool) {
		to[netip.PrefixFrom(a, a.BitLen())] = route.Path{Kind: route.Host, Local: local, Port: portHost, Interface: 9, MTU: 1500, NextHop: hop[0], LocalSource: hop[1], Source: hop[2]}
	}
	behind(pod4, hop4, false)
	behind(pod6, hop6, false)
	behind(node4, hop4, true)
	behind(node6, hop6, true)
	for _, hop := range [][3]netip.Addr{hop4, hop6} {
		hops = append(hops,
			route.StaticHop{Port: portHost, NextHop: hop[0], MAC: macOf(macKernel), Src: macOf(macXDP), MTU: 1500},
			route.StaticHop{Port: portHost, NextHop: hop[1], MAC: macOf(macKernel), Src: macOf(macReturn), MTU: 1500})
	}
	r.lb.router = route.Static(to, hops)
	r.w.router, r.w.adjacencies = r.lb.router, r.lb.router.Adjacencies()
}

// fuzzMTU is what the ports' links carry.
var fuzzMTU = [3]uint32{1500, 1400, 1500}

// serveFuzz publishes the Services, without the endpoints of those that are absent.
func (r *fuzzRun) serveFuzz() {
	var list []table.Service
	for n, x := range fuzzServices {
		s := table.Service{Name: "ns/" + string(rune('a'+n)), Policy: x.policy}
		for family := range 2 {
			pool := table.Pool{OnEmpty: x.empty}
			if x.ep[family].IsValid() && r.absent>>n&1 == 0 {
				pool.Endpoints = []table.Endpoint{{AddrPort: ap(x.ep[family], endpointPort(n))}}
			}
			s.Pools = append(s.Pools, pool)
			for _, a := range fuzzFrontends[family] {
				for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
					if a.Is4() == x.ep[family].Is4() || !x.ep[family].IsValid() || x.mode.DSR() {
						s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(a, uint16(80+n)), Proto: proto, Mode: x.mode, Pool: family, Kind: table.LoadBalancer})
					}
				}
			}
		}
		list = append(list, s)
	}
	if ch, err := r.lb.tables.Apply(list, nil); err != nil || len(ch.Errors) > 0 {
		r.t.Fatal(err, ch.Errors)
	}
}

// endpointPort is the port that a Service's endpoints have.
func endpointPort(service int) uint16 {
	if fuzzServices[service].mode.DSR() {
		return uint16(80 + service)
	}
	return uint16(8080 + service)
}

// inject gives a frame to the worker, in pieces where the program says so.
func (r *fuzzRun) inject(port int, frame []byte, pristine bool) {
	if port == portServer && r.vlan {
		// Arrives where the VLAN's parent is, with its tag.
		port, frame = portClient, slices.Insert(slices.Clone(frame), min(12, len(frame)), 0x88, 0xa8, 0, 5)
	}
	if len(frame) > 10000 || r.pending == batchSize/maxBuffers {
		return
	}
	g := &given{port: port, frame: slices.Clone(frame), pristine: pristine, pieces: map[int]bool{}}
	g.v, g.l3, g.err = viewFrame(g.frame)
	if g.err == nil && g.v.tos == 0 {
		return // mutation has taken its mark: it would pass for what Weir makes itself
	}
	r.in = append(r.in, g)
	r.pending++
	// The first buffer has all headers, those that an error quotes too: a driver
	// fills it with more than 1,500 bytes before it begins another.
	const headers = 200
	var cuts []int
	switch buffers := r.next() % 16; {
	case len(frame) > 3000:
		cuts = slices.Repeat([]int{3000}, (len(frame)-1)/3000)
	case r.whole:
	case buffers == 1 && len(frame) > headers:
		cuts = []int{headers}
	case buffers == 2 && len(frame) > 400:
		cuts = []int{headers + 1, 101}
	case buffers == 3 && len(frame) > headers+128:
		cuts = []int{headers + int(r.next())/2}
	}
	r.giveBuffers(port, frame, cuts...)
}

// mark is the next frame's.
func (r *fuzzRun) mark() uint8 { return uint8(len(r.in) + 1) }

// turn runs a round at the program's time and checks what left.
func (r *fuzzRun) turn() {
	r.w.beginRound()
	r.w.tick = r.now
	r.w.receive()
	r.w.releaseQueued()
	r.w.endRound()
	r.pending = 0
	for port, q := range r.q {
		for len(q.Out) > 0 {
			d, n := q.Out[0], 1
			f := slices.Clone(r.w.area[d.Addr : d.Addr+uint64(d.Len)])
			for ; q.Out[n-1].Options&xsk.Continued != 0; n++ {
				more := q.Out[n]
				f = append(f, r.w.area[more.Addr:more.Addr+uint64(more.Len)]...)
			}
			if d.Options&xsk.WithMetadata != 0 {
				completeByMetadata(r.w.area[d.Addr-xsk.MetadataLen:d.Addr], f)
			}
			q.Out = q.Out[n:]
			r.sent++
			if r.vlan && port == portClient && len(f) > 18 && string(f[12:16]) == "\x88\xa8\x00\x05" {
				r.came(portServer, slices.Delete(f, 12, 16))
			} else {
				r.came(port, f)
			}
		}
		q.Out = nil
	}
}

// end lets what waits run out, and balances the books.
func (r *fuzzRun) end() {
	r.turn()
	for range 3 {
		r.now += secondTicks + 1
		r.turn()
	}
	r.w.published.publish(&r.w.counts, &r.w.drops, &r.w.denied)
	c := r.w.published.read()
	total := uint64(len(r.w.neighQueue) + len(r.w.fragQueue.list))
	for _, n := range c.Drops {
		total += n
	}
	extra := 0 // fragments that one packet became, but for the first
	for _, g := range r.in {
		extra += max(0, len(g.pieces)-1)
	}
	if c.Values[counter.RxPackets] != uint64(len(r.in)) || c.Values[counter.TxPackets] != uint64(r.sent) {
		r.t.Fatalf("counted %d in and %d out, were %d and %d", c.Values[counter.RxPackets], c.Values[counter.TxPackets], len(r.in), r.sent)
	}
	answers := c.Values[counter.Resets] + c.Values[counter.Aborts] + c.Values[counter.ICMPErrors] + uint64(r.challenges)
	if in := c.Values[counter.RxPackets] + answers + uint64(extra); in != c.Values[counter.TxPackets]+total {
		r.t.Fatalf("%d in, of it %d answers and %d more fragments; %d out, %d dropped or waiting: %+v", in, answers, extra, c.Values[counter.TxPackets], total, c)
	}
	r.framesHome()
}
