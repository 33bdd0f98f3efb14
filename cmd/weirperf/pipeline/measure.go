package pipeline

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
)

const (
	perRound  = 64      // packets that a port receives in a round
	sampleLen = 1 << 18 // packets of a sample, per port
	leastNew  = 1 << 10 // flows from which filling a table is measured
	// streamAge is the age at which an answered UDP flow reaches its last state.
	streamAge = 2200 * time.Millisecond
)

// Kinds of figures.
const (
	kindEstablished = "established"
	kindNew         = "new"
	kindAnswer      = "answer"
	kindEarly       = "early"
	kindDrop        = "drop"
)

// runner carries out a run.
type runner struct {
	ctx      context.Context
	progress io.Writer
	o        Options
	report   Report
}

func (r *runner) say(format string, args ...any) { fmt.Fprintf(r.progress, format+"\n", args...) }

func (r *runner) run() (*Report, error) {
	r.report.Ratios = map[string]float64{}
	for _, n := range r.o.Flows {
		if err := r.flows(n); err != nil {
			return nil, fmt.Errorf("%d flows: %w", n, err)
		}
	}
	return &r.report, nil
}

// flows measures a given number of flows.
func (r *runner) flows(n int) error {
	r.say("%d flows: making the table", n)
	m, err := newBalancer(modeNamed(r.o.Mode), r.o.IPv6, r.o.Workers, max(leastNew, n+n/8))
	if err != nil {
		return err
	}
	defer m.Close()
	b := newBench(m, r.o, n)
	if n >= leastNew {
		r.say("%d flows: new", n)
		s, err := b.filling(r.ctx)
		if err != nil {
			return err
		}
		r.add(kindNew, n, 1, s)
	}
	r.say("%d flows: bringing up", n)
	first, err := b.bringUp(r.ctx)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		kind string
		samples
	}{{kindAnswer, first.answer}, {kindEarly, first.early}} {
		if len(x.net) > 0 {
			r.add(x.kind, n, 1, x.samples)
		}
	}
	r.report.Tables = append(r.report.Tables, Table{
		Flows: n, MaxFlows: m.Flows().MaxFlows(), BytesPerFlow: float64(m.Flows().MemoryBytes()) / float64(n), IndexLoad: m.Flows().IndexLoad(),
		Memory: m.Flows().MemoryUse(),
	})
	for _, kind := range []string{kindEstablished, kindDrop} {
		r.say("%d flows: %s", n, kind)
		one, err := b.sampled(r.ctx, kind, 1)
		if err != nil {
			return err
		}
		r.add(kind, n, 1, one)
		if r.o.Workers == 1 {
			continue
		}
		all, err := b.sampled(r.ctx, kind, r.o.Workers)
		if err != nil {
			return err
		}
		x := r.add(kind, n, r.o.Workers, all)
		r.report.Ratios[x.ratioName()] = float64(r.o.Workers) * one.median() / all.median()
	}
	return r.ctx.Err()
}

func (r *runner) add(kind string, flows, workers int, s samples) *Result {
	slices.Sort(s.net)
	slices.Sort(s.generation)
	x := Result{
		Mode: r.o.Mode, IPv6: r.o.IPv6, Flows: flows, Kind: kind, Workers: workers,
		NsPerPacket: s.median(), Min: s.net[0], Max: s.net[len(s.net)-1],
		AllocsPerPacket: s.allocs, Generation: s.generation[len(s.generation)/2],
	}
	r.report.Results = append(r.report.Results, x)
	r.say("  %s, %d workers: %.1f ns per packet (%.1f .. %.1f)", kind, workers, x.NsPerPacket, x.Min, x.Max)
	return &r.report.Results[len(r.report.Results)-1]
}

// samples are net of generation, in nanoseconds per packet.
type samples struct {
	net, generation []float64
	allocs          float64
}

func (s *samples) median() float64 {
	slices.Sort(s.net)
	return s.net[len(s.net)/2]
}

// bench is a load balancer with the packets that go through it.
type bench struct {
	m       *inMemory
	n       int
	samples int
	ipv6    bool
	proto   uint8
	mode    mode
	choices []choice // by flow
	random  *rand.Rand
}

func newBench(m *inMemory, o Options, flows int) *bench {
	b := &bench{
		m: m, n: flows, samples: o.Samples, ipv6: o.IPv6, proto: header.ProtoUDP, mode: modeNamed(o.Mode),
		choices: make([]choice, flows), random: rand.New(rand.NewPCG(1, uint64(flows))),
	}
	if o.Proto == "tcp" {
		b.proto = header.ProtoTCP
	}
	return b
}

// trace is the input of a worker's ports in a sample; a port may get nothing.
type trace struct {
	maker *maker
	port  [2][]packet
}

func (t *trace) packets() int { return len(t.port[0]) + len(t.port[1]) }

// run drives a worker with a trace; without rounds only the packets are made.
func (b *bench) run(worker int, t *trace, rounds bool) {
	memory := b.m.Umem().Bytes()
	q := [2]*lbtest.Memory{b.m.Queue(worker, portClient), b.m.Queue(worker, portServer)}
	for at := 0; at < max(len(t.port[0]), len(t.port[1])); at += perRound {
		for i := range q {
			p := t.port[i]
			t.maker.give(q[i], memory, p[min(at, len(p)):min(at+perRound, len(p))])
		}
		if rounds {
			b.m.Round(worker)
		}
		for i := range q {
			takeBack(q[i])
			q[i].Out = q[i].Out[:0]
		}
	}
}

// timed runs all traces at the same time, each on a worker, and returns the CPU
// time per packet and worker.
func (b *bench) timed(traces []*trace, rounds bool) float64 {
	spent := make([]float64, len(traces))
	var ready, done sync.WaitGroup
	ready.Add(len(traces))
	for i, t := range traces {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if rounds {
				b.m.Idle(i) // making the packets took time too
			}
			ready.Done()
			ready.Wait()
			before := threadTime()
			b.run(i, t, rounds)
			spent[i] = float64(threadTime()-before) / float64(t.packets())
		})
	}
	done.Wait()
	sum := 0.0
	for _, s := range spent {
		sum += s
	}
	return sum / float64(len(spent))
}

// threadTime is the CPU time that this thread has had.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // cannot fail
	}
	return time.Duration(ts.Nano())
}

// sampled measures a kind with the first workers.
func (b *bench) sampled(ctx context.Context, kind string, workers int) (samples, error) {
	var s samples
	for i := range b.samples + 1 {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		traces := make([]*trace, workers)
		for w := range traces {
			traces[w] = b.trace(kind)
		}
		generation := b.timed(traces, false)
		sent, dropped := b.counts()
		allocs := mallocs()
		total := b.timed(traces, true)
		allocs = mallocs() - allocs
		if i == 0 {
			continue // warms up
		}
		s.note(total, generation)
		s.allocs = perPacket(allocs, traces)
		if err := b.check(kind, traces, sent, dropped); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *samples) note(total, generation float64) {
	s.net = append(s.net, total-generation)
	s.generation = append(s.generation, generation)
}

// perPacket leaves out the allocations that start a sample's goroutines.
func perPacket(allocs uint64, traces []*trace) float64 {
	const perStart = 16
	n := 0
	for _, t := range traces {
		n += t.packets()
	}
	return float64(max(0, int(allocs)-perStart*len(traces))) / float64(n)
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// counts returns the packets that all workers have sent and dropped.
func (b *bench) counts() (sent, dropped uint64) {
	for w := range b.m.Workers() {
		c := b.m.Counters(w)
		sent += c.Values[counter.TxPackets]
		for _, n := range c.Drops {
			dropped += n
		}
	}
	return sent, dropped
}

// check reports whether every packet of a sample had the outcome of its kind.
func (b *bench) check(kind string, traces []*trace, sent, dropped uint64) error {
	nowSent, nowDropped := b.counts()
	n := uint64(0)
	for _, t := range traces {
		n += uint64(t.packets())
	}
	got := nowSent - sent
	if kind == kindDrop {
		got = nowDropped - dropped
	}
	if got != n {
		return fmt.Errorf("%s: %d packets of %d were dealt with as they should, drops: %v", kind, got, n, b.m.Counters(0).Drops)
	}
	return nil
}

// trace makes the packets of a sample.
func (b *bench) trace(kind string) *trace {
	if kind != kindDrop {
		return b.traceOf(0, sampleLen)
	}
	t := &trace{maker: newMaker(b.ipv6, b.proto, header.ACK)}
	for range sampleLen {
		t.port[portServer] = append(t.port[portServer], t.maker.answerWithoutFlow(b.random.Uint32()))
	}
	if b.proto == header.ProtoTCP {
		t.maker = newMaker(b.ipv6, b.proto, header.RST) // anything else is answered
	}
	return t
}

// traceOf makes packets of established flows, of those from a number on.
func (b *bench) traceOf(from, packets int) *trace {
	t := &trace{maker: newMaker(b.ipv6, b.proto, header.ACK)}
	draw := func() uint32 { return uint32(from) + b.random.Uint32N(uint32(b.n-from)) }
	for range packets {
		t.port[portClient] = append(t.port[portClient], t.maker.request(draw()))
		if !b.mode.answers() {
			continue
		}
		n := draw()
		t.port[portServer] = append(t.port[portServer], t.maker.answer(n, b.choices[n]))
	}
	return t
}
