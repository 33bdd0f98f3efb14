package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/cpu"
	"github.com/weirlb/weir/perf/generate"
	"github.com/weirlb/weir/perf/report"
	"github.com/weirlb/weir/perf/sink"
	"github.com/weirlb/weir/perf/testbed"
)

// maxFlows leaves enough flow numbers for connections that are new.
const maxFlows = 16 << 20

// newFlowsFrom is the first flow number of connections that are new.
const newFlowsFrom = maxFlows

// newFlows is how many connections may be opened in a measurement of new ones:
// more than any path here can.
func newFlows(seconds float64) int { return int((seconds + settle.Seconds()) * 1.25e6) }

// settle is how long a load runs before it is measured.
const settle = 100 * time.Millisecond

// window is the number of packets in flight. A veth holds 256 packets: with fewer none is
// lost, and the next packet is always there.
const window = 192

// warmUpWithin is how long the first packets of all connections may take.
const warmUpWithin = 60 * time.Second

var udpWorkloads = []workload{
	{report.Established, peer.UDP, measureEstablished},
	{report.New, peer.UDP, measureNew},
}

// traffic is a running UDP load: a generator at the client, a sink at the backend which may
// send back, and a sink at the client for the answers.
type traffic struct {
	s         *stand
	generator *generate.Generator
	there     *sink.Sink
	back      *sink.Sink
	both      bool
}

// newTraffic makes traffic in the client's direction, or in both.
func newTraffic(s *stand, both bool) (_ *traffic, err error) {
	t := &traffic{s: s, both: both}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.there, err = sink.Attach(s.Backend, testbed.BackendLink, both); err != nil {
		return nil, err
	}
	if t.back, err = sink.Attach(s.Client, testbed.ClientLink, false); err != nil {
		return nil, err
	}
	end := t.there
	if both {
		end = t.back
	}
	t.generator, err = generate.New(generate.Config{
		Namespace: s.Client, Interface: testbed.ClientLink, To: s.NodeMAC, CPU: s.LoadCore,
		Counts: end.Counts(), CountCPUs: [2]int{s.LoadCore, s.LBCore},
	})
	return t, err
}

// plan fills in where packets go.
func (t *traffic) plan(order generate.Order, first, flows int) generate.Plan {
	to, n := t.s.target()
	return generate.Plan{Order: order, First: uint32(first), Flows: uint32(flows),
		Client: testbed.FirstClient, Target: to, Endpoints: uint32(n), Window: window}
}

// delivered is the traffic that has arrived, at both ends together.
func (t *traffic) delivered() (sink.Count, error) {
	there, err := t.there.Read()
	if err != nil {
		return sink.Count{}, err
	}
	back, err := t.back.Read()
	return sink.Count{Packets: there.Packets + back.Packets, Bytes: there.Bytes + back.Bytes}, err
}

// all sends a packet of each connection and waits for the last.
func (t *traffic) all(ctx context.Context, first, flows int) error {
	before, err := t.delivered()
	if err != nil {
		return err
	}
	if err := t.generator.Start(t.plan(generate.Sequence, first, flows)); err != nil {
		return err
	}
	err = t.opened(ctx, flows)
	_, stopErr := t.generator.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	now, err := t.delivered()
	if err == nil && now.Sub(before).Packets == 0 {
		err = errors.New("no packet arrives")
	}
	return err
}

// opened waits until the first packets of all connections are sent.
func (t *traffic) opened(ctx context.Context, flows int) error {
	deadline := time.Now().Add(warmUpWithin)
	for {
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		sent, err := t.generator.Sent()
		if err != nil {
			return err
		}
		if sent >= uint64(flows) {
			return pause(ctx, 5*time.Millisecond)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s %d of %d connections were opened", warmUpWithin, sent, flows)
		}
	}
}

// measure runs the generator for a while and returns the outcome of the packets.
func (t *traffic) measure(ctx context.Context, p generate.Plan) (turn report.Turn, err error) {
	start, err := t.delivered()
	if err != nil {
		return turn, err
	}
	if err := t.generator.Start(p); err != nil {
		return turn, err
	}
	turn, err = t.span(ctx)
	sent, stopErr := t.generator.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		return turn, err
	}
	if p.Order == generate.Sequence && sent >= uint64(p.Flows) {
		return turn, fmt.Errorf("all %d connections were opened before the time was over: give less --seconds", p.Flows)
	}
	if err := pause(ctx, 20*time.Millisecond); err != nil { // packets in flight arrive
		return turn, err
	}
	end, err := t.delivered()
	if err != nil {
		return turn, err
	}
	if turn.Packets == 0 {
		return turn, errors.New("no packet arrives")
	}
	if t.both {
		sent *= 2
	}
	if arrived := end.Sub(start).Packets; arrived < sent {
		turn.Lost = uint64(float64(sent-arrived) * float64(turn.Packets) / float64(max(arrived, 1)))
	}
	turn.Details = t.s.running.Details()
	return turn, nil
}

// span is the measurement itself.
func (t *traffic) span(ctx context.Context) (report.Turn, error) {
	for sent := uint64(0); sent == 0; {
		var err error
		if sent, err = t.generator.Sent(); err == nil {
			err = pause(ctx, time.Millisecond)
		}
		if err != nil {
			return report.Turn{}, err
		}
	}
	if err := pause(ctx, settle); err != nil {
		return report.Turn{}, err
	}
	meter, err := cpu.Start(t.s.LBCore, append(t.s.NodeThreads(), t.s.running.Processes()...)...)
	if err != nil {
		return report.Turn{}, err
	}
	began := time.Now()
	before, err := t.delivered()
	if err != nil {
		return report.Turn{}, err
	}
	if err := pause(ctx, time.Duration(t.s.o.seconds*float64(time.Second))); err != nil {
		return report.Turn{}, err
	}
	after, err := t.delivered()
	if err != nil {
		return report.Turn{}, err
	}
	elapsed := time.Since(began)
	use, err := meter.Stop()
	if err != nil {
		return report.Turn{}, err
	}
	got := after.Sub(before)
	return report.Turn{
		Seconds: elapsed.Seconds(), Packets: got.Packets, Bytes: got.Bytes,
		CPUSeconds: use.Busy().Seconds(), Other: use.Other.Seconds(), Steal: use.Core.Steal.Seconds(),
	}, nil
}

func (t *traffic) close() error {
	var errs []error
	if t.generator != nil {
		errs = append(errs, t.generator.Close())
	}
	for _, s := range []*sink.Sink{t.there, t.back} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// measureEstablished opens connections, then sends packets of connections
// chosen at random; the backend sends every packet back. Every number of
// connections includes the smaller ones.
func measureEstablished(ctx context.Context, s *stand) (out []measured, err error) {
	t, err := newTraffic(s, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	open := 0
	for _, flows := range s.o.flows {
		if err := t.all(ctx, open, flows-open); err != nil {
			return nil, fmt.Errorf("open %d connections: %w", flows, err)
		}
		open = flows
		turn, err := t.measure(ctx, t.plan(generate.Random, 0, flows))
		if err != nil {
			return nil, fmt.Errorf("%d connections: %w", flows, err)
		}
		out = append(out, measured{report.Key{Workload: report.Established, Flows: flows}, turn})
	}
	return out, nil
}

// measureNew sends packets each of which begins a connection.
func measureNew(ctx context.Context, s *stand) (_ []measured, err error) {
	t, err := newTraffic(s, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	flows := newFlows(s.o.seconds)
	if s.running.Direct() {
		flows = 1 << 30 // nothing remembers them
	}
	turn, err := t.measure(ctx, t.plan(generate.Sequence, newFlowsFrom, flows))
	if err != nil {
		return nil, err
	}
	return []measured{{report.Key{Workload: report.New}, turn}}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
