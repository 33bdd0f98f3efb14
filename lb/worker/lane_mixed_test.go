package worker

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// mixedFlow is a steady flow of a kind: a packet by which it goes on, per ingress port.
type mixedFlow struct {
	kind laneKind
	from [2]*packet
}

// Lanes forward batches of packets of all kinds, with packets without a lane or a flow
// between them, as the slow path does: a lane takes nothing from its neighbors.
func TestLanesForwardMixedBatchesAsTheSlowPath(t *testing.T) {
	b := newBench(t)
	flows := b.mixedFlows()
	random := rand.New(rand.NewPCG(13, 13))
	unknown := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, 64999), proto: header.ProtoUDP}.build(t)
	for _, in := range []int{portClient, portServer} {
		var kinds []laneKind
		var bases [][]byte
		for _, f := range flows {
			if p := f.from[in]; p != nil {
				kinds, bases = append(kinds, f.kind), append(bases, p.build(t))
			}
		}
		lanes := 0
		for turn := range 1500 {
			full := turn%2 == 1
			b.w.ports[in].FullChecksums = full
			var frames [][]byte
			for range 1 + random.IntN(batchSize) {
				i := random.IntN(len(bases))
				f := bases[i]
				switch random.IntN(12) {
				case 0, 1:
					f = kinds[i].spoiled(random, f, full)
				case 2:
					f = tagged(f, unix.ETH_P_8021Q, 7)
				case 3:
					if in == portServer {
						f = unknown
					}
				}
				frames = append(frames, f)
			}
			lanes += b.sameOnBothPaths(in, frames)
		}
		if lanes < 20000 {
			t.Errorf("port %d: %d packets in lanes: this test compares the slow path with the slow path", in, lanes)
		}
	}
	b.framesHome()
}

// mixedFlows makes two flows of each kind and protocol.
func (b *bench) mixedFlows() (flows []mixedFlow) {
	var services []table.Service
	kinds := []laneKind{
		{conntrack.ModeNAT, false, 0}, {conntrack.ModeNAT, true, 0}, {conntrack.ModeL2DSR, false, 0}, {conntrack.ModeL2DSR, true, 0},
		{conntrack.ModeIPIP, false, 0}, {conntrack.ModeGUE, false, 0},
	}
	for i, k := range kinds {
		endpoint, front, port := endpoint4, node4, uint16(90+i)
		if k.v6 {
			endpoint, front = endpoint6, node6
		}
		to := ap(endpoint, port)
		if k.mode == conntrack.ModeNAT {
			to = ap(endpoint, 8080)
		}
		s := table.Service{Name: "ns/" + k.String(), Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: to}}}}}
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(front, port), Proto: proto, Mode: k.mode})
		}
		services = append(services, s)
	}
	b.apply(nil, services...)
	for i, k := range kinds {
		for _, k.proto = range []uint8{header.ProtoTCP, header.ProtoUDP} {
			for n := range uint16(2) {
				flows = append(flows, b.mixedFlow(k, uint16(90+i), 40000+n))
			}
		}
	}
	for range 4 { // the numbers of a young connection are followed for a while
		b.ahead += 5 * secondTicks / 4
		if b.ahead > 4*secondTicks {
			b.ahead += 60 * secondTicks
		}
		for in := range 2 {
			for _, f := range flows {
				if f.from[in] != nil {
					b.through(in, [][]byte{f.from[in].build(b.t)}, true)
				}
			}
		}
	}
	return flows
}

// mixedFlow begins a flow of the kind from a client's port.
func (b *bench) mixedFlow(k laneKind, to, from uint16) mixedFlow {
	req := request(k.v6, k.proto)
	req.src, req.dst = netip.AddrPortFrom(req.src.Addr(), from), netip.AddrPortFrom(req.dst.Addr(), to)
	f := b.one(portClient, req.build(b.t), portServer)
	flow := mixedFlow{kind: k}
	if k.mode == conntrack.ModeNAT {
		ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: k.proto, df: true}
		ans.dst = ap(snat4, binary.BigEndian.Uint16(f[k.l4():]))
		if k.v6 {
			ans.src, ans.dst = ap(endpoint6, 8080), ap(snat6, binary.BigEndian.Uint16(f[k.l4():]))
		}
		if k.proto == header.ProtoTCP {
			ans.flags, ans.seq, ans.ack = header.SYN|header.ACK, 5000, req.seq+1
		}
		b.one(portServer, ans.build(b.t), portClient)
		if k.proto == header.ProtoTCP {
			ans.flags, ans.seq = header.ACK, ans.seq+1
		}
		ans.payload = 20
		flow.from[portServer] = &ans
	}
	if k.proto == header.ProtoTCP {
		req.flags, req.seq = header.ACK, req.seq+1
		if flow.from[portServer] != nil {
			req.ack = flow.from[portServer].seq
		}
	}
	b.one(portClient, req.build(b.t), portServer)
	flow.from[portClient] = &req
	return flow
}
