package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/report"
	"github.com/weirlb/weir/perf/testbed"
)

// Ports of the Services. A Service is there for every protocol that a workload
// asks for.
const (
	frontendPort = 80
	endpointPort = 8080
)

// measured is a figure of a turn.
type measured struct {
	report.Key
	report.Turn
}

// workload is a kind of load. The measure function puts the load on the running peer, and
// takes it off again, at every turn.
type workload struct {
	name     string
	protocol peer.Protocol
	measure  func(context.Context, *stand) ([]measured, error)
}

// stand is the place of a workload: a peer at work in a testbed.
type stand struct {
	*testbed.Bed
	o       options
	peer    peer.Peer
	running peer.Running
}

// target is where clients send to, and how many consecutive addresses that is.
func (s *stand) target() (netip.AddrPort, int) {
	if s.running.Direct() {
		return netip.AddrPortFrom(testbed.Endpoint(0), endpointPort), s.o.endpoints
	}
	return netip.AddrPortFrom(testbed.Frontend, frontendPort), 1
}

// workloads are all there are, in the order in which they are run.
var workloads = slices.Concat(udpWorkloads, tcpWorkloads)

func workloadNames() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

func workloadsNamed(names []string) ([]workload, error) {
	for _, name := range names {
		if !slices.ContainsFunc(workloads, func(w workload) bool { return w.name == name }) {
			return nil, fmt.Errorf("--workloads: unknown workload %q: there are %v", name, workloadNames())
		}
	}
	var found []workload
	for _, w := range workloads {
		if slices.Contains(names, w.name) {
			found = append(found, w)
		}
	}
	return found, nil
}

// bench runs peers in turn.
type bench struct {
	o         options
	peers     []peer.Peer
	workloads []workload
	say       io.Writer

	began time.Time
	turns map[report.Key][]report.Turn
	// failed are the measurements that came to nothing.
	failed []error
}

func (b *bench) run(ctx context.Context, settings []testbed.Setting) ([]report.Result, error) {
	b.began = time.Now()
	b.turns = map[report.Key][]report.Turn{}
	var there []peer.Peer
	for _, p := range b.peers {
		switch err := p.Available(); {
		case err == nil:
			there = append(there, p)
		case b.o.allPeers:
			b.progress("left out: %v", err)
		default:
			return nil, fmt.Errorf("peer %s: %w", p.Name(), err)
		}
	}
	b.peers = there
	for _, setting := range settings {
		if err := b.runSetting(ctx, setting); err != nil {
			return nil, fmt.Errorf("setting %s: %w", setting, err)
		}
	}
	var results []report.Result
	for k, turns := range b.turns {
		results = append(results, report.Summarize(k, turns))
	}
	return results, nil
}

// runSetting builds a testbed and gives every peer turns in it.
func (b *bench) runSetting(ctx context.Context, setting testbed.Setting) (err error) {
	bed, err := testbed.New(setting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	for turn := range b.o.turns {
		for i := range b.peers {
			// The order rotates, so that no peer always follows the same peer.
			p := b.peers[(i+turn)%len(b.peers)]
			b.progress("%s: turn %d of %d: %s", setting, turn+1, b.o.turns, p.Name())
			if err := b.turn(ctx, bed, p); err != nil {
				return fmt.Errorf("%s: %w", p.Name(), err)
			}
		}
	}
	return nil
}

// turn starts a peer, measures every workload, and stops it.
func (b *bench) turn(ctx context.Context, bed *testbed.Bed, p peer.Peer) (err error) {
	work := slices.DeleteFunc(slices.Clone(b.workloads), func(w workload) bool { return !p.Carries(w.protocol) })
	if len(work) == 0 {
		return nil
	}
	running, err := p.Start(ctx, bed, b.config(work))
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() {
		if stopErr := running.Stop(); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stop: %w", stopErr))
		}
	}()
	s := &stand{Bed: bed, o: b.o, peer: p, running: running}
	for _, w := range work {
		got, err := w.measure(ctx, s)
		if err == nil {
			err = refused(running)
		}
		if err == nil {
			err = ctx.Err()
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // the turn is void; the others go on
			err = fmt.Errorf("%s: %s: %s: %w", bed.Setting, p.Name(), w.name, err)
			b.progress("  void: %v", err)
			b.failed = append(b.failed, err)
			continue
		}
		for _, m := range got {
			m.Peer, m.Setting = p.Name(), string(bed.Setting)
			b.turns[m.Key] = append(b.turns[m.Key], m.Turn)
			b.progress("  %s", line(report.Summarize(m.Key, []report.Turn{m.Turn})))
		}
	}
	return nil
}

// refused is an error when the peer had no room for something: the work that it then left
// out would look like speed, or like loss.
func refused(r peer.Running) error {
	counts, err := r.Refused()
	if err != nil {
		return err
	}
	for reason, n := range counts {
		if n > 0 {
			return fmt.Errorf("the run is void: %d packets were dropped for want of room (%s)", n, reason)
		}
	}
	return nil
}

// config is the configuration of every peer.
func (b *bench) config(work []workload) peer.Config {
	c := peer.Config{Weir: b.o.weir, Baseline: b.o.baseline, MaxFlows: slices.Max(b.o.flows)}
	if slices.ContainsFunc(work, func(w workload) bool { return w.name == report.New }) {
		c.MaxFlows += newFlows(b.o.seconds)
	}
	if slices.ContainsFunc(work, func(w workload) bool { return w.name == report.Connect }) {
		c.MaxFlows += int((b.o.seconds + 1) * newTCP)
	}
	for _, protocol := range []peer.Protocol{peer.UDP, peer.TCP} {
		if !slices.ContainsFunc(work, func(w workload) bool { return w.protocol == protocol }) {
			continue
		}
		s := peer.Service{Protocol: protocol, Frontend: netip.AddrPortFrom(testbed.Frontend, frontendPort)}
		for i := range b.o.endpoints {
			s.Endpoints = append(s.Endpoints, netip.AddrPortFrom(testbed.Endpoint(i), endpointPort))
		}
		c.Services = append(c.Services, s)
	}
	return c
}

func (b *bench) progress(format string, args ...any) {
	at := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(b.say, "%7s  %s\n", at, fmt.Sprintf(format, args...))
}
