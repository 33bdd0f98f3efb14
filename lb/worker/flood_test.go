package worker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// flood is honest clients and a flood of forged packets, ten times as many, at a load
// balancer in memory whose Service has one endpoint.
type flood struct {
	b       *bench
	rng     *rand.Rand
	tick    uint32
	forge   func(f *flood) []segment // what one forged connection attempt sends, of late
	server  *server
	clients map[netip.AddrPort]*client
	next    uint32 // number of the next client
	out     []segment
	direct  bool             // the server answers clients past the load balancer
	back    []netip.AddrPort // where forged packets claimed to come from, for blind ACKs
}

const (
	honestPerTick = 10 // 160 a second
	forgedPerTick = 10 * honestPerTick
	established   = 200
)

var floodTo = netip.AddrPortFrom(node4, 80)

// floodAddr is the n-th address behind the clients' router.
func floodAddr(n uint32) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{44, byte(n >> 22), byte(n >> 14), byte(n >> 6)}), uint16(1024+n&63))
}

func newFlood(t *testing.T, seed uint64, forge func(*flood) []segment) *flood {
	rng := rand.New(rand.NewPCG(seed, 1))
	f := &flood{b: newBench(t), rng: rng, forge: forge, clients: map[netip.AddrPort]*client{},
		server: &server{rng: rng, conns: map[netip.AddrPort]*serverConn{}}}
	f.b.round()
	f.tick = f.b.w.tick
	return f
}

// begin adds an honest client. One with say 0 says one thing and closes.
func (f *flood) begin(proto uint8, say uint32) *client {
	c := &client{addr: floodAddr(f.next), to: floodTo, proto: proto, begun: f.tick, next: f.rng.Uint32(), say: say}
	f.next++
	f.clients[c.addr] = c
	return c
}

// step is one tick: everybody's packets pass the load balancer once.
func (f *flood) step(forged int) {
	f.tick++
	f.b.w.tick, f.server.tick = f.tick, f.tick
	f.server.timers()
	answers := f.server.out
	f.server.out = nil
	if f.direct {
		for i := range answers {
			f.hear(&answers[i])
		}
		answers = nil
	}
	for _, c := range f.clients {
		f.out = append(f.out, c.timers(f.tick)...)
	}
	for range forged {
		f.out = append(f.out, f.forge(f)...)
	}
	requests := f.out
	f.out = nil
	f.rng.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	for len(requests) > 0 || len(answers) > 0 {
		n, m := min(len(requests), batchSize), min(len(answers), batchSize)
		for i := range requests[:n] {
			f.b.give(portClient, requests[i].frame(f.b.t, macClient, macWeir))
		}
		for i := range answers[:m] {
			f.b.give(portServer, answers[i].frame(f.b.t, macServer, macWeirB))
		}
		requests, answers = requests[n:], answers[m:]
		f.deliver(f.b.roundAtTheSameTime())
	}
	f.b.roundAtTheSameTime()
}

func (f *flood) deliver(left [3][][]byte) {
	for _, frame := range left[portServer] {
		f.server.receive(parseSegment(frame))
	}
	for _, frame := range left[portClient] {
		g := parseSegment(frame)
		f.hear(&g)
	}
}

// hear gives an answer to its client.
func (f *flood) hear(g *segment) {
	if c := f.clients[g.dst]; c != nil {
		f.out = append(f.out, c.receive(g, f.tick)...)
	}
}

// forged returns a source address of nobody's.
func (f *flood) forged() netip.AddrPort { return floodAddr(1<<24 + f.rng.Uint32N(1<<26)) }

func forgedSYN(f *flood) []segment {
	return []segment{{src: f.forged(), dst: floodTo, proto: header.ProtoTCP, flags: header.SYN, seq: f.rng.Uint32()}}
}

// forgedHandshake follows a SYN, a second later, with an ACK that guesses.
func forgedHandshake(f *flood) []segment {
	f.back = append(f.back, f.forged())
	out := []segment{{src: f.back[len(f.back)-1], dst: floodTo, proto: header.ProtoTCP, flags: header.SYN, seq: 1000}}
	if len(f.back) > forgedPerTick*secondTicks {
		out = append(out, segment{src: f.back[0], dst: floodTo, proto: header.ProtoTCP, flags: header.ACK, seq: 1001, ack: f.rng.Uint32(), length: 10})
		f.back = f.back[1:]
	}
	return out
}

func forgedQuery(f *flood) []segment {
	return []segment{{src: f.forged(), dst: floodTo, proto: header.ProtoUDP, length: 40}}
}

// forgedACKs are two packets in the middle of a connection that is nobody's.
func forgedACKs(f *flood) []segment {
	g := segment{src: f.forged(), dst: floodTo, proto: header.ProtoTCP, flags: header.ACK, seq: 1000, ack: 1000, length: 10}
	h := g
	h.seq += 10
	return []segment{g, h}
}

// run floods for some seconds and judges.
func (f *flood) run(t *testing.T, proto uint8, seconds int) {
	t.Helper()
	lasting := make([]*client, established)
	for i := range lasting {
		lasting[i] = f.begin(proto, 4*secondTicks+uint32(i)%secondTicks)
		if i%20 == 0 {
			f.step(0)
		}
	}
	for range 6 * secondTicks {
		f.step(0)
	}
	var honest []*client
	for range seconds * secondTicks {
		for range honestPerTick {
			honest = append(honest, f.begin(proto, 0))
		}
		f.step(forgedPerTick)
	}
	for range 4 * secondTicks {
		f.step(forgedPerTick)
	}
	late, failed := 0, 0
	for _, c := range honest {
		switch {
		case !c.open || c.failed != "" || c.sent > 2:
			failed++
		case c.sent == 2:
			late++
		}
	}
	t.Logf("%d of %d failed, %d after one retransmission; %d SYNs met another connection; %+v; drops %v",
		failed, len(honest), late, f.server.cold, f.b.lb.flows.Stats(), f.b.drops())
	if (failed+late)*20 > len(honest) {
		t.Errorf("%d of %d honest connections fail, and %d need a retransmission", failed, len(honest), late)
	}
	for i, c := range lasting {
		if !c.open || c.failed != "" {
			t.Fatalf("established connection %d: open %v, %s", i, c.open, c.failed)
		}
	}
	f.b.framesHome()
}

// A flood at ten times the honest rate leaves honest new connections at 95 % with
// their first SYN, and established ones as they are. WEIR_FLOOD_MINUTES goes on with
// other random numbers (make flood MINUTES=10).
func TestFloodLeavesHonestConnections(t *testing.T) {
	minutes, _ := strconv.Atoi(os.Getenv("WEIR_FLOOD_MINUTES"))
	until := time.Now().Add(time.Duration(minutes) * time.Minute)
	seconds := 30
	if testing.Short() {
		seconds = 12
	}
	for seed := uint64(1); seed == 1 || time.Now().Before(until); seed++ {
		for _, c := range []struct {
			name  string
			proto uint8
			forge func(*flood) []segment
			mode  conntrack.Mode
		}{
			{"SYNs", header.ProtoTCP, forgedSYN, conntrack.ModeNAT},
			{"SYNs and blind ACKs", header.ProtoTCP, forgedHandshake, conntrack.ModeNAT},
			{"queries", header.ProtoUDP, forgedQuery, conntrack.ModeNAT},
			{"SYNs without translation", header.ProtoTCP, forgedSYN, conntrack.ModeL2DSR},
			{"blind ACKs without translation", header.ProtoTCP, forgedACKs, conntrack.ModeL2DSR},
		} {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				f := newFlood(t, seed, c.forge)
				if c.mode.DSR() {
					f.b.serveDirect(c.mode, endpoint4, nil)
					f.b.round()
					f.direct = true
				}
				f.run(t, c.proto, seconds)
			})
		}
	}
}
