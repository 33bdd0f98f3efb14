package steer

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
)

// hops is how many flows a packet passes in a test run: its TTL allows no more.
const hops = 250

// BenchmarkRepeat measures the programs, by the number of flows. A packet is sent from flow
// to flow, as each changes its destination to that of the next one and sends it back to the node:
// so caches are as cold as with as many flows.
func BenchmarkRepeat(b *testing.B) {
	for _, flows := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			r := newFlowRig(b, flows*5/4)
			starts := r.fillChains(flows)
			must(b, r.p.AddFrontend(netip.MustParseAddrPort("203.0.113.1:80"), unix.IPPROTO_UDP, 0))
			k := raceKey(0, false)
			unknown := racePacket(&k)
			for b.Loop() {
			}
			for i := range r.hooks {
				b.ReportMetric(r.timeHits(&r.hooks[i], starts), "ns/hit-"+[]string{"xdp", "tcx", "tcx-direct"}[i])
			}
			for name, prog := range map[string]*ebpf.Program{"steer": steering(r, r.p), "xdp": r.hooks[0].prog, "tcx": r.hooks[1].prog} {
				_, each, err := prog.Benchmark(unknown, 500_000, nil)
				must(b, err)
				b.ReportMetric(float64(each.Nanoseconds()), "ns/miss-"+name)
			}
			b.ReportMetric(0, "ns/op") // means nothing here
		})
	}
}

// fillChains makes flows in chains, and returns the packets with which some of them begin.
func (r *flowRig) fillChains(n int) (starts [][]byte) {
	rnd := rand.New(rand.NewPCG(1, 1))
	client := netip.MustParseAddrPort("198.18.0.1:1000")
	word := r.word(r.nextHop(1, rigReturn), 1500)
	address := func(i int) netip.AddrPort {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 0x0a000000+uint32(i))
		return netip.AddrPortFrom(netip.AddrFrom4(b), 80)
	}
	order := rnd.Perm(n - 1)
	for at, i := range order {
		next := order[(at+1)%len(order)]
		k := conntrack.MakeKey(client, address(i+1), unix.IPPROTO_UDP)
		ref, outcome := r.maker.Create(&conntrack.NewFlow{
			Client: k, Endpoint: address(next + 1), Mode: conntrack.ModeDNAT, Tick: r.flows.Tick(),
		})
		if outcome != conntrack.Created {
			r.Fatalf("flow %d: %v", at, outcome)
		}
		r.setState(ref, flowstate.Stream)
		r.flows.Settle(ref, word)
		if at%hops == 0 && len(starts) < 400 {
			packet := racePacket(&k)
			packet[22] = 255
			sum4(packet[14:])
			starts = append(starts, packet)
		}
	}
	return starts
}

// timeHits is the time for a packet in ns, of the quickest of three passes.
func (r *flowRig) timeHits(h *hook, starts [][]byte) float64 {
	var passes []float64
	for range 3 {
		var all time.Duration
		before, runs := r.repeatedPackets(), 0
		for _, packet := range starts {
			_, each, err := h.prog.Benchmark(packet, hops, nil)
			must(r, err)
			all += each
			runs++
		}
		if n := r.repeatedPackets() - before; n < uint64(runs)*hops*9/10 {
			r.Fatalf("%s: %d of %d packets were forwarded", h.name, n, runs*hops)
		}
		passes = append(passes, float64(all.Nanoseconds())/float64(runs))
	}
	return slices.Min(passes)
}
