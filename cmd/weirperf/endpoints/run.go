package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/testbed"
)

const (
	frontendPort, endpointPort = 80, 8080
	// servers is the number of endpoints, one of which does not serve.
	servers = 4
	// before and after are the times of connections around the fault; first is the beginning of after.
	before, after, first = 3 * time.Second, 28 * time.Second, 10 * time.Second
	// affecting is the time of connections after an endpoint is killed.
	affecting = 12 * time.Second
	// slow is longer than a SYN that is sent again takes.
	slow = 1500 * time.Millisecond
)

// Result is how the connections of a turn fared, those begun since the fault.
type Result struct {
	Part, Peer  string
	Connections int
	Failed      int
	// LastTried is when the killed endpoint got the last new connection, whether or not the client noticed:
	// seconds since the fault.
	LastTried float64
	// Affected failed or took more than 500 ms, LastAffected is when the last began.
	Affected     int
	LastAffected float64
	// SlowFirst and SlowAfter are the shares that took more than 1.5 s, in percent: begun in the first 10 s,
	// and after.
	SlowFirst, SlowAfter float64
	MaxSeconds           float64
	FirstError           string `json:",omitempty"`
}

// bench runs peers in turn.
type bench struct {
	o       options
	peers   []peer.Peer
	say     io.Writer
	results []Result
	loads   []Load
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.say, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func (b *bench) run(ctx context.Context) error {
	for _, part := range b.o.parts {
		for turn := range b.o.turns {
			for _, p := range b.peers {
				b.progress("%s, turn %d: %s", part, turn+1, p.Name())
				if err := b.turn(ctx, part, p); err != nil {
					return fmt.Errorf("%s: %s: %w", part, p.Name(), err)
				}
			}
		}
	}
	return nil
}

// turn runs a peer in a testbed of its own.
func (b *bench) turn(ctx context.Context, part string, p peer.Peer) (err error) {
	setting := testbed.Default // its receivers leave the CPUs to others: connections are what counts
	if part == partProbes {
		setting = testbed.Threaded // the endpoints' part of the work is not the program's
	}
	bed, err := testbed.New(setting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	if part == partProbes {
		return b.probes(ctx, bed, p)
	}
	processes, err := startServers(ctx, bed)
	if err != nil {
		return err
	}
	s := peer.Service{Protocol: peer.TCP, Frontend: netip.AddrPortFrom(testbed.Frontend, frontendPort), Endpoints: endpointsOf(servers)}
	if part == partKilled {
		s.Check = peer.Check{Kind: peer.CheckConnect, Every: time.Second, Fails: 3}
	}
	running, err := p.Start(ctx, bed, peer.Config{Services: []peer.Service{s}, MaxFlows: 1 << 16, Weir: b.o.weir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	if err := pause(ctx, 3*time.Second); err != nil { // every endpoint has been checked
		return err
	}
	r, err := fare(ctx, bed, part, s.Frontend, processes[0])
	if err != nil {
		return err
	}
	r.Part, r.Peer = part, p.Name()
	b.progress("  %s", r)
	b.results = append(b.results, r)
	return nil
}

// fare has an endpoint fail amid connections.
func fare(ctx context.Context, bed *testbed.Bed, part string, to netip.AddrPort, victim *netlab.Process) (Result, error) {
	lasts := after
	if part == partKilled {
		lasts = affecting
	}
	loading, stop := context.WithTimeout(ctx, before+lasts)
	defer stop()
	var at time.Time
	done := make(chan []connection, 1)
	go func() { done <- connect(loading, bed.Client, to, func() time.Time { return at }) }()
	err := pause(ctx, before)
	at = time.Now()
	if part == partKilled {
		err = errors.Join(err, victim.Kill())
	} else {
		err = errors.Join(err, silence(bed.Backend))
	}
	tried, trial := lastTried(loading, bed.Backend, at)
	<-loading.Done()
	r := sumUp(<-done)
	if part == partKilled {
		r.LastTried = tried.Seconds()
	}
	return r, errors.Join(err, trial, ctx.Err())
}

// Between two looks at the endpoints' resets checks cause resetsOfChecks at most: the killed endpoint
// answers each SYN by a reset, and gets ten of clients.
const (
	lookEvery      = 200 * time.Millisecond
	resetsOfChecks = 3
)

// lastTried is when the endpoints sent the last resets for SYNs of clients.
func lastTried(ctx context.Context, endpoints *netlab.Namespace, at time.Time) (last time.Duration, err error) {
	before, err := endpoints.Counters()
	for err == nil && pause(ctx, lookEvery) == nil {
		var now netlab.Counters
		if now, err = endpoints.Counters(); err == nil && now.Sub(before)["TcpOutRsts"] > resetsOfChecks {
			last = time.Since(at)
		}
		before = now
	}
	return last, err
}

// silence has the first endpoint drop all packets.
func silence(n *netlab.Namespace) error {
	rule := fmt.Sprintf("table inet ill { chain in { type filter hook input priority 0; ip daddr %s drop; }; }", testbed.Endpoint(0))
	return n.Do(func() error {
		if out, err := exec.Command("nft", rule).CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

// sumUp is the result of the connections that were begun since the fault.
func sumUp(list []connection) (r Result) {
	var slowFirst, ofFirst, slowAfter, ofAfter int
	slices.SortFunc(list, func(a, b connection) int { return int(a.begun - b.begun) })
	for _, c := range list {
		if c.begun < 0 {
			continue
		}
		r.Connections++
		r.MaxSeconds = max(r.MaxSeconds, c.took.Seconds())
		if c.err != nil {
			if r.Failed++; r.FirstError == "" {
				r.FirstError = c.err.Error()
			}
		}
		if c.err != nil || c.took > late {
			r.Affected++
			r.LastAffected = c.begun.Seconds()
		}
		isSlow := 0
		if c.took > slow {
			isSlow = 1
		}
		if c.begun < first {
			ofFirst, slowFirst = ofFirst+1, slowFirst+isSlow
		} else {
			ofAfter, slowAfter = ofAfter+1, slowAfter+isSlow
		}
	}
	r.SlowFirst, r.SlowAfter = percent(slowFirst, ofFirst), percent(slowAfter, ofAfter)
	return r
}

func percent(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }

func endpointsOf(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(testbed.Endpoint(i), endpointPort))
	}
	return list
}

// startServers starts the process of each endpoint.
func startServers(ctx context.Context, bed *testbed.Bed) (list []*netlab.Process, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i, at := range endpointsOf(servers) {
		log := filepath.Join(bed.Dir(), fmt.Sprintf("server-%d.log", i))
		d, err := bed.Backend.StartDaemon(exec.Command(self, "endpoints", "--serve", at.String()), log)
		if err != nil {
			return nil, err
		}
		starting, cancel := context.WithTimeout(ctx, 30*time.Second)
		err = d.Until(starting, func(context.Context) error {
			if said := d.LogTail(3); !strings.Contains(said, "serving") {
				return fmt.Errorf("endpoint %s is not ready: %s", at, said)
			}
			return nil
		})
		cancel()
		if err != nil {
			return nil, err
		}
		list = append(list, d.Process)
	}
	return list, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
