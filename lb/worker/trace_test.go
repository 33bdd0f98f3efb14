package worker

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/tap"
)

// portsOf are the worker's ports as its owner knows them.
func portsOf(w *Worker) (list []Port) {
	for i := range w.ports {
		list = append(list, w.ports[i].Port)
	}
	return list
}

// observed1 returns the first record of a frame that f makes the worker handle, nil for none.
// The frame may release fragments that wait, and others may expire.
func observed1(t testing.TB, w *Worker, frame []byte, f func()) *tap.Record {
	t.Helper()
	records, err := tap.New(tap.Config{SnapLen: 256, Bytes: 1 << 20, Workers: w.id + 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Observe([]*tap.Tap{records})
	f()
	w.Observe(nil)
	var out *tap.Record
	records.Read(func(r *tap.Record) bool {
		if out == nil && int(r.InLen) == len(frame) && bytes.HasPrefix(frame, r.InData) {
			r := *r
			r.OutData = append([]byte(nil), r.OutData...)
			out = &r
		}
		return true
	})
	return out
}

// A trace agrees with what the worker then does, for more than 1,000 random packets of all
// Services of the fuzz target: new connections, packets of connections in both directions, of
// every mode, with and without endpoints and neighbors, fragments in any order, ICMP errors.
func TestTraceAgreesWithTheWorker(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	compared, verdicts, want := 0, map[string]int{}, 1000
	if testing.Short() {
		want = 150
	}
	for run := 0; compared < want; run++ {
		data := make([]byte, 1<<14)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		data[0] &^= 2 // no partial checksums that the device completes
		r := newFuzzRun(t, data)
		r.whole = true
		if run%2 == 1 {
			r.w.removed.graceTicks = 0
		}
		for len(r.in) < maxMarks-1 {
			compared += r.compareTrace(verdicts)
		}
	}
	t.Logf("%d packets, %v", compared, verdicts)
	for _, v := range []tap.Verdict{tap.Forward, tap.Punt, tap.Reply, tap.Drop, tap.Queue} {
		if verdicts[v.String()] == 0 && !testing.Short() {
			t.Errorf("%d packets with verdict %v: the packets are not of all kinds", verdicts[v.String()], v)
		}
	}
}

// compareTrace traces a random packet, sends it, and compares. It returns how many packets
// were compared.
func (r *fuzzRun) compareTrace(verdicts map[string]int) int {
	r.unlimited()
	r.now = r.lb.flows.Tick()
	switch op := r.next() % 32; {
	case op < 10:
		s, tags, padding := r.request()
		s.sum &^= 1
		r.injectIP(portClient, s.ip(), tags, padding, true)
	case op < 14:
		s, tags, _ := r.request()
		return r.compareFragments(portClient, s.ip(), tags, verdicts)
	case op == 14:
		r.serverError()
	case op == 15:
		r.clientError()
	case op < 18:
		if s, port, ok := r.answer(); ok {
			return r.compareFragments(port, s.ip(), 0, verdicts)
		}
	case op < 26:
		if s, port, ok := r.answer(); ok {
			s.sum &^= 1
			r.injectIP(port, s.ip(), 0, 0, true)
		}
	case op < 28:
		s, tags, padding := r.request()
		s.sum, s.dst = 0, ap([2]netip.Addr{snat4, snat6}[b2i(s.src.Addr().Is6())], 61000+uint16(r.next()))
		r.injectIP(int(r.next()%3), s.ip(), tags, padding, true)
	case op == 28:
		r.absent ^= 1 << (r.next() % 16)
		r.serveFuzz()
	case op == 29:
		v := r.next()
		r.lb.router.SetState(portServer, []netip.Addr{endpoint4, endpoint6, narrow4}[v%3], []route.State{route.Valid, route.Resolving, route.Failed}[v/3%3])
	case op == 30:
		r.ping()
	default:
		r.lb.router.SetState(portServer, endpoint4, route.Valid)
		r.lb.router.SetState(portServer, endpoint6, route.Valid)
	}
	return r.compareLast(verdicts)
}

// compareFragments is compareTrace of the fragments of a packet, a round for each.
func (r *fuzzRun) compareFragments(port int, ip []byte, tags uint8, verdicts map[string]int) (compared int) {
	for _, f := range r.pieces(ip) {
		v, err := viewIP(f)
		if err != nil || len(r.in) >= maxMarks-1 {
			break
		}
		setMark(&v, r.mark())
		r.unlimited()
		r.injectIP(port, v.b, tags, 0, true)
		compared += r.compareLast(verdicts)
	}
	return compared
}

// compareLast is compareTrace of the packet that was injected last.
func (r *fuzzRun) compareLast(verdicts map[string]int) int {
	if r.pending != 1 || len(r.in[len(r.in)-1].frame) > 3000 { // a trace has a frame of the packet memory
		r.turn()
		return 0
	}
	g := r.in[len(r.in)-1]
	flows := r.lb.flows.Flows()
	got, err := r.w.Trace(g.port, g.frame, portsOf(r.w))
	if err != nil {
		r.t.Fatal(err)
	}
	if n := r.lb.flows.Flows(); n != flows {
		r.t.Fatalf("a trace changed the number of flows from %d to %d", flows, n)
	}
	waiting := len(r.w.neighQueue)
	want := observed1(r.t, r.w, g.frame, r.turn)
	if r.lb.flows.Tick() != r.now || waiting != 0 {
		return 0 // limits per second may have changed, or other packets have left
	}
	r.sameOutcome(g, got, want)
	verdicts[got.Verdict.String()]++
	return 1
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// unlimited lets the worker answer as many packets as if none had come lately.
func (r *fuzzRun) unlimited() {
	r.w.resets = ratelimit.New(resetsPerSecond, resetsPerSecond, resetsPerSource)
	r.w.errors = ratelimit.New(errorsPerSecond, errorsPerSecond/10, errorsPerSource)
	r.w.echoes = ratelimit.New(echoesPerSecond, echoesPerSecond/10, echoesPerSource)
	r.w.tick-- // they are filled at the next tick
}

func (r *fuzzRun) sameOutcome(g *given, got *Traced, want *tap.Record) {
	r.t.Helper()
	if want == nil {
		if got.Verdict != tap.Queue {
			r.t.Fatalf("traced %v, and the packet waits: %.80x", got.Verdict, g.frame)
		}
		return
	}
	if got.Verdict != want.Verdict || got.HasReason != want.HasReason || got.HasReason && got.Reason != Drop(want.Reason) || got.Out != int(want.Out) {
		r.t.Fatalf("traced %v (%v %v) by port %d, was %v (%v %v) by port %d: port %d, %.80x", got.Verdict, got.HasReason, got.Reason, got.Out,
			want.Verdict, want.HasReason, Drop(want.Reason), want.Out, g.port, g.frame)
	}
	if want.Conn != 0 && (got.Endpoint != want.Endpoint || got.SNAT != want.SNAT || uint8(got.Mode) != want.Mode || got.ServiceID != want.Service) {
		r.t.Fatalf("traced to %v from %v by mode %d of Service %d, was %v, %v, %d, %d: %.80x", got.Endpoint, got.SNAT, got.Mode, got.ServiceID,
			want.Endpoint, want.SNAT, want.Mode, want.Service, g.frame)
	}
	if len(want.OutData) == 0 {
		return
	}
	if len(got.Sent) != int(want.OutLen) {
		r.t.Fatalf("traced %d bytes, were %d: %.80x", len(got.Sent), want.OutLen, g.frame)
	}
	var a, b pcapfilter.Packet
	pcapfilter.Read(got.Sent, len(got.Sent), &a)
	pcapfilter.Read(want.OutData, int(want.OutLen), &b)
	if a.Src != b.Src || a.Dst != b.Dst || a.SrcPort != b.SrcPort || a.DstPort != b.DstPort && b.DstPort != 6080 || string(got.Sent[:12]) != string(want.OutData[:12]) {
		r.t.Fatalf("traced %.80x\nwas    %.80x\nof     %.80x", got.Sent, want.OutData, g.frame)
	}
}

// A trace names the SNAT port that the next connection gets, also where ports are in use, and
// takes none.
func TestTraceTakesNoPort(t *testing.T) {
	b := newBench(t)
	b.lb.node.Store(benchNode(61000, 61007))
	for i := range 8 {
		req := request(false, header.ProtoTCP)
		req.src = ap(client4, uint16(40000+i))
		frame := req.build(t)
		var first *Traced
		for range 3 {
			got, err := b.w.Trace(portClient, frame, portsOf(b.w))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = got
			}
			if got.SNAT != first.SNAT || !got.Created || got.Existing || got.PortLo != 61000 || got.PortHi != 61007 {
				t.Fatalf("traced %+v, then %+v", first, got)
			}
		}
		want := observed1(t, b.w, frame, func() { b.one(portClient, frame, portServer) })
		if want.SNAT != first.SNAT {
			t.Fatalf("connection %d: traced SNAT %v, was %v", i, first.SNAT, want.SNAT)
		}
	}
	req := request(false, header.ProtoTCP)
	req.src = ap(client4, 50000)
	got, err := b.w.Trace(portClient, req.build(t), portsOf(b.w))
	if err != nil {
		t.Fatal(err)
	}
	want := observed1(t, b.w, req.build(t), func() {
		b.give(portClient, req.build(t))
		b.round()
	})
	if got.Verdict != want.Verdict || got.SNAT != want.SNAT || got.Reason != Drop(want.Reason) {
		t.Errorf("all ports in use: traced %v %v %v, was %v %v %v", got.Verdict, got.Reason, got.SNAT, want.Verdict, Drop(want.Reason), want.SNAT)
	}
	b.framesHome()
}

// A trace says by which rule the endpoint was chosen, and uses up no connection of a limit.
func TestTraceChoosesByTheRule(t *testing.T) {
	b := newBench(t)
	pool := table.Pool{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint4, 8080)}, {AddrPort: ap(narrow4, 8080)}}}
	rule := func(set func(*table.Pool), policy *table.Policy) {
		p := pool
		set(&p)
		s := table.Service{Name: "ns/web", Pools: []table.Pool{p}, Policy: policy,
			Frontends: []table.Frontend{{AddrPort: ap(node4, 80), Proto: header.ProtoTCP}}}
		if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
			t.Fatal(err)
		}
	}
	source := uint16(40000)
	trace := func(want Choice) {
		t.Helper()
		source++
		req := request(false, header.ProtoTCP)
		req.src = ap(client4, source)
		got, err := b.w.Trace(portClient, req.build(t), portsOf(b.w))
		if err != nil {
			t.Fatal(err)
		}
		if got.Choice != want || got.Verdict != tap.Forward || got.Mode != conntrack.ModeNAT {
			t.Errorf("chosen by %v, want %v: %+v", got.Choice, want, got)
		}
		if was := observed1(t, b.w, req.build(t), func() { b.one(portClient, req.build(t), portServer) }); want != AtRandom && was.Endpoint != got.Endpoint {
			t.Errorf("traced to %v, was %v", got.Endpoint, was.Endpoint)
		}
	}
	rule(func(*table.Pool) {}, nil)
	trace(ByTuple)
	rule(func(p *table.Pool) { p.Algorithm = table.Random }, nil)
	trace(AtRandom)
	rule(func(p *table.Pool) { p.AffinitySeconds = 600 }, nil)
	trace(ByClient)
	trace(ByAffinity)
	k := conntrack.MakeKey(ap(client4, 1), ap(node4, 80), header.ProtoTCP)
	fk := table.DestinationKey(&k.W)
	key, now := b.lb.tables.Load().Lookup(&fk).AffinityKey(&k.W), b.w.conns.Tick()/secondTicks
	number, _ := b.w.affinity.Get(key, now, 600)
	b.w.affinity.Put(key, number, now-601)
	trace(ByClient)
	trace(ByAffinity)

	rule(func(*table.Pool) {}, &table.Policy{NewConnectionsPerSecond: 1})
	for range 5 {
		trace := request(false, header.ProtoTCP)
		trace.src = ap(client4, 50000)
		if got, err := b.w.Trace(portClient, trace.build(t), portsOf(b.w)); err != nil || got.Verdict != tap.Forward {
			t.Fatalf("traced %v %v, %v", got.Verdict, got.Reason, err)
		}
	}
}

// The limit of open connections holds for the answer to the first datagram, too.
func TestTraceOfAnAnswerKnowsTheLimit(t *testing.T) {
	b := newBench(t)
	b.offer(&table.Policy{MaxConnections: 1}, table.Pool{}, 1)
	var answers [2][]byte
	for i := range answers {
		req := from(false, header.ProtoUDP, 100+uint16(i))
		answer := answerOf(b.one(portClient, req.build(t), portServer), req, 0)
		answer.proto = header.ProtoUDP
		answers[i] = answer.build(t)
	}
	b.one(portServer, answers[0], portClient)
	got, err := b.w.Trace(portServer, answers[1], portsOf(b.w))
	if err != nil {
		t.Fatal(err)
	}
	b.one(portServer, answers[1], -1)
	if !got.HasReason || got.Reason != DropConnectionLimit || b.drops()["connection-limit"] != 1 {
		t.Errorf("traced %v %v, was %v", got.Verdict, got.Reason, b.drops())
	}
}

// The endpoint of a connection to a range of ports that is not made has the packet's port.
func TestTraceOfARangeHasThePacketsPort(t *testing.T) {
	b := newBench(t)
	b.serveRange(85, endpoint4)
	req := request(false, header.ProtoTCP)
	req.ttl = 1
	got, err := b.w.Trace(portClient, req.build(t), portsOf(b.w))
	if err != nil {
		t.Fatal(err)
	}
	if got.Created || got.Reason != DropTTL || got.Endpoint != ap(endpoint4, 80) {
		t.Errorf("traced to %v, %v", got.Endpoint, got.Reason)
	}
}
