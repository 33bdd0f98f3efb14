package steer

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// A flowRig is a flow table in maps, the programs that read it, and a packet loop in memory
// on the same table.
type flowRig struct {
	testing.TB
	maps     map[string]*ebpf.Map
	table    []byte // flow_table
	index    []byte
	nextHops []byte // flow_next_hops
	gone     []byte
	state    *flowcache.State
	flows    *conntrack.Table
	maker    *conntrack.Worker
	router   *route.Watcher
	loop     *worker.Worker
	queues   [2]*lbtest.Memory
	umem     *xsk.Umem
	p        *Program
	hooks    []hook // that the kernel has
	sums     bool   // the kernel knows BPF_F_IPV6, and tests the sums of whole packets
}

// hook is a program with the kinds of packet that it is given.
type hook struct {
	name   string
	prog   *ebpf.Program
	tcx    bool
	direct bool // TCX without BPF_F_IPV6
	noSum  bool // the kernel gives up its sum of all bytes, as where padding is taken off
}

const (
	tcxNext     = 0xffffffff
	tcxRedirect = 7
	cell        = 64
)

// makeArray makes a map that can be mapped, and maps it.
func makeArray(t testing.TB, name string, valueSize, entries int) (*ebpf.Map, []byte) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(valueSize), MaxEntries: uint32(entries),
		Flags: unix.BPF_F_MMAPABLE,
	})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	const page = 4096
	size := (valueSize + 7) &^ 7 * entries
	b, err := unix.Mmap(m.FD(), 0, (size+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(b)) })
	return m, b
}

// The rig is the memory of its flow table.
func (r *flowRig) Last() []byte { return nil }
func (r *flowRig) Keep() error  { return nil }
func (r *flowRig) Drop() error  { return nil }

func (r *flowRig) Table(size int64) ([]byte, error) {
	r.maps["flow_table"], r.table = makeArray(r, "flow_table", cell, int(size)/cell)
	return r.table, nil
}

func (r *flowRig) Index(size int64) ([]byte, error) {
	r.maps["flow_index"], r.index = makeArray(r, "flow_index", cell, int(size)/cell)
	return r.index, nil
}

var (
	rigMACs    = [4][6]byte{{2, 0, 0, 0, 1, 1}, {2, 0, 0, 0, 1, 2}, {2, 0, 0, 0, 1, 3}, {2, 0, 0, 0, 1, 4}}
	rigTags    = [4]uint32{2: unix.ETH_P_8021Q<<16 | 300, 3: unix.ETH_P_8021AD<<16 | 4094} // ports 2 and 3 are VLANs of port 1
	rigMTUs    = [...]uint32{9000, 1500, 1280, 700}
	rigFailed  = netip.MustParseAddr("10.9.0.9")
	rigReturn  = netip.MustParseAddr("10.9.0.10") // sends back to the node
	rigNetwork = [2]netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("10.0.0.0/8")}
)

// rigHop is a next hop of port, by the number of its MTU.
func rigHop(port, mtu int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(port), byte(mtu), 1}) }

// newFlowRig makes a rig for some flows.
func newFlowRig(t testing.TB, maxFlows int) *flowRig {
	t.Helper()
	r := newXDPRig(t, maxFlows)
	r.loadTCX()
	return r
}

// needFlowPrograms skips the test on a kernel that cannot load programs that read the flow table.
func needFlowPrograms(t testing.TB) {
	t.Helper()
	labtest.Require(t)
	_ = rlimit.RemoveMemlock() // matters before kernel 5.11 only
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnKtimeGetCoarseNs); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("skipped: the kernel cannot load programs that read the flow table (Linux 5.12)")
	}
}

// newXDPRig makes a rig that has the XDP program alone.
func newXDPRig(t testing.TB, maxFlows int) *flowRig {
	t.Helper()
	needFlowPrograms(t)
	r := &flowRig{TB: t, maps: map[string]*ebpf.Map{}}
	var err error
	r.flows, err = conntrack.Open(conntrack.Config{MaxFlows: maxFlows, Workers: 2, MaxEndpoints: 1 << 10, Memory: r, NextHops: 1 << 12})
	must(t, err)
	t.Cleanup(func() { r.flows.Close() })
	r.maker = r.flows.Worker(1)
	r.maker.Online()
	r.makeLoop()
	var state []byte
	r.maps["flow_state"], state = makeArray(t, "flow_state", int(unsafe.Sizeof(flowcache.State{})), 1)
	r.maps["flow_next_hops"], r.nextHops = makeArray(t, "flow_next_hops", cell, len(r.router.Adjacencies()))
	r.maps["flow_gone"], r.gone = makeArray(t, "flow_gone", 8, 64)
	r.maps["flow_counts"], _ = makeArray(t, "flow_counts", 16, 1)
	r.maps["flow_repeated"], err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "flow_repeated", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(flowcache.Repeated{})), MaxEntries: flowcache.MaxPorts,
	})
	must(t, err)
	t.Cleanup(func() { r.maps["flow_repeated"].Close() })
	r.state = (*flowcache.State)(unsafe.Pointer(&state[0]))
	shape := r.flows.Shape()
	*r.state = flowcache.State{
		Seed: shape.Seed, Tick0: uint64(shape.Epoch), Buckets: shape.Buckets, From: 1,
		ConnsAt: uint32(shape.Conns / cell), EntriesAt: uint32(shape.Entries / cell), ServicesAt: 32,
	}
	for i, tag := range rigTags {
		r.state.Ports[i] = flowcache.Port{IfIndex: 1, Flags: flowcache.PortXDP, VLAN: flowcache.VLANTag(tag)}
	}
	r.loadXDP()
	r.syncNextHops()
	return r
}

// awaited is the time after a process has died whose successor is awaited.
var awaited = until{Hold: ^uint64(0), Follow: ^uint64(0)}

func (r *flowRig) loadXDP() {
	r.p = closed(r, load(r, Config{Flows: r.maps}))
	must(r, r.p.maps.until.Set(awaited))
	must(r, r.p.interfaces.set(loopback, 0, ownMAC, 0))
	vlans := map[VLAN]net.HardwareAddr{0: ownMAC}
	for _, tag := range arriving {
		vlans[VLAN(tag)] = ownMAC
	}
	must(r, r.p.interfaces.setVLANs(loopback, 0, nil, vlans))
	repeat, err := r.p.programs.repeat.get(r.p.programs.loadRepeat)
	must(r, err)
	r.hooks = []hook{{name: "xdp", prog: repeat}}
}

func (r *flowRig) loadTCX() {
	with, err := r.p.programs.ingress()
	if t, ok := r.TB.(*testing.T); ok && errors.Is(err, unix.EINVAL) {
		t.Run("tcx", func(t *testing.T) {
			needTCX(t)
			t.Error(err)
		})
		return
	}
	must(r, err)
	if r.sums = knowsIPv6Sums(); r.sums {
		r.hooks = append(r.hooks, hook{name: "tcx", prog: with, tcx: true})
	}
	without, err := r.p.programs.loadIngress(false)
	must(r, err)
	r.Cleanup(func() { without.Close() })
	r.hooks = append(r.hooks, hook{name: "tcx without BPF_F_IPV6", prog: without, tcx: true, direct: true})
}

// within returns the rig for a subtest, as it was made.
func (r *flowRig) within(t *testing.T) *flowRig {
	in, state := *r, *r.state
	in.TB = t
	clear(in.gone)
	in.syncNextHops()
	t.Cleanup(func() {
		*in.state = state
		must(t, in.p.maps.until.Set(awaited))
		must(t, in.p.interfaces.set(loopback, 0, ownMAC, 0))
	})
	return &in
}

func (r *flowRig) makeLoop() {
	var hops []route.StaticHop
	for port := range rigTags {
		for mtu := range rigMTUs {
			hops = append(hops, route.StaticHop{
				Port: port, NextHop: rigHop(port, mtu), MAC: [6]byte{2, 1, byte(port), 0, 0, byte(mtu)}, Src: rigMACs[port], MTU: rigMTUs[mtu],
			})
		}
	}
	hops = append(hops,
		route.StaticHop{Port: 1, NextHop: rigFailed, MAC: [6]byte{2, 1, 1}, Src: rigMACs[1], MTU: 9000},
		route.StaticHop{Port: 1, NextHop: rigReturn, MAC: [6]byte(ownMAC), Src: rigMACs[1], MTU: 9000})
	r.router = route.Static(map[netip.Prefix]route.Path{}, hops)
	r.router.SetState(1, rigFailed, route.Failed)
	var err error
	r.umem, err = xsk.NewUmem(1024, xsk.FrameSize)
	must(r, err)
	r.Cleanup(func() { r.umem.Close() })
	var node atomic.Pointer[worker.Node]
	node.Store(&worker.Node{Addresses: snat.New(snat.Config{})})
	var vips atomic.Pointer[bart.Lite]
	vips.Store(new(bart.Lite))
	r.loop = worker.New(worker.Config{
		CPU: -1, Ports: len(rigTags), MaxPorts: len(rigTags), Flows: r.flows,
		Frontends: table.New(table.Config{Tick: r.flows.Tick}), Router: r.router, Memory: r.umem,
		Affinity: worker.NewAffinity(r.flows), CIDs: worker.NewCIDs(r.flows),
		Node: &node, VIPs: &vips, EndpointRemovalGrace: 10 * time.Second,
	})
	for i := range r.queues {
		r.queues[i] = &lbtest.Memory{}
		r.loop.SetPort(i, worker.Port{Queue: r.queues[i], Ring: 256})
	}
	for i := len(r.queues); i < len(rigTags); i++ {
		r.loop.SetPort(i, worker.Port{Tag: rigTags[i], Under: 1})
	}
	for i := range r.umem.Frames() {
		r.loop.AddFrame(r.umem.Addr(i))
	}
	worker.Connect([]*worker.Worker{r.loop})
	r.loop.Refill()
}

// syncNextHops gives the programs the adjacencies as they are.
func (r *flowRig) syncNextHops() {
	adj := r.router.Adjacencies()
	copy(r.nextHops, unsafe.Slice((*byte)(unsafe.Pointer(&adj[0])), len(adj)*cell))
}

// word is a next-hop word; hop is the number of the adjacency.
func (r *flowRig) word(hop uint32, mtu uint32) uint64 {
	return uint64(r.router.Adjacencies()[hop].Stamp())<<32 | uint64(mtu)<<16 | uint64(hop)
}

// nextHop is the number of a next hop.
func (r *flowRig) nextHop(port int, hop netip.Addr) uint32 {
	n, ok := r.router.Adjacency(port, hop)
	if !ok {
		r.Fatalf("no next hop %s by port %d", hop, port)
	}
	return n
}

func (r *flowRig) connCell(ref conntrack.Ref) []byte {
	at := int(r.flows.Shape().Conns) + int(ref.Conn())*connSize
	return r.table[at : at+connSize]
}

// entryCells are both entries of a connection.
func (r *flowRig) entryCells(ref conntrack.Ref) []byte {
	at := int(r.flows.Shape().Entries) + int(ref.Conn())*2*cell
	return r.table[at : at+2*cell]
}

// Offsets in a Conn, an Entry and an Adjacency.
const (
	connSize       = 32
	connState      = 0
	connNumbers    = 20
	entryNumbers   = 16 // of IPv4, see conntrack.Entry.Note
	entrySeen      = 60
	adjacencyStamp = 44
)

// setState gives a connection a state, as it has it when it has lasted.
func (r *flowRig) setState(ref conntrack.Ref, s flowstate.State) {
	const slow, young, stateMask, heard = 1 << 4, 1 << 15, 0xf, 3 << 28
	b := r.connCell(ref)[connState:]
	word := binary.NativeEndian.Uint32(b)&^(slow|young|stateMask) | uint32(s)
	if s == flowstate.Stream {
		word |= heard // proven: another flow that needs room does not evict it
	}
	binary.NativeEndian.PutUint32(b, word)
}

type fataler interface{ Fatalf(string, ...any) }

// run gives a packet to the hook's program. It returns the packet as it is then, and whether
// the program has forwarded it.
func (r *flowRig) run(t fataler, h *hook, packet []byte, gso int) (out []byte, forwarded bool) {
	out = make([]byte, len(packet)+64)
	o := &ebpf.RunOptions{Data: packet, DataOut: out}
	if h.tcx {
		o.Context = &skb{GSOSize: uint32(gso)}
		if gso == 0 && r.sums && !h.noSum {
			o.Flags = testChecksumComplete
		}
	}
	action, err := h.prog.Run(o)
	if err != nil {
		t.Fatalf("%s: test run of %x: %v", h.name, packet, err)
	}
	switch {
	case !h.tcx && action == xdpRedirect, h.tcx && action == tcxRedirect:
		return o.DataOut, true
	case !h.tcx && action == xdpPass, h.tcx && action == tcxNext:
		return o.DataOut, false
	}
	t.Fatalf("%s: action %d", h.name, int32(action))
	return nil, false
}

// testChecksumComplete has the kernel sum all bytes of the packet before the program runs,
// and fail if its sum is not right afterwards.
const testChecksumComplete = 1 << 2

// skb is struct __sk_buff.
type skb struct {
	_       [44]uint32
	GSOSize uint32
	_       [3]uint32
}

// forward gives a packet to the packet loop, and returns what it has sent and by which port.
func (r *flowRig) forward(packet []byte) (out []byte, port int) {
	q := r.queues[0]
	if len(q.Empty) == 0 {
		r.loop.Refill()
	}
	a := q.Empty[len(q.Empty)-1] + xsk.Headroom
	q.Empty = q.Empty[:len(q.Empty)-1]
	umem := r.umem.Bytes()
	copy(umem[a:], packet)
	q.In = append(q.In, xsk.Desc{Addr: a, Len: uint32(len(packet))})
	r.loop.Round()
	port = -1
	for i, q := range r.queues {
		for _, d := range q.Out {
			if port >= 0 {
				r.Fatal("two packets were sent")
			}
			out, port = append(out, umem[d.Addr:d.Addr+uint64(d.Len)]...), i
		}
		q.Out = q.Out[:0]
	}
	return out, port
}
