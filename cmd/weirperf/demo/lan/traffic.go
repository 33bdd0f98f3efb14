package lan

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

const (
	probeEvery = 10 * time.Millisecond // of an address
	openEvery  = 20 * time.Millisecond
	useEvery   = 200 * time.Millisecond
	heldEach   = 10 // established connections of an address

	// On a quiet machine. A SYN that is lost is sent again after a second.
	answeredWithin = 500 * time.Millisecond
	// steady is how long the client goes on before a step.
	steady = 200 * time.Millisecond
)

// outcome is what happened in a mode in a step.
type outcome struct {
	datagrams, opened workload.ProbeReport
	established, lost int
	err               error // of the first that was lost
}

// traffic is all that the client does.
type traffic struct {
	bed     *bed
	targets [][]netip.AddrPort // of modes

	datagrams, opened [][]*workload.Probe // of modes
	held              [][]*workload.Held  // of modes
}

// begin begins a step: it opens connections, and sends probes from now on.
func (t *traffic) begin(ctx context.Context) error {
	t.close()
	t.held = make([][]*workload.Held, len(modes))
	for i := range modes {
		for _, to := range t.targets[i] {
			for range heldEach {
				h, err := workload.Hold(ctx, t.bed.Client, to, useEvery)
				if err != nil {
					return fmt.Errorf("establish a connection to %s: %w", to, err)
				}
				t.held[i] = append(t.held[i], h)
			}
		}
	}
	t.datagrams, t.opened = t.probe("udp", probeEvery), t.probe("tcp", openEvery)
	return wait(ctx, steady)
}

func (t *traffic) probe(network string, every time.Duration) [][]*workload.Probe {
	out := make([][]*workload.Probe, len(modes))
	for i := range modes {
		for _, to := range t.targets[i] {
			out[i] = append(out[i], workload.StartProbe(t.bed.Client, network, to, every, patience.For(answeredWithin)))
		}
	}
	return out
}

// end ends a step: it waits for the answers to all probes, and until each established connection has
// been used once more or is lost.
func (t *traffic) end(ctx context.Context) ([]outcome, error) {
	since, out := time.Now(), make([]outcome, len(modes))
	for i := range modes {
		o := &out[i]
		for _, p := range t.datagrams[i] {
			o.datagrams.Add(p.End())
		}
		for _, p := range t.opened[i] {
			o.opened.Add(p.End())
		}
		for _, h := range t.held[i] {
			if err := h.Settle(ctx, since); err != nil {
				return nil, err
			}
			o.established++
			if err := h.Err(); err != nil {
				if o.lost++; o.err == nil {
					o.err = err
				}
			}
		}
	}
	t.datagrams, t.opened = nil, nil
	return out, nil
}

// close ends all that goes on.
func (t *traffic) close() {
	for _, list := range append(t.datagrams, t.opened...) {
		for _, p := range list {
			p.End()
		}
	}
	for _, list := range t.held {
		for _, h := range list {
			h.Close()
		}
	}
	t.datagrams, t.opened, t.held = nil, nil, nil
}
