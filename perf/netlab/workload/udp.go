package workload

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// UDPLoad asks echo servers for their names, each time from another port and
// without asking twice: a lost datagram is a failed request.
type UDPLoad struct {
	Namespace   *netlab.Namespace
	Targets     []netip.AddrPort // taken in turn
	Source      netip.Addr       // the address to send from
	Concurrency int              // 0: 1
	Requests    int              // in all; 0: until the context is done
	Pause       time.Duration    // of each client between two requests
	Timeout     time.Duration    // of a request; 0: 2 s on a quiet machine
	// FirstPort and Ports are the source ports, taken in rotation; 0: 50,000
	// from 10000. A load balancer remembers a UDP flow for minutes after its
	// last packet, and a port chosen at random would sometimes fall into a remembered flow.
	// Loads that run at once need different ports.
	FirstPort, Ports uint16
	// Record is called at the start of each request and returns the Record for the outcome;
	// nil: the Record that Run returns.
	Record func() *Record
}

// Run sends requests until they are done or ctx is. The error is about the
// load itself, not about requests.
func (l *UDPLoad) Run(ctx context.Context) (*Record, error) {
	own := &Record{}
	record := l.Record
	if record == nil {
		record = func() *Record { return own }
	}
	var next atomic.Int64
	err := clients(l.Namespace, l.Concurrency, func() {
		for ctx.Err() == nil {
			i := next.Add(1) - 1
			if l.Requests > 0 && i >= int64(l.Requests) {
				return
			}
			l.request(ctx, i, record())
			pause(ctx, l.Pause)
		}
	})
	return own, err
}

func (l *UDPLoad) request(ctx context.Context, i int64, r *Record) {
	timeout := l.Timeout
	if timeout == 0 {
		timeout = patience.For(2 * time.Second)
	}
	r.begin()
	start := time.Now()
	server, err := l.exchange(ctx, i, start.Add(timeout))
	if err != nil && ctx.Err() != nil {
		r.cancel()
		return
	}
	r.end(server, time.Since(start), err)
}

func (l *UDPLoad) exchange(ctx context.Context, i int64, deadline time.Time) (string, error) {
	first, ports := l.FirstPort, l.Ports
	if ports == 0 {
		first, ports = 10000, 50000
	}
	local := netip.AddrPortFrom(l.Source, first+uint16(i%int64(ports)))
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(local)}
	c, err := d.DialContext(ctx, "udp", l.Targets[i%int64(len(l.Targets))].String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer shut(ctx, c)()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, WhoAreYou); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
