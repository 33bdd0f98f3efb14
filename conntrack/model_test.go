package conntrack

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// model is the table as a list: slow, and with every rule spelled out.
type model struct {
	flows []*modelFlow
	tick  uint32
	// fullAt is the tick at which each endpoint last had no fresh port, + 1.
	fullAt map[netip.AddrPort]uint32
}

type modelFlow struct {
	client, answer Key
	endpoint       netip.AddrPort
	number         uint32
	lastSeen, born uint32
	state          flowstate.State
	answered       uint32    // tick of the first answer to a UDP flow
	sides          [2]uint32 // when each side of a UDP flow was last seen
	heard          int       // at how many looks both sides of a UDP flow were

	word uint32 // the state word of TCP
	seq  uint32 // of the client, once closing
	ts   uint32

	superseded bool // the client's side is forgotten
}

func (m *model) find(k Key) (*modelFlow, bool) {
	for _, f := range m.flows {
		if f.client == k && !f.superseded {
			return f, true
		}
		if f.answer == k {
			return f, false
		}
	}
	return nil, false
}

func (m *model) remove(f *modelFlow) {
	for i := range m.flows {
		if m.flows[i] == f {
			m.flows = append(m.flows[:i], m.flows[i+1:]...)
			return
		}
	}
}

// takes says whether the endpoint of f, which is over or not, would take a SYN.
func (f *modelFlow) takes(seq, ts uint32, hasTS bool) bool {
	if f.state == flowstate.Close {
		return true
	}
	if f.state != flowstate.TimeWait {
		return false
	}
	if f.word&flowstate.EndpointFirst == 0 {
		return true
	}
	known := hasTS && f.word&flowstate.TsKnown != 0
	if known && int32(ts-f.ts) < 0 {
		return false
	}
	return int32(seq-f.seq) > 0 || known && int32(ts-f.ts) > 0
}

// portClass says how early the port of f passes to n. Ended and silent flows are as good.
func (f *modelFlow) portClass(n *NewFlow) PortClass {
	const second = TicksPerSecond
	idle, client := n.Tick-f.lastSeen, n.Tick-f.sides[0]
	udp := f.state == flowstate.Replied || f.state == flowstate.Stream
	isProven := f.state == flowstate.Stream && f.heard == 3
	switch f.state {
	case flowstate.Replied, flowstate.Stream, flowstate.SynSent, flowstate.SynRecv, flowstate.Unreplied:
		if idle >= 10*second && isProven {
			return portStream
		} else if idle >= 10*second {
			return portSilent
		} else if udp && client >= 10*second {
			return portOneSided
		} else if isProven {
			return portInUse
		} else if udp && idle >= second || idle >= 2*second {
			return portIdle
		} else if udp {
			return portAnswered
		}
		return portHalfOpen
	}
	if f.takes(n.Seq, n.TSval, n.HasTS) {
		return portSilent
	}
	return portInUse
}

var smallNumber = rapid.Uint32Range(0, 6)

// send lets both the table and the model see a packet of f.
func (m *model) send(rt *rapid.T, tab *Table, w *Worker, f *modelFlow, side int, flags uint8) {
	seq, length := smallNumber.Draw(rt, "seq"), smallNumber.Draw(rt, "length")
	ts, hasTS := smallNumber.Draw(rt, "ts"), rapid.Bool().Draw(rt, "hasTS")
	var options []byte
	if hasTS {
		options = tsOption(ts)
	}
	if f.superseded {
		g := tcp.Segment{Flags: flags, Seq: seq, Length: length, Options: options}
		if v := tab.TrackTCP(tab.lookup(f.answer), &g, m.tick); v != flowstate.Stale {
			rt.Fatalf("verdict %d for a packet of a superseded connection", v)
		}
		return
	}
	r := tab.lookup([]Key{f.client, f.answer}[side])
	if r == 0 || r.Forward() != (side == 0) {
		rt.Fatalf("look-up of side %d gives %d", side, r)
	}
	// The states of TCP have a model of their own; here they are the table's.
	c := tab.Conn(r)
	ack := c.endpointNext
	if seq += c.clientNext; side == 1 {
		seq, ack = seq-c.clientNext+c.endpointNext, c.clientNext
	}
	g := tcp.Segment{Flags: flags, Seq: seq, Ack: ack, Length: length, Options: options}
	v := tab.TrackTCP(r, &g, m.tick)
	if reopen := side == 0 && flags == tcp.FlagSYN && f.state == flowstate.TimeWait; (v == flowstate.Reopen) != reopen {
		rt.Fatalf("verdict %d, the model says reopen %v", v, reopen)
	}
	if v == flowstate.Reopen {
		if !w.Supersede(r) {
			rt.Fatal("a connection that is over is not superseded")
		}
		f.superseded = true // the endpoint may hold TIME_WAIT: the port stays taken
		return
	}
	f.word, f.state, f.lastSeen = c.state, c.State(), c.LastSeen()
	f.seq, f.ts = c.clientNext, c.extra
}

func tsOption(ts uint32) []byte {
	return []byte{1, 1, 8, 10, byte(ts >> 24), byte(ts >> 16), byte(ts >> 8), byte(ts), 0, 0, 0, 0}
}

// Whatever happens in whatever order, the table says what the model says.
func TestTableBehavesLikeTheModel(t *testing.T) {
	endpoints := []netip.AddrPort{ep1, ap("10.99.0.2:8080"), ep6}
	const ports = 4
	rapid.Check(t, func(rt *rapid.T) {
		tab := openHeap(t, Config{MaxFlows: 1024, Workers: 1, MaxEndpoints: 8})
		tab.index.buckets = tab.index.buckets[:10] // so that some overflow
		w := tab.Worker(0)
		w.Online()
		m := &model{tick: 100, fullAt: map[netip.AddrPort]uint32{}}
		timeouts, _ := flowstate.Timeouts{}.Ticks()
		pick := func() *modelFlow {
			if len(m.flows) == 0 {
				rt.Skip("no flow")
			}
			return m.flows[rapid.IntRange(0, len(m.flows)-1).Draw(rt, "flow")]
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				n := rapid.IntRange(0, len(endpoints)-1).Draw(rt, "endpoint")
				c := rapid.IntRange(0, 30).Draw(rt, "client")
				proto := rapid.SampledFrom([]uint8{ProtoTCP, ProtoTCP, ProtoUDP}).Draw(rt, "proto")
				f := &NewFlow{
					Client: MakeKey(client(c), vip, proto), Endpoint: endpoints[n], EndpointID: uint32(n),
					Mode: ModeNAT, SNAT: snat, PortLo: 2000, PortHi: 2000 + ports - 1, Tick: m.tick,
					Keep: Keep(rapid.IntRange(0, 2).Draw(rt, "keep")),
					Seq:  smallNumber.Draw(rt, "seq"), TSval: smallNumber.Draw(rt, "ts"), HasTS: rapid.Bool().Draw(rt, "hasTS"),
				}
				if endpoints[n].Addr().Is6() {
					src := netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 15: byte(c)}), 999)
					f.Client, f.SNAT = MakeKey(src, vip6, proto), snat6
				}
				m.create(rt, tab, w, f, ports)
			},
			"packet": func(rt *rapid.T) {
				f := pick()
				side := rapid.IntRange(0, 1).Draw(rt, "side")
				r := tab.lookup([]Key{f.client, f.answer}[side])
				if f.client.Proto() == ProtoUDP {
					f.lastSeen, f.sides[side] = m.tick, m.tick
					if f.state == flowstate.Unreplied && side == 1 {
						f.state, f.answered = flowstate.Replied, m.tick
					} else if f.state == flowstate.Replied && m.tick-f.born > 2*TicksPerSecond && m.tick > f.answered {
						f.state = flowstate.Stream
					}
					if tab.NextHop(r)>>32 != 0 && rapid.Bool().Draw(rt, "fast") {
						tab.Entry(r).Touch(m.tick)
					} else {
						tab.TrackUDP(r, m.tick)
					}
					return
				}
				flags := rapid.SampledFrom([]uint8{tcp.FlagSYN, tcp.FlagSYN | tcp.FlagACK, tcp.FlagACK, tcp.FlagACK, tcp.FlagFIN | tcp.FlagACK,
					tcp.FlagFIN | tcp.FlagACK, tcp.FlagRST, tcp.FlagRST | tcp.FlagACK, tcp.FlagPSH | tcp.FlagACK, tcp.FlagFIN, 0}).Draw(rt, "flags")
				m.send(rt, tab, w, f, side, flags)
			},
			"converse": func(rt *rapid.T) { // a whole connection, as it should be
				f := pick()
				if f.client.Proto() != ProtoTCP {
					return
				}
				first := rapid.IntRange(0, 1).Draw(rt, "first to close")
				for _, p := range []struct {
					side  int
					flags uint8
				}{{1, tcp.FlagSYN | tcp.FlagACK}, {0, tcp.FlagACK}, {first, tcp.FlagFIN | tcp.FlagACK}, {1 - first, tcp.FlagACK},
					{1 - first, tcp.FlagFIN | tcp.FlagACK}, {first, tcp.FlagACK}} {
					m.send(rt, tab, w, f, p.side, p.flags)
				}
			},
			"delete": func(rt *rapid.T) {
				f := pick()
				r := tab.lookup(f.answer)
				if !w.Delete(r) || w.Delete(r) {
					rt.Fatal("a connection is deleted once")
				}
				m.remove(f)
			},
			"renumber": func(rt *rapid.T) {
				f := pick()
				f.number = rapid.Uint32Range(0, 7).Draw(rt, "number")
				tab.SetIDs(tab.lookup(f.answer), f.number, 5)
			},
			"age": func(rt *rapid.T) {
				m.tick += rapid.SampledFrom([]uint32{0, 1, 1, 5, 16, 33, 161, 481, 1921, 24*3600*16 + 1}).Draw(rt, "ticks")
				if rapid.Bool().Draw(rt, "by the worker") {
					ageAll(tab, w, m.tick)
				} else {
					tab.Sweep(m.tick, 2000)
				}
				for i := len(m.flows) - 1; i >= 0; i-- {
					f := m.flows[i]
					idle := m.tick - f.lastSeen
					if (f.state == flowstate.Replied || f.state == flowstate.Stream) && m.tick-f.sides[0] <= 64 && m.tick-f.sides[1] <= 64 && f.heard < 3 {
						f.heard++
					}
					if idle > f.timeout(timeouts[:]) {
						m.remove(f)
					} else if flowstate.SeemsClosed(f.word) && idle > timeouts[flowstate.Close] {
						f.word |= flowstate.Unconfirmed
					}
				}
				w.Quiesce()
			},
			"": func(rt *rapid.T) { m.compare(rt, tab) },
		})
	})
}

// timeout is the documented timeout. Of a connection that may be dead it is two hours and
// five minutes at most, also of a FIN without which the receiver goes on.
func (f *modelFlow) timeout(timeouts []uint32) uint32 {
	d := timeouts[f.state]
	if f.word&flowstate.Doubted == 0 {
		return d
	}
	if f.state == flowstate.FinWait || f.state == flowstate.LastAck {
		d = timeouts[flowstate.Established]
	}
	return min(d, 7500*TicksPerSecond)
}

func (m *model) create(rt *rapid.T, tab *Table, w *Worker, f *NewFlow, ports int) {
	old, _ := m.find(f.Client)
	used, taken, best := 0, 0, portInUse
	for _, o := range m.flows {
		if o.endpoint == f.Endpoint && o.client.Proto() == f.Client.Proto() {
			used++
			if class := o.portClass(f); class <= f.Keep.last() {
				taken++
				best = min(best, class)
			}
		}
	}
	r, o := w.Create(f)
	switch {
	case old != nil:
		if o != Existed || tab.Entry(r).Tuple() != f.Client {
			rt.Fatalf("outcome %d for a tuple that exists", o)
		}
		return
	case used == ports && taken == 0:
		if o != NoPort {
			rt.Fatalf("outcome %d, want no port", o)
		}
		m.fullAt[f.Endpoint] = m.tick + 1
		return
	case o != Created:
		rt.Fatalf("outcome %d, want created", o)
	}
	src, dst := tab.NewSrc(r), tab.NewDst(r)
	answer := MakeKey(dst, src, f.Client.Proto())
	if dst != f.Endpoint || src.Addr() != f.SNAT || src.Port() < f.PortLo || src.Port() > f.PortHi {
		rt.Fatalf("packets go from %v to %v", src, dst)
	}
	if was, _ := m.find(answer); was != nil {
		at := m.fullAt[f.Endpoint]
		if used < ports && (at == 0 || m.tick+1-at > shortFor) {
			rt.Fatal("a used port is taken while there are fresh ones")
		}
		if used == ports {
			m.fullAt[f.Endpoint] = m.tick + 1
		}
		if class := was.portClass(f); class > f.Keep.last() || used == ports && class != best {
			rt.Fatalf("the port of a flow in %v is taken, of class %d and not %d", was.state, class, best)
		}
		m.remove(was)
	}
	n := &modelFlow{client: f.Client, answer: answer, endpoint: f.Endpoint, number: f.EndpointID,
		lastSeen: f.Tick, born: f.Tick, state: flowstate.SynSent, word: uint32(flowstate.SynSent), sides: [2]uint32{f.Tick, f.Tick}}
	if f.Client.Proto() == ProtoUDP {
		n.state = flowstate.Unreplied
	}
	m.flows = append(m.flows, n)
}

func (m *model) compare(rt *rapid.T, tab *Table) {
	if tab.Flows() != len(m.flows) {
		rt.Fatalf("table has %d flows, the model %d", tab.Flows(), len(m.flows))
	}
	perEndpoint, open := map[uint32]uint32{}, map[uint32]uint32{}
	for _, f := range m.flows {
		perEndpoint[f.number]++
		if f.state != flowstate.SynSent && f.state != flowstate.Unreplied && flowstate.CountsAsOpen(f.word&^flowstate.Mask|uint32(f.state)) {
			open[f.number]++
		}
		r := tab.lookup(f.answer).Other()
		if there := tab.lookup(f.client); !r.Forward() || (there == r) == f.superseded {
			rt.Fatalf("flow is found as %d and %d", there, r.Other())
		}
		if c := tab.Conn(r); c.State() != f.state || c.LastSeen() != f.lastSeen {
			rt.Fatalf("flow is %v since %d, the model says %v since %d", c.State(), c.LastSeen(), f.state, f.lastSeen)
		}
		for _, d := range []Ref{r, r.Other()} {
			c, dir := tab.Conn(d), uint32(d-1)&1
			if tab.NextHop(d)>>32 != 0 && !c.Steady(dir) {
				rt.Fatalf("direction %d is on the fast path in state %v", dir, c.State())
			}
			tab.Settle(d, aWord)
			if (tab.NextHop(d) == aWord) != c.Steady(dir) {
				rt.Fatalf("direction %d is not as steady as state %v", dir, c.State())
			}
		}
	}
	for n := range uint32(8) {
		if tab.EndpointFlows(n) != perEndpoint[n] {
			rt.Fatalf("endpoint %d counts %d flows, the model %d", n, tab.EndpointFlows(n), perEndpoint[n])
		}
		if tab.EndpointOpen(n) != open[n] {
			rt.Fatalf("endpoint %d counts %d open flows, the model %d", n, tab.EndpointOpen(n), open[n])
		}
	}
	listed := 0
	tab.Range(func(r Ref) bool { listed++; return true })
	if listed != len(m.flows) {
		rt.Fatalf("%d flows are listed, there are %d", listed, len(m.flows))
	}
}
