package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// Probe makes requests at a fixed rate, whether earlier ones were answered or not, each from a new
// socket and without asking twice.
type Probe struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	report   ProbeReport
	answered []time.Time // when the requests began that were answered
}

// ProbeReport is the outcome of a Probe.
type ProbeReport struct {
	Sent, Lost int
	Gap        time.Duration // the longest time between two requests that were answered
	Err        error         // of the first that was lost
}

// Add adds the requests of another probe at the same time.
func (r *ProbeReport) Add(other ProbeReport) {
	r.Sent, r.Lost, r.Gap = r.Sent+other.Sent, r.Lost+other.Lost, max(r.Gap, other.Gap)
	if r.Err == nil {
		r.Err = other.Err
	}
}

// StartProbe makes a request to a server of ServeEcho every so often: a datagram (network udp), or a
// connection that is closed when it is open (tcp). A request without an answer within the time is
// lost.
func StartProbe(n *netlab.Namespace, network string, to netip.AddrPort, every, within time.Duration) *Probe {
	ctx, stop := context.WithCancel(context.Background())
	p := &Probe{stop: stop}
	p.running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for number := uint32(0); ctx.Err() == nil; number++ {
			p.running.Go(func() {
				began := time.Now()
				p.end(began, request(n, network, to, number, began.Add(within)))
			})
			<-tick.C
		}
	})
	return p
}

// request asks with a number, which the answer to a datagram has to repeat.
func request(n *netlab.Namespace, network string, to netip.AddrPort, number uint32, deadline time.Time) error {
	c, err := n.DialWith(context.Background(), &net.Dialer{Deadline: deadline}, network, to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "tcp" {
		return nil
	}
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	sent, got := binary.BigEndian.AppendUint32(nil, number), make([]byte, 5)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	size, err := c.Read(got)
	if err == nil && !slices.Equal(got[:size], sent) {
		err = fmt.Errorf("the answer is %x", got[:size])
	}
	return err
}

func (p *Probe) end(began time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Sent++
	if err == nil {
		p.answered = append(p.answered, began)
		return
	}
	if p.report.Lost++; p.report.Err == nil {
		p.report.Err = err
	}
}

// End stops the requests, and waits for the answers. The time from the last request that was
// answered to the end is a gap, too.
func (p *Probe) End() ProbeReport {
	ended := time.Now()
	p.stop()
	p.running.Wait()
	slices.SortFunc(p.answered, time.Time.Compare)
	for i, at := range p.answered {
		next := ended
		if i+1 < len(p.answered) {
			next = p.answered[i+1]
		}
		p.report.Gap = max(p.report.Gap, next.Sub(at))
	}
	return p.report
}
