package conntrack

import (
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
	"github.com/weirlb/weir/conntrack/udp"
)

// portFlow is a flow to ep1 with few ports to choose from.
func portFlow(i, ports int) *NewFlow {
	f := natFlow(i)
	f.PortHi = f.PortLo + uint16(ports) - 1
	return f
}

// converse makes the flow of r one whose port is not given to others.
func converse(t *testing.T, tab *Table, r Ref, tick uint32) {
	t.Helper()
	if tab.Entry(r).Key.Proto() == ProtoUDP {
		tab.TrackUDP(r.Other(), tick)
		tab.TrackUDP(r, tick+udp.StreamAfter+1)
		tab.setState(tab.Conn(r), tab.Conn(r).state, tab.Conn(r).state|flowstate.Heard)
		return
	}
	talk(t, tab, r, tick, handshakeDone...)
}

func snatPort(tab *Table, r Ref) uint16 { return tab.NewSrc(r).Port() }

func TestPortsAreTakenInRotation(t *testing.T) {
	const ports = 50
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	var order []uint16
	for i := range 4 * ports {
		r := mustCreate(t, w, portFlow(i, ports))
		order = append(order, snatPort(tab, r))
		w.Delete(r)
		w.Quiesce()
	}
	for i := ports; i < len(order); i++ {
		if order[i] != order[i-ports] {
			t.Fatalf("flow %d has port %d, the longest free is %d", i, order[i], order[i-ports])
		}
	}
}

func TestPortsMultiplyByEndpointAndProtocol(t *testing.T) {
	const ports = 4
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	n := 0
	for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
		for _, endpoint := range []string{"10.99.0.1:8080", "10.99.0.1:8081", "10.99.0.2:8080"} {
			for _, source := range []string{"198.51.100.1:0", "198.51.100.2:0"} {
				for i := range ports + 1 {
					f := portFlow(n, ports)
					f.Client = MakeKey(client(n), vip, proto)
					f.Endpoint, f.SNAT = ap(endpoint), ap(source).Addr()
					n++
					r, o := w.Create(f)
					if want := []Outcome{Created, NoPort}[i/ports]; o != want {
						t.Fatalf("flow %d to %s from %s: outcome %d, want %d", i, endpoint, source, o, want)
					}
					if o == Created {
						converse(t, tab, r, 0)
					}
				}
			}
		}
	}
	if s := tab.Stats(); s.Flows != 12*ports {
		t.Fatalf("stats %+v", s)
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

// The acceptance rule is that of Linux's tcp_timewait_state_process.
func TestAPortInTimeWaitIsTakenAgainOnlyIfTheEndpointWouldAcceptTheSYN(t *testing.T) {
	open := strings.Join(handshakeDone, "; ") + "; "
	const (
		endpointFirst = "< FIN,ACK; > ACK seq 1000 ts 50; > FIN,ACK seq 1000 ts 51; < ACK" // rcv_nxt 1001
		noTimestamps  = "< FIN,ACK; > ACK seq 1000; > FIN,ACK seq 1000; < ACK"
		clientFirst   = "> FIN,ACK seq 1000 ts 50; < ACK; < FIN,ACK; > ACK seq 1001 ts 51"
	)
	for _, c := range []struct {
		name, packets string
		seq, ts       uint32
		hasTS, taken  bool
	}{
		{"endpoint closed, later sequence number", endpointFirst, 1002, 0, false, true},
		{"endpoint closed, same sequence number", endpointFirst, 1001, 0, false, false},
		{"endpoint closed, earlier sequence number", endpointFirst, 1000, 0, false, false},
		{"endpoint closed, sequence number far behind", endpointFirst, 1<<31 + 2000, 0, false, false},
		{"endpoint closed, newer timestamp", endpointFirst, 5, 52, true, true},
		{"endpoint closed, same timestamp, earlier number", endpointFirst, 5, 51, true, false},
		{"endpoint closed, same timestamp, later number", endpointFirst, 1002, 51, true, true},
		{"endpoint closed, older timestamp, later number", endpointFirst, 1002, 50, true, false},
		{"endpoint closed, timestamp wrapped", strings.ReplaceAll(endpointFirst, "ts 5", "ts 429496729"), 5, 3, true, true},
		{"endpoint closed, number wrapped", strings.ReplaceAll(endpointFirst, "1000", "4294967290"), 7, 0, false, true},
		{"endpoint closed, old flow without timestamps", noTimestamps, 5, 52, true, false},
		{"endpoint closed, old flow without, later number", noTimestamps, 1002, 52, true, true},
		{"client closed, any SYN", clientFirst, 5, 0, false, true},
		{"client closed, any timestamp", clientFirst, 5, 1, true, true},
		{"reset by the client", "> RST", 5, 0, false, true},
		{"reset by the endpoint", "< RST,ACK", 5, 0, false, true},
		{"a RST does not end time-wait", endpointFirst + "; > RST seq 1001", 5, 0, false, false},
		{"last ACK still due", "< FIN,ACK; > FIN,ACK seq 1000", 5000, 0, false, false},
		{"half closed", "< FIN,ACK; > ACK seq 1000", 5000, 0, false, false},
		{"open", "> ACK", 5000, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			first := portFlow(1, 1)
			if first.Seq = 999; strings.Contains(c.packets, "4294967290") {
				first.Seq = 4294967289
			}
			old := mustCreate(t, w, first)
			talk(t, tab, old, 1, strings.Split(open+c.packets, ";")...)
			f := portFlow(2, 1)
			f.Seq, f.TSval, f.HasTS, f.Tick = c.seq, c.ts, c.hasTS, 100
			r, o := w.Create(f)
			if (o == Created) != c.taken {
				t.Fatalf("outcome %d, taken should be %v", o, c.taken)
			}
			if gone := tab.lookup(first.Client) == 0; gone != c.taken {
				t.Errorf("the old flow is gone: %v", gone)
			}
			if c.taken {
				back := tab.lookup(MakeKey(ep1, tab.NewSrc(r), ProtoTCP))
				if back != r.Other() || tab.Stats().Reused != 1 {
					t.Errorf("answers find entry %d, want %d", back, r.Other())
				}
			}
			checkTable(t, tab)
			checkFree(t, tab)
		})
	}
}

func TestFreshPortsGoBeforeUsedOnesAndThenTheOldest(t *testing.T) {
	const ports = 20
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	closed := map[uint16]int{} // port -> when it was taken
	var order []uint16
	for i := range ports {
		f := portFlow(i, ports)
		r := mustCreate(t, w, f)
		p := snatPort(tab, r)
		if _, again := closed[p]; again {
			t.Fatalf("flow %d takes port %d while %d are fresh", i, p, ports-i)
		}
		closed[p] = i
		order = append(order, p)
		if i == 3 { // one lives on
			converse(t, tab, r, 1)
		} else {
			talk(t, tab, r, 1, "> RST")
		}
	}
	order = append(order[:3], order[4:]...)
	for round := range 3 {
		for i, want := range order {
			f := portFlow(1000+100*round+i, ports)
			f.Tick = uint32(40 * round)
			r := mustCreate(t, w, f)
			if p := snatPort(tab, r); p != want {
				t.Fatalf("round %d: port %d is taken, the oldest is %d", round, p, want)
			}
			talk(t, tab, r, 1, "> RST")
			w.Quiesce()
		}
	}
}

// A group without a port for anybody is looked through once a second, not for every
// packet.
func TestExhaustionIsRemembered(t *testing.T) {
	const ports = 4096
	tab := openTest(t, Config{MaxFlows: 2 * ports})
	w := tab.Worker(0)
	w.Online()
	for i := range ports {
		converse(t, tab, mustCreate(t, w, portFlow(i, ports)), 0)
	}
	f := portFlow(ports, ports)
	f.Tick = 100
	c := tab.ports.cursor(groupOf(tab, f))
	looks := func() uint32 {
		before := c.at.Load()
		if _, o := w.Create(f); o != NoPort {
			t.Fatalf("outcome %d", o)
		}
		return c.at.Load() - before
	}
	if n := looks(); n != ports {
		t.Errorf("first looks at %d ports, want all %d", n, ports)
	}
	for range 2 {
		if n := looks(); n != 0 {
			t.Errorf("then looks at %d ports in the same tick", n)
		}
	}
	for f.Tick++; f.Tick < 100+2*shortFor; f.Tick++ {
		if n := looks(); n == 0 || n > leastLooks {
			t.Errorf("at tick %d looks at %d ports, want at most %d", f.Tick, n, leastLooks)
		}
	}
	// A port that comes free is found once the looks have covered the range.
	w.Delete(tab.lookup(portFlow(77, ports).Client))
	for range ports/leastLooks + 1 {
		f.Tick++
		if _, o := w.Create(f); o == Created {
			return
		}
	}
	t.Error("a port that came free is not found")
}

// Two groups that are exhausted and share a cursor do not make each other look
// through all ports for every packet.
func TestExhaustedGroupsThatShareACursorAreBothRemembered(t *testing.T) {
	const ports = 256
	tab := openTest(t, Config{MaxFlows: 8 * ports})
	tab.ports.cursors = tab.ports.cursors[:1]
	w := tab.Worker(0)
	w.Online()
	of := func(endpoint, i int) *NewFlow {
		f := portFlow(10000*endpoint+i, ports)
		f.Endpoint, f.Tick = netipAddrPort(endpoint), 100
		return f
	}
	for endpoint := range 2 {
		for i := range ports {
			converse(t, tab, mustCreate(t, w, of(endpoint, i)), 100)
		}
	}
	before := tab.ports.cursors[0].at.Load()
	for i := range 1000 {
		if _, o := w.Create(of(i%2, ports+i)); o != NoPort {
			t.Fatalf("outcome %d", o)
		}
	}
	if n := tab.ports.cursors[0].at.Load() - before; n > 2*(ports+leastLooks) {
		t.Errorf("1000 refused SYNs look at %d ports", n)
	}
}

// SYNs that nobody completes hold ports only until others need them, the oldest
// first, and established connections keep theirs.
func TestHalfOpenFlowsGiveTheirPortsUp(t *testing.T) {
	const ports = 512
	for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
		for _, after := range []uint32{0, 1, TicksPerSecond, 30 * TicksPerSecond, 119 * TicksPerSecond} {
			tab := openHeap(t, Config{MaxFlows: 2 * ports, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			of := func(i int, tick uint32) *NewFlow {
				f := portFlow(i, ports)
				f.Client, f.Tick = MakeKey(client(i), vip, proto), tick
				return f
			}
			for i := range ports {
				r := mustCreate(t, w, of(i, 100))
				if i%4 == 0 {
					converse(t, tab, r, 100)
				}
			}
			for i := 0; i < ports && proto == ProtoUDP; i += 4 {
				tab.TrackUDP(tab.lookup(of(i, 0).Client), 100+udp.StreamAfter+1+after)
			}
			for i := range ports {
				if _, o := w.Create(of(ports+i, 100+udp.StreamAfter+1+after)); o != Created {
					t.Fatalf("protocol %d, %d ticks later: outcome %d of flow %d, %+v", proto, after, o, i, tab.Stats())
				}
				w.Quiesce()
				oldest := tab.lookup(of(i+i/3+1, 0).Client)
				if i < 3*ports/4 && oldest != 0 {
					t.Fatalf("protocol %d, %d ticks later: flow %d still has its port", proto, after, i+i/3+1)
				}
			}
			for i := 0; i < ports; i += 4 {
				if tab.lookup(of(i, 0).Client) == 0 {
					t.Fatalf("protocol %d: flow %d, which goes on, is gone", proto, i)
				}
			}
			checkTable(t, tab)
			checkFree(t, tab)
		}
	}
}

func groupOf(tab *Table, f *NewFlow) uint64 {
	k := MakeKey(f.Endpoint, ap(f.SNAT.String()+":0"), f.Client.Proto())
	return tab.Hash(&k)
}

// 20,000 connections one after the other, all closed by the endpoint, from clients
// whose sequence numbers and clocks have nothing to do with each other.
func TestShortConnectionsToOneEndpointDoNotRunOutOfPorts(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 8192})
	w := tab.Worker(0)
	w.Online()
	for i := range 20000 {
		tick := uint32(i / 40) // 667 a second
		f := natFlow(i)
		f.Tick, f.HasTS = tick, i%3 != 0
		f.Seq, f.TSval = uint32(i)*2654435761, uint32(i%7)<<29+uint32(i)
		r, o := w.Create(f)
		if o != Created {
			t.Fatalf("connection %d: outcome %d, %+v", i, o, tab.Stats())
		}
		c := tab.Conn(r)
		talk(t, tab, r, tick, "> SYN", "< SYN,ACK", "> ACK", "< FIN,ACK")
		var options []byte
		if f.HasTS {
			options = tsOption(f.TSval + 1)
		}
		tab.TrackTCP(r, &tcp.Segment{
			Flags: tcp.FlagFIN | tcp.FlagACK, Seq: f.Seq + 1, Ack: tab.Conn(r).endpointNext,
			Length: 100, Options: options,
		}, tick)
		talk(t, tab, r, tick, "< ACK")
		if c.State() != flowstate.TimeWait {
			t.Fatalf("connection %d ends in %v", i, c.State())
		}
		if i%64 == 0 {
			w.Quiesce()
			tab.Sweep(tick, 1000)
		}
	}
	if s := tab.Stats(); s.Reused == 0 || s.Evicted != 0 {
		t.Fatalf("stats %+v", s)
	}
}

// A client that begins anew with the tuple of a connection that is over leaves
// its old SNAT port with the endpoint's TIME_WAIT: it is not fresh for others.
func TestASupersededConnectionKeepsItsPort(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.PortLo, f.PortHi, f.HasTS, f.Seq = 61000, 61001, false, 99
	old := mustCreate(t, w, f)
	port := tab.NewSrc(old).Port()
	talk(t, tab, old, 5, "> SYN seq 99", "< SYN,ACK seq 6999", "> ACK seq 100", "< FIN,ACK", "> FIN,ACK seq 100", "< ACK", "> ACK seq 101")
	if v := talk(t, tab, old, 6, "> SYN seq 500"); v != flowstate.Reopen {
		t.Fatalf("verdict %d", v)
	}
	if !w.Supersede(old) || w.Supersede(old) {
		t.Fatal("superseded not once")
	}
	f.Seq = 500
	again := mustCreate(t, w, f)
	converse(t, tab, again, 6)
	if got := tab.NewSrc(again).Port(); got == port {
		t.Errorf("the port in TIME_WAIT was taken for a fresh one")
	}
	if v := talk(t, tab, old, 6, "< ACK"); v != flowstate.Stale {
		t.Errorf("verdict %d for the old connection's endpoint", v)
	}
	// The other port is in use: a SYN that the endpoint would not take gets none,
	// one that it would take gets the old one.
	g := natFlow(2)
	g.PortLo, g.PortHi, g.HasTS, g.Seq = 61000, 61001, false, 50
	if _, outcome := w.Create(g); outcome != NoPort {
		t.Errorf("outcome %v for a SYN that the endpoint would refuse", outcome)
	}
	g.Seq = 1000
	if got := tab.NewSrc(mustCreate(t, w, g)).Port(); got != port {
		t.Errorf("port %d, want %d", got, port)
	}
	w.Quiesce()
	if n := tab.Flows(); n != 2 {
		t.Errorf("%d flows, want 2", n)
	}
}
