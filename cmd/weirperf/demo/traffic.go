package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

const (
	clientPause = 10 * time.Millisecond // between two requests of a client
	// A client's two UDP streams of a family, refused, get less than the 50 ICMP
	// errors per second that Weir sends to a source.
	datagramPause = 50 * time.Millisecond
	httpClients   = 2 // per frontend, with new and with kept connections each
	// A long download's size does not depend on how long the phases are, so that a
	// slow machine gets to the end; the rate does.
	downloadBytes = 20 << 20
	// downloadQuiet is the time without progress after which a download has failed, on a
	// quiet machine.
	downloadQuiet = 10 * time.Second
	// requestWithin is the time limit of an HTTP request, and udpWithin that of a datagram
	// and the answer, on a quiet machine.
	requestWithin = 5 * time.Second
	udpWithin     = 2 * time.Second
)

// frontendAddr is an address by which clients reach the Service.
type frontendAddr struct {
	name       string
	addr       netip.Addr
	http, echo uint16
}

// frontendAddrs are the node's address and the load balancer IP, in both
// families.
func frontendAddrs() []frontendAddr {
	return []frontendAddr{
		{"node port, IPv4", netlab.Host4(netlab.ClientNet, 1), httpNodePort, echoNodePort},
		{"node port, IPv6", netlab.Host6(netlab.ClientNet, 1), httpNodePort, echoNodePort},
		{"LB IP, IPv4", netlab.Host4(netlab.LBNet, lbHost), httpPort, echoPort},
		{"LB IP, IPv6", netlab.Host6(netlab.LBNet, lbHost), httpPort, echoPort},
	}
}

// stream is a kind of traffic: a line of the tables.
type stream struct {
	name      string
	keepAlive bool
	record    atomic.Pointer[workload.Record] // where requests that begin now go
	run       func(context.Context) error
}

// traffic is everything that the client drives.
type traffic struct {
	streams   []*stream
	downloads []*download
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu  sync.Mutex
	err error
}

// download is a long download that runs through all phases.
type download struct {
	frontendAddr
	*workload.Transfer
	done chan struct{}
	err  error // valid once done is closed
}

// drive starts all traffic; downloads last for about the given time.
func (s *site) drive(ctx context.Context, lasting time.Duration) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{cancel: cancel}
	for _, f := range frontendAddrs() {
		t.streams = append(t.streams, s.httpStream(f, false))
	}
	for i, f := range frontendAddrs() {
		t.streams = append(t.streams, s.udpStream(f, uint16(10000*(i+1))))
	}
	for _, f := range frontendAddrs() {
		t.streams = append(t.streams, s.httpStream(f, true))
	}
	for _, st := range t.streams {
		st.record.Store(&workload.Record{})
		t.running.Go(func() {
			if err := st.run(ctx); err != nil {
				t.mu.Lock()
				t.err = errors.Join(t.err, fmt.Errorf("%s: %w", st.name, err))
				t.mu.Unlock()
			}
		})
	}
	for i, f := range frontendAddrs() {
		if i != 0 && i != 3 {
			continue // a download by each kind of address and each family
		}
		d := newDownload(s.lab.Client, f, uint64(i), lasting)
		t.downloads = append(t.downloads, d)
		t.running.Go(func() {
			d.err = d.Download(ctx)
			close(d.done)
		})
	}
	return t
}

// newDownload makes a download whose rate is such that it lasts for about that time.
func newDownload(client *netlab.Namespace, f frontendAddr, seed uint64, lasting time.Duration) *download {
	return &download{frontendAddr: f, done: make(chan struct{}), Transfer: &workload.Transfer{
		Namespace: client, Target: netip.AddrPortFrom(f.addr, f.http),
		Bytes: downloadBytes, Seed: seed, Rate: max(1, int64(downloadBytes/lasting.Seconds())),
	}}
}

func (s *site) httpStream(f frontendAddr, keepAlive bool) *stream {
	st := &stream{name: "HTTP, " + f.name, keepAlive: keepAlive}
	if keepAlive {
		st.name = "HTTP kept open, " + f.name
	}
	st.run = func(ctx context.Context) error {
		_, err := (&workload.Load{
			Namespace: s.lab.Client, Targets: []netip.AddrPort{netip.AddrPortFrom(f.addr, f.http)},
			Concurrency: httpClients, Pause: clientPause, Timeout: patience.For(requestWithin),
			KeepAlive: keepAlive, Record: st.record.Load,
		}).Run(ctx)
		return err
	}
	return st
}

func (s *site) udpStream(f frontendAddr, firstPort uint16) *stream {
	st := &stream{name: "UDP, " + f.name}
	source := netlab.Host4(netlab.ClientNet, 2)
	if f.addr.Is6() {
		source = netlab.Host6(netlab.ClientNet, 2)
	}
	st.run = func(ctx context.Context) error {
		_, err := (&workload.UDPLoad{
			Namespace: s.lab.Client, Targets: []netip.AddrPort{netip.AddrPortFrom(f.addr, f.echo)},
			Source: source, FirstPort: firstPort, Ports: 10000, Pause: datagramPause, Record: st.record.Load,
			Timeout: patience.For(udpWithin),
		}).Run(ctx)
		return err
	}
	return st
}

// begin directs the requests that start from now on to the new phase, as
// requests made while the endpoints change.
func (t *traffic) begin() *result {
	res := &result{}
	for _, st := range t.streams {
		row := row{stream: st, changing: &workload.Record{}, steady: &workload.Record{}}
		st.record.Store(row.changing)
		res.rows = append(res.rows, row)
	}
	return res
}

// steady directs the requests that start from now on to the phase proper, and
// waits until those that began before have ended.
func (t *traffic) steady(ctx context.Context, res *result) error {
	for _, row := range res.rows {
		row.stream.record.Store(row.steady)
	}
	for _, row := range res.rows {
		for row.changing.Pending() > 0 {
			if err := wait(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish notes how far the downloads have come.
func (res *result) finish(t *traffic) {
	for _, d := range t.downloads {
		var err error
		select {
		case <-d.done:
			err = d.err
		default:
		}
		res.downloads = append(res.downloads, d.Moved())
		res.broken = append(res.broken, err)
	}
}

// finishDownloads waits for the downloads, as long as their bytes move, and reports them.
func (t *traffic) finishDownloads(r *report) []string {
	var faults []string
	for i, d := range t.downloads {
		// An interrupt ends the downloads too.
		if !patience.Progress(d.done, downloadQuiet, d.Moved) {
			faults = append(faults, fmt.Sprintf("long download %d stopped after %d of %d bytes", i+1, d.Moved(), d.Bytes))
			continue
		}
		if d.err != nil {
			faults = append(faults, fmt.Sprintf("long download %d: %v", i+1, d.err))
			continue
		}
		r.download(d)
	}
	return faults
}

// stop ends all traffic and returns the errors of the load generators.
func (t *traffic) stop() error {
	t.cancel()
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
