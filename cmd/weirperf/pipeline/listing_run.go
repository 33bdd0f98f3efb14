package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/connections"
	"github.com/weirlb/weir/cmd/weir/tuning"
	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/lb/header"
)

// listing is a worker with a full flow table, and the API beside it.
type listing struct {
	o        ListingOptions
	progress io.Writer
	bench    *bench
	trace    *trace
	at       int // in the trace
	cpu      int
	socket   string
	ends     []func() error
}

// onlyConnections is an api.Source with answers about connections alone.
type onlyConnections struct {
	nothing
	*connections.Source
}

type nothing struct{ api.Source }

func newListing(ctx context.Context, progress io.Writer, o ListingOptions) (_ *listing, err error) {
	l := &listing{o: o, progress: progress, cpu: tuning.LastCPU()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	fmt.Fprintf(progress, "making %d connections\n", o.Flows)
	m, err := newBalancer(modeNamed("nat"), false, 1, o.Flows+o.Flows/8)
	if err != nil {
		return l, err
	}
	l.ends = append(l.ends, m.Close)
	l.bench = newBench(m, Options{Mode: "nat", Proto: "tcp"}, o.Flows)
	if err := l.bench.begin(ctx, 0, o.Flows); err != nil {
		return l, err
	}
	if err := l.bench.each(ctx, 0, o.Flows, portClient, header.ACK, false); err != nil {
		return l, err
	}
	if err := l.bench.checkHandshakes(); err != nil {
		return l, err
	}
	l.trace = l.bench.trace(kindEstablished)
	return l, l.serve(m)
}

// serve serves the API as weir run does.
func (l *listing) serve(m *inMemory) error {
	dir, err := os.MkdirTemp("", "weirperf")
	if err != nil {
		return err
	}
	l.ends = append(l.ends, func() error { return os.RemoveAll(dir) })
	l.socket = filepath.Join(dir, "weir.sock")
	sock, err := api.Listen(l.socket)
	if err != nil {
		return err
	}
	src := onlyConnections{Source: &connections.Source{
		Table: m.Flows(), Names: m.Tables().ServiceNames, Log: slog.New(slog.DiscardHandler), Known: func(string) error { return nil },
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, sock, src, api.Access{}, slog.New(slog.DiscardHandler)) }()
	l.ends = append(l.ends, func() error {
		cancel()
		return <-done
	})
	return nil
}

// close undoes newListing.
func (l *listing) close() error {
	var errs []error
	for i := len(l.ends) - 1; i >= 0; i-- {
		errs = append(errs, l.ends[i]())
	}
	l.ends = nil
	return errors.Join(errs...)
}

// slice is the length of a measurement before the next with or without listings begins: other
// load of the machine concerns both alike.
const slice = 50 * time.Millisecond

// settling is how long a listing that has begun or stopped is waited for. Meanwhile other
// programs have the CPU of a worker with real-time priority.
const settling = 20 * time.Millisecond

// run measures the turns.
func (l *listing) run(ctx context.Context) (*ListingReport, error) {
	var cpus []int
	if l.cpu >= 0 {
		cpus = []int{l.cpu}
	}
	everywhere := allCPUs()
	defer tuning.Apply(func(err error) { fmt.Fprintln(l.progress, err) }, 1, cpus).All()
	r := &ListingReport{Machine: machine.Describe(), Flows: l.o.Flows, CPU: l.cpu}
	err := errors.New("no thread")
	onThread(func() {
		if l.cpu >= 0 {
			var set unix.CPUSet
			set.Set(l.cpu)
			_ = unix.SchedSetaffinity(0, &set)
		}
		r.RealTime = l.o.RealTime && realTime() == nil
		l.bench.m.Idle(0)
		err = l.turns(ctx, r, everywhere)
	})
	if err != nil {
		return nil, err
	}
	if got := l.bench.m.Flows().Flows(); got != l.o.Flows {
		return nil, fmt.Errorf("the table has %d flows of %d at the end", got, l.o.Flows)
	}
	r.summarize()
	return r, nil
}

// turns measures on the thread of the worker.
func (l *listing) turns(ctx context.Context, r *ListingReport, everywhere unix.CPUSet) error {
	resetPeak()
	var warm part
	for range 5 {
		warm.atFullRate(l, slice)
		time.Sleep(settling)
	}
	runtime.GC()
	r.BaseMB, r.BaseLiveMB = peak(), live()
	r.LiveMB = r.BaseLiveMB
	r.PacedPerSecond = warm.rate() / 2
	var other *otherProcess
	var err error
	onThread(func() {
		_ = unix.SchedSetaffinity(0, &everywhere) // a shell may start weir connections anywhere
		other, err = startAsking(ctx, l.socket, l.o.Flows)
	})
	if err != nil {
		return err
	}
	for turn := range l.o.Turns {
		t, err := l.turn(ctx, other, r.PacedPerSecond)
		if err != nil {
			return errors.Join(err, other.stop())
		}
		r.Turns, r.LiveMB = append(r.Turns, t), max(r.LiveMB, live())
		fmt.Fprintf(l.progress, "turn %d: rate %.3f, p99 %.3f\n", turn+1, t.With.PacketsPerSecond/t.Without.PacketsPerSecond, t.With.P99us/t.Without.P99us)
	}
	r.PeakMB, r.Asked = peak(), other.asked
	return other.stop()
}

// turn measures slices with and without listings in turn.
func (l *listing) turn(ctx context.Context, other *otherProcess, pace float64) (t ListingTurn, err error) {
	var without, with part
	for i := range max(1, int(l.o.Seconds/slice.Seconds())) {
		for k := range 2 {
			if err := ctx.Err(); err != nil {
				return t, err
			}
			p, command := &without, other.pause
			if (i+k)%2 == 0 {
				p, command = &with, other.goOn
			}
			if err := command(); err != nil {
				return t, err
			}
			time.Sleep(settling)
			p.atFullRate(l, slice)
			time.Sleep(settling)
			p.paced(l, slice, pace)
		}
	}
	return ListingTurn{without.figures(), with.figures()}, other.pause()
}

// part has what the slices of a part have in common.
type part struct {
	packets int
	time    time.Duration // at full rate
	times   latencies
	p99     []float64 // of each slice
}

func (p *part) rate() float64 { return float64(p.packets) / p.time.Seconds() }

func (p *part) figures() ListingPart {
	h := &p.times
	return ListingPart{
		PacketsPerSecond: p.rate(), P50us: h.quantile(0.5), P99us: spreadOf(p.p99).Median,
		AllP99us: h.quantile(0.99), AllP999us: h.quantile(0.999),
	}
}

// round sends n packets per port through the worker, at most perRound.
func (l *listing) round(n int) {
	b, t := l.bench, l.trace
	if l.at+n > len(t.port[portClient]) {
		l.at = 0
	}
	memory := b.m.Umem().Bytes()
	for i := range t.port {
		t.maker.give(b.m.Queue(0, i), memory, t.port[i][l.at:l.at+n])
	}
	b.m.Round(0)
	for i := range t.port {
		q := b.m.Queue(0, i)
		takeBack(q)
		q.Out = q.Out[:0]
	}
	l.at += n
}

// atFullRate counts the packets of rounds without pause.
func (p *part) atFullRate(l *listing, span time.Duration) {
	const between = 64 // rounds between two looks at the clock
	for start := time.Now(); ; {
		for range between {
			l.round(perRound)
		}
		p.packets += between * 2 * perRound
		if d := time.Since(start); d >= span {
			p.time += d
			return
		}
	}
}

// paced has packets arrive evenly, and notes the times from arrival to the end of the round
// that sent them. Both ports get a packet at a time.
func (p *part) paced(l *listing, span time.Duration, perSecond float64) {
	var h latencies
	defer func() {
		p.times.add(&h)
		p.p99 = append(p.p99, h.quantile(0.99))
	}()
	interval := 2 * float64(time.Second) / perSecond // between packets of a port
	total := int(float64(span) / interval)
	for start, sent := time.Now(), 0; sent < total; {
		n := min(int(float64(time.Since(start))/interval), total) - sent
		if n <= 0 {
			continue
		}
		n = min(n, perRound)
		l.round(n)
		end := time.Since(start)
		for i := sent; i < sent+n; i++ {
			h.note(end - time.Duration(float64(i+1)*interval))
		}
		sent += n
	}
}

// resetPeak has the kernel forget the most memory that this process had.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peak is the most memory that this process had since, in MB.
func peak() float64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), "\nVmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	kb, _ := strconv.ParseFloat(fields[0], 64)
	return kb / 1e3
}

// allCPUs are those of this process.
func allCPUs() (set unix.CPUSet) {
	_ = unix.SchedGetaffinity(0, &set)
	return set
}

// live is the Go heap in use after the last garbage collection, in MB.
func live() float64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return float64(s[0].Value.Uint64()) / 1e6
}

// realTime gives this thread a real-time priority: no other program takes its CPU. It needs
// CAP_SYS_NICE.
func realTime() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

// onThread calls f on a thread that ends afterwards: f may change the thread.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good
		f()
	}()
	<-done
}
