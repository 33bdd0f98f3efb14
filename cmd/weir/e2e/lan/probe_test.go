package lan

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// probes are datagrams of the client, each of a flow of its own, and when each was answered.
type probes struct {
	sent, answered []time.Time
	stop, done     chan struct{}
}

const probeEvery = 10 * time.Millisecond

// probe sends a datagram to an address every 10 ms until it is stopped. Each has a source port of
// its own.
func (b *bed) probe(a netip.Addr) *probes {
	p := &probes{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		answers := make(chan int, 4096)
		for {
			select {
			case <-p.stop:
				for end := time.After(patience.For(300 * time.Millisecond)); ; {
					select {
					case i := <-answers:
						p.answered[i] = time.Now()
						continue
					case <-end:
					}
					return
				}
			case i := <-answers:
				p.answered[i] = time.Now()
			case <-tick.C:
				c, err := b.client.DialContext(context.Background(), "udp", netip.AddrPortFrom(a, port).String())
				if err != nil {
					continue
				}
				open = append(open, c)
				i := len(p.sent)
				p.sent, p.answered = append(p.sent, time.Now()), append(p.answered, time.Time{})
				go func() {
					buf := make([]byte, 16)
					if n, err := c.Read(buf); err == nil && n == 4 && binary.BigEndian.Uint32(buf) == uint32(i) {
						answers <- i
					}
				}()
				_, _ = c.Write(binary.BigEndian.AppendUint32(nil, uint32(i)))
			}
		}
	}()
	return p
}

// end stops the probes. lost are those without an answer, and gap the longest time between two
// probes that were answered.
func (p *probes) end() (sent, lost int, gap time.Duration) {
	close(p.stop)
	<-p.done
	var last time.Time
	for i, at := range p.answered {
		if at.IsZero() {
			lost++
			continue
		}
		if !last.IsZero() {
			gap = max(gap, p.sent[i].Sub(last))
		}
		last = p.sent[i]
	}
	return len(p.sent), lost, gap
}
