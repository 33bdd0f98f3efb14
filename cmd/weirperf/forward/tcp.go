package forward

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/cpu"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/report"
	"github.com/weirlb/weir/perf/tcpload"
	"github.com/weirlb/weir/perf/testbed"
)

const (
	tcpClients = 16
	// tcpSources are the clients' addresses: a closed connection holds a port for a minute.
	tcpSources = 256
	// fixedRate is the load, in requests per second, at which latency is
	// measured: less than any path here can bear.
	fixedRate = 4000
	// newTCP is how many connections per second may be opened: more than the
	// load core can.
	newTCP = 60000
)

var tcpWorkloads = []workload{
	{report.Connect, peer.TCP, measureConnect},
	{report.Request, peer.TCP, measureRequest},
	{report.Bulk, peer.TCP, measureBulk},
}

// tcpLoad is the clients' side of a TCP workload.
func (s *stand) tcpLoad(clients int) *tcpload.Load {
	to, n := s.target()
	return &tcpload.Load{Namespace: s.Client, Target: to, Targets: n, Source: testbed.FirstClient, Sources: tcpSources, Clients: clients}
}

// withServers runs f beside servers in the backend. Every thread may run as soon as a
// system call returns: the measurement leaves Go's scheduler out.
func (s *stand) withServers(clients int, answer bool, f func(*tcpload.Server) error) (err error) {
	threads := 2 * clients
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads + clients + 4))
	server, err := tcpload.Serve(s.Backend, endpointPort, threads, answer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	return f(server)
}

// metered runs a load and adds the CPU time meanwhile, from settle to the end of the span.
func (s *stand) metered(ctx context.Context, load func(settle, span time.Duration) (tcpload.Outcome, error)) (tcpload.Outcome, report.Turn, error) {
	span := time.Duration(s.o.seconds * float64(time.Second))
	m, err := s.newMeters()
	if err != nil {
		return tcpload.Outcome{}, report.Turn{}, err
	}
	done := make(chan error, 1)
	go func() { done <- m.measure(ctx, span) }()
	o, err := load(settle, span)
	meterErr := <-done
	turn := report.Turn{Seconds: o.Seconds, Bytes: o.Bytes,
		CPUSeconds: m.use.Busy().Seconds(), Other: m.use.Other.Seconds(), Steal: m.use.Core.Steal.Seconds(),
		LBBusy: m.share(m.use.Busy()), LoadBusy: m.share(m.client),
		AllCPU: m.all.Seconds() * o.Seconds / max(m.use.Wall.Seconds(), 1e-9)}
	return o, turn, errors.Join(err, meterErr, failures(o))
}

// meters measure the LB core, and the CPU time of client, node and endpoint: of this process, the
// peer's and the kernel's threads.
type meters struct {
	node, load *cpu.Meter

	use    cpu.Use       // of the LB core
	client time.Duration // of the load core: of this process and the kernel's threads
	all    time.Duration
}

// share is the part of the span that a CPU time is. Others on the core are not in it: they run
// when the measured programs leave time.
func (m *meters) share(t time.Duration) float64 {
	return min(1, t.Seconds()/max(m.use.Wall.Seconds(), 1e-9))
}

// newMeters finds what is to be measured before there is load.
func (s *stand) newMeters() (*meters, error) {
	node, nodeErr := cpu.Prepare(s.LBCore, append(s.NodeThreads(), s.running.Processes()...)...)
	load, loadErr := cpu.Prepare(s.LoadCore) // the kernel's threads
	return &meters{node: node, load: load}, errors.Join(nodeErr, loadErr)
}

// measure measures a span that begins after settle.
func (m *meters) measure(ctx context.Context, span time.Duration) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before, beforeErr := ownTime()
	if err := errors.Join(beforeErr, m.node.Begin(), m.load.Begin()); err != nil {
		return err
	}
	err := pause(ctx, span)
	after, afterErr := ownTime()
	use, nodeErr := m.node.Stop()
	load, loadErr := m.load.Stop()
	m.use, m.client = use, load.Own+after-before
	m.all = use.Own + m.client
	return errors.Join(err, afterErr, nodeErr, loadErr)
}

// ownTime is the CPU time of this process, threads that have ended included.
func ownTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

// failures is an error when connections or requests failed: no path here may
// lose any.
func failures(o tcpload.Outcome) error {
	switch {
	case o.Failed > 0:
		return fmt.Errorf("%d of %d failed, the first: %w", o.Failed, o.Failed+o.Done, o.FirstErr)
	case o.Done == 0:
		return errors.New("nothing was answered")
	}
	return nil
}

// measureConnect opens a connection per request.
func measureConnect(ctx context.Context, s *stand) ([]measured, error) {
	var turn report.Turn
	err := s.withServers(tcpClients, true, func(*tcpload.Server) error {
		o, t, err := s.metered(ctx, func(settle, span time.Duration) (tcpload.Outcome, error) {
			return s.tcpLoad(tcpClients).Connect(ctx, settle, span)
		})
		t.PerSecond = float64(o.Done) / o.Seconds
		t.P50us, t.P99us = us(o.P50), us(o.P99)
		turn = t
		return err
	})
	return []measured{{report.Key{Workload: report.Connect, Flows: tcpClients}, turn}}, err
}

// measureRequest asks over open connections: as often as it can, then, for the
// latency, at a fixed rate.
func measureRequest(ctx context.Context, s *stand) ([]measured, error) {
	var turn report.Turn
	err := s.withServers(tcpClients, true, func(*tcpload.Server) error {
		o, t, err := s.metered(ctx, func(settle, span time.Duration) (tcpload.Outcome, error) {
			return s.tcpLoad(tcpClients).Request(ctx, settle, span)
		})
		if err != nil {
			return err
		}
		t.PerSecond = float64(o.Done) / o.Seconds
		o, err = s.tcpLoad(tcpClients).RequestAt(ctx, fixedRate, settle, time.Duration(s.o.seconds*float64(time.Second)))
		if err == nil {
			err = failures(o)
		}
		t.P50us, t.P99us = us(o.P50), us(o.P99)
		turn = t
		return err
	})
	return []measured{{report.Key{Workload: report.Request, Flows: tcpClients}, turn}}, err
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// offloads are the tasks that client and backend, and the node, leave to their devices.
type offloads struct {
	name         string
	segmentation bool // TSO, GSO and, on the receiving side, GRO
	checksums    bool // of sent packets
}

var offloadVariants = []offloads{
	{"offloads", true, true},
	{"no-segmentation", false, true},
	{"no-offloads", false, false},
}

// bulkStreams is how many streams there are at once.
const bulkStreams = 4

// measureBulk sends as much as the path takes, with and without offloads.
func measureBulk(ctx context.Context, s *stand) ([]measured, error) {
	var out []measured
	for _, v := range offloadVariants {
		err := s.withOffloads(v, func() error {
			return s.withServers(bulkStreams, false, func(server *tcpload.Server) error {
				o, t, err := s.metered(ctx, func(settle, span time.Duration) (tcpload.Outcome, error) {
					return s.tcpLoad(bulkStreams).Bulk(ctx, server, settle, span)
				})
				t.Bytes, t.Gbps = o.Bytes, float64(o.Bytes)*8/1e9/o.Seconds
				out = append(out, measured{report.Key{Workload: report.Bulk, Flows: bulkStreams, Detail: v.name}, t})
				return err
			})
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return out, nil
}

// withOffloads sets the offloads of the testbed's interfaces while f runs.
// An offload that the device does not let be changed stays: that is part of the path's
// cost. A veth whose peer has an XDP program, for example, does not let segmentation be
// switched on.
func (s *stand) withOffloads(v offloads, f func() error) (err error) {
	type end struct {
		n    *netlab.Namespace
		link string
		node bool
	}
	for _, e := range []end{{s.Client, testbed.ClientLink, false}, {s.Backend, testbed.BackendLink, false},
		{s.Node, testbed.NodeFront, true}, {s.Node, testbed.NodeBack, true}} {
		was, readErr := e.n.Offloads(e.link)
		if readErr != nil {
			return readErr
		}
		put := map[string]bool{
			"tx-tcp-segmentation": v.segmentation, "tx-tcp6-segmentation": v.segmentation, "tx-generic-segmentation": v.segmentation,
			"tx-checksum-ip-generic": v.checksums || e.node,
		}
		defer func() {
			back := map[string]bool{}
			for name := range put {
				back[name] = was[name]
			}
			err = errors.Join(err, e.n.SetOffloads(e.link, back), e.n.LimitMerging(e.link, netlab.MaxMerged))
		}()
		most := netlab.MaxMerged
		if !v.segmentation {
			most = 1
		}
		if err := errors.Join(e.n.SetOffloads(e.link, put), e.n.LimitMerging(e.link, most)); err != nil {
			return err
		}
	}
	return f()
}
