package worker

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// silent is a bench that does not answer for 30 s to connections without an entry, with a
// frontend of a kind.
func silent(t testing.TB, kind table.Kind) *bench {
	t.Helper()
	b := newBench(t)
	b.w.silences = newSilences(30 * time.Second)
	s := table.Service{
		Name:      "ns/web",
		Pools:     []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.AddrPortFrom(endpoint4, 8080)}}}},
		Frontends: []table.Frontend{{AddrPort: netip.AddrPortFrom(node4, 80), Proto: header.ProtoTCP, Kind: kind}},
	}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func midstream(port uint16) packet {
	return packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, port), dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.ACK}
}

// A connection that this node has no entry for may be another node's. Its packets get no answer
// for 30 s, then a RST: each connection by its own first packet.
func TestAnUnknownConnectionIsResetAfterItsSilence(t *testing.T) {
	for _, kind := range []table.Kind{table.LoadBalancer, table.ExternalIP} {
		b := silent(t, kind)
		send := func(seconds uint32, port uint16, answered bool) {
			t.Helper()
			out := b.after(seconds*conntrack.TicksPerSecond, midstream(port))
			if len(out[portClient]) != count(answered) || len(out[portServer])+len(out[portHost]) != 0 {
				t.Fatalf("%d frames to the client", len(out[portClient]))
			}
			if answered {
				isReset(t, out[portClient][0])
			}
		}
		send(0, 40000, false)
		send(20, 40000, false)
		send(0, 40001, false)
		send(10, 40000, true)
		send(0, 40001, false)
		send(20, 40001, true)
		send(180, 40000, false) // of a later change
		if n := b.drops()[DropNoConntrackEntry.String()]; n != 7 {
			t.Errorf("%d packets counted of 7", n)
		}
		b.framesHome()
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// While the kernel may have the connection, it gets the packets: after the silence in a takeover,
// and at once in a drain, in which routers send no connections of other nodes here.
func TestAnUnknownConnectionIsPuntedAfterItsSilence(t *testing.T) {
	b := silent(t, table.LoadBalancer)
	b.w.takeoverUntil = b.lb.flows.Tick() + 3600*conntrack.TicksPerSecond
	if out := b.after(0, midstream(40000)); len(out[portClient])+len(out[portServer])+len(out[portHost]) != 0 {
		t.Error("a packet has left in its silence")
	}
	if out := b.after(30*conntrack.TicksPerSecond, midstream(40000)); len(out[portHost]) != 1 || len(out[portClient]) != 0 {
		t.Error("a packet was not punted after its silence")
	}
	b = silent(t, table.LoadBalancer)
	b.w.takeoverUntil = 0
	b.lb.drain()
	b.one(portClient, midstream(40000).build(t), portHost)
	b.framesHome()
}

// No other node has a connection to a node port.
func TestAnUnknownConnectionToANodePortIsResetAtOnce(t *testing.T) {
	b := silent(t, table.NodePort)
	isReset(t, b.one(portClient, midstream(40000).build(t), portClient))
}

// Flows that share a slot are answered when they have shared it for a silence. A slot that has
// one flow again, or none for long, is as new.
func TestSilencesThatShareASlot(t *testing.T) {
	s := newSilences(30 * time.Second)
	const second = conntrack.TicksPerSecond
	for i, c := range []struct {
		hash uint64
		at   uint32
		want bool
	}{
		{7, 1000 * second, false}, {7, 1030 * second, true}, {7 + silenceSlots, 1031 * second, false},
		{7, 1032 * second, false}, {7 + silenceSlots, 1060 * second, false},
		{7, 1061 * second, true}, {7 + silenceSlots, 1062 * second, true}, {7 + 2*silenceSlots, 1063 * second, true},
		{7 + 2*silenceSlots, 1140 * second, true}, {7, 1160 * second, false}, {7, 1189 * second, false}, {7, 1190 * second, true},
		{7 + silenceSlots, 1341 * second, false}, {7 + silenceSlots, 1370 * second, false}, {7 + silenceSlots, 1371 * second, true},
	} {
		if got := s.over(c.hash, c.at); got != c.want {
			t.Errorf("packet %d is answered: %v", i, got)
		}
	}
	if off := newSilences(0); !off.over(7, 0) {
		t.Error("no answer without a silence")
	}
}

// A router that loses a node sends its connections here, far more than there are slots. Each
// is reset after its silence, when TCP sends again.
func TestSilencesOfManyFlows(t *testing.T) {
	const flows, second, silent = 100_000, conntrack.TicksPerSecond, 30
	s := newSilences(silent * time.Second)
	random := rand.New(rand.NewPCG(1, 2))
	type packet struct {
		flow int
		at   uint32
	}
	hashes, first := make([]uint64, flows), make([]uint32, flows)
	var packets []packet
	for i := range flows {
		hashes[i], first[i] = random.Uint64(), 1000*second+random.Uint32N(2*second)
		for pause, at := uint32(second/4), first[i]; at < first[i]+120*second; pause *= 2 {
			packets = append(packets, packet{i, at})
			at += pause
		}
	}
	slices.SortFunc(packets, func(a, b packet) int { return cmp.Compare(a.at, b.at) })
	reset := make([]uint32, flows)
	sooner, in := 0, 0
	for _, p := range packets {
		if reset[p.flow] == 0 && s.over(hashes[p.flow], p.at) {
			reset[p.flow] = p.at - first[p.flow]
			if reset[p.flow] < (silent-2)*second { // all began within 2 s
				sooner++
			}
			if reset[p.flow] <= 3*silent*second {
				in++
			}
		}
	}
	if sooner > 0 || in < flows*95/100 {
		t.Errorf("of %d flows %d are reset within three silences, %d too soon", flows, in, sooner)
	}
}

func TestSilencesDoNotAllocate(t *testing.T) {
	b := silent(t, table.LoadBalancer)
	f := midstream(40000).build(t)
	if n := testing.AllocsPerRun(100, func() {
		b.give(portClient, f)
		b.w.beginRound()
		b.w.receive()
		b.w.endRound()
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func BenchmarkMidstream(b *testing.B) {
	l := silent(b, table.LoadBalancer)
	f := midstream(40000).build(b)
	runPackets(b, l, func(int) []byte { return f })
}
