package steer

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
)

// byFlowRig is a full table of flows from two addresses, at which packets are told by flow.
type byFlowRig struct {
	*flowRig
	progs []hook
	keys  []conntrack.Key // of the endpoints' packets
}

func newByFlowRig(t testing.TB, flows int) *byFlowRig {
	r := &byFlowRig{flowRig: newFlowRig(t, flows)}
	asking, err := r.p.programs.asking.get(r.p.programs.loadAsking)
	must(t, err)
	r.progs = append(slices.Clone(r.hooks[:min(2, len(r.hooks))]), hook{name: "xdp without forwarding", prog: asking})
	rnd := rand.New(rand.NewPCG(1, 2))
	snats := [2]netip.Addr{snat4, snat6}
	for _, a := range snats {
		must(t, r.p.SetSNAT(a, NoPorts[0], NoPorts[1]))
	}
	for i := range flows - 1 {
		v6 := i%2 == 1
		b := netip.MustParseAddr("2001:db8::").As16()
		binary.BigEndian.PutUint64(b[8:], rnd.Uint64())
		client, endpoint, front, source := netip.AddrFrom16(b), netip.MustParseAddr("2001:db8:7::7"), front6, snats[1]
		if !v6 {
			client, endpoint, front, source = netip.AddrFrom4([4]byte{198, 18, b[9], b[10]}), netip.MustParseAddr("10.0.0.7"), front4, snats[0]
		}
		ref, outcome := r.maker.Create(&conntrack.NewFlow{
			Client:   conntrack.MakeKey(netip.AddrPortFrom(client, uint16(rnd.Uint32())|1), front, unix.IPPROTO_UDP),
			Endpoint: netip.AddrPortFrom(endpoint, uint16(80+i%4/2)), EndpointID: 1,
			SNAT: source, PortLo: 61000, PortHi: 29999, Mode: conntrack.ModeNAT, Tick: r.flows.Tick(),
		})
		if outcome != conntrack.Created {
			t.Fatalf("flow %d: %v", i, outcome)
		}
		r.setState(ref, flowstate.Stream)
		r.keys = append(r.keys, r.flows.Entry(ref.Other()).Tuple())
	}
	return r
}

// taken counts how many of the packets the program does not leave to the kernel.
func (r *byFlowRig) taken(t *testing.T, h *hook, packets func(yield func([]byte) bool)) (taken, all int) {
	before, err := r.p.counters.slot(0)
	must(t, err)
	for b := range packets {
		r.run(t, h, b, 0)
		all++
	}
	after, err := r.p.counters.slot(0)
	must(t, err)
	return all - int(after[PassNoMatch]-before[PassNoMatch]), all
}

// A program takes the packets of every flow of a full table, whichever port it has and whatever
// state it is in, and no others to the same addresses and ports: its answer is the table's.
func TestPacketsToSNATPortsAreTakenByFlow(t *testing.T) {
	r := newByFlowRig(t, 20_000)
	other := func(k conntrack.Key) conntrack.Key { // from another port of the endpoint
		return conntrack.MakeKey(netip.AddrPortFrom(k.Src().Addr(), k.Src().Port()+100), k.Dst(), k.Proto())
	}
	for _, h := range r.progs {
		for name, tt := range map[string]struct {
			of    func(conntrack.Key) conntrack.Key
			taken bool
		}{
			"flows":         {func(k conntrack.Key) conntrack.Key { return k }, true},
			"other sources": {other, false},
		} {
			taken, all := r.taken(t, &h, func(yield func([]byte) bool) {
				for i := range r.keys {
					if k := tt.of(r.keys[i]); !yield(racePacket(&k)) {
						return
					}
				}
			})
			// In doubt, of one bucket in 10,000, a packet is taken.
			if want := map[bool]int{true: all, false: 0}[tt.taken]; taken < want || taken > want+all/1000 {
				t.Errorf("%s: %s: %d of %d packets are taken, want %d", h.name, name, taken, all, want)
			}
		}
	}
}

// Errors about packets of flows, and fragments of them, are told by flow too.
func TestOtherPacketsOfFlowsAreTakenByFlow(t *testing.T) {
	r := newByFlowRig(t, 2000)
	type packets struct{ error, fragment []byte }
	of := func(k conntrack.Key, id uint32) packets {
		b := racePacket(&k)
		if k.Family() == 4 {
			q := slices.Clone(b[atIP:])
			copy(q[12:], b[atIP+16:atIP+20])
			copy(q[16:], b[atIP+12:atIP+16])
			copy(q[20:], b[atIP+22:atIP+24])
			copy(q[22:], b[atIP+20:atIP+22])
			return packets{icmp4(t, layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodePort, q), fragment4(b, uint16(id), 0, true)}
		}
		q := slices.Clone(b[atIP:])
		copy(q[8:], b[atIP+24:atIP+40])
		copy(q[24:], b[atIP+8:atIP+24])
		copy(q[40:], b[atIP+42:atIP+44])
		copy(q[42:], b[atIP+40:atIP+42])
		return packets{icmp6(t, layers.ICMPv6TypeDestinationUnreachable, layers.ICMPv6CodePortUnreachable, q), fragment6(b, id, 0, true)}
	}
	for _, h := range r.progs {
		for i, k := range r.keys[:20] {
			none := conntrack.MakeKey(k.Src(), netip.AddrPortFrom(k.Dst().Addr(), k.Dst().Port()^1), k.Proto())
			if slices.Contains(r.keys, none) {
				none = conntrack.MakeKey(netip.AddrPortFrom(k.Src().Addr(), 1), k.Dst(), k.Proto())
			}
			flow, other := of(k, uint32(2*i)), of(none, uint32(2*i+1))
			for name, tt := range map[string]struct {
				b    []byte
				want int
			}{
				"an error about a flow": {flow.error, 1}, "an error about another packet": {other.error, 0},
				"a fragment of a flow": {flow.fragment, 1}, "a fragment of another packet": {other.fragment, 0},
			} {
				taken, _ := r.taken(t, &h, func(yield func([]byte) bool) { yield(tt.b) })
				if taken != tt.want {
					t.Errorf("%s: %s, %v: taken %d times, want %d", h.name, name, k, taken, tt.want)
				}
			}
		}
	}
}

// BenchmarkByFlow measures what a packet of the node's own to a shared address costs, beside one to
// an address without flows.
func BenchmarkByFlow(b *testing.B) {
	r := newByFlowRig(b, 100_000)
	for _, h := range r.progs {
		for name, to := range map[string]netip.AddrPort{"shared": at(snat4, 22), "other": at(netip.MustParseAddr("192.0.2.77"), 22)} {
			b.Run(h.name+"/"+name, func(b *testing.B) {
				packet := packet4(b, layers.IPProtocolTCP, to)
				for b.Loop() {
					_, each, err := h.prog.Benchmark(packet, 500_000, nil)
					must(b, err)
					b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
				}
			})
		}
	}
}
