package fleet

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// Report is the result of the command; as JSON it has a fixed form.
type Report struct {
	Machine         machine.Machine `json:"machine"`
	Seed            uint64          `json:"seed"`
	LifetimeSeconds float64         `json:"lifetimeSeconds"`
	Older           bool            `json:"older,omitempty"` // than all replacements: in place of lifetimes
	BucketsPerNode  int             `json:"bucketsPerNode"`
	Paper           []Curve         `json:"maglevPaper"`
	RFC2992         []Formula       `json:"rfc2992"`
	Sizes           []Size          `json:"tableSizes"`
	Cells           []Cell          `json:"cells"`
}

// runner carries out a run.
type runner struct {
	ctx      context.Context
	progress io.Writer
	o        Options
	shown    time.Time
}

// show reports progress, at most every other second.
func (r *runner) show(format string, args ...any) {
	if now := time.Now(); now.Sub(r.shown) >= 2*time.Second {
		r.shown = now
		fmt.Fprintf(r.progress, "fleet: "+format+"\n", args...)
	}
}

func (r *runner) run() (*Report, error) {
	o := &r.o
	if r.ctx == nil {
		r.ctx = context.Background()
	}
	r.shown = time.Now()
	rep := &Report{Seed: o.Seed, LifetimeSeconds: o.Lifetime.Seconds(), Older: o.Older, BucketsPerNode: o.Buckets}
	if err := r.published(rep); err != nil {
		return nil, err
	}
	if err := r.sizes(rep); err != nil {
		return nil, err
	}
	s := simulation{ctx: r.ctx, seed: o.Seed, flows: o.Flows, trials: o.Trials, older: o.Older}
	var err error
	rep.Cells, err = s.sweep(o, func(done, all int) { r.show("setting %d of %d", done, all) })
	return rep, err
}

// published repeats what others have published.
func (r *runner) published(rep *Report) error {
	trials := 200 // as the paper
	if r.o.Short {
		trials = 5
	}
	for _, slots := range paperSlots {
		for _, removed := range paperRemoved {
			r.show("the Maglev paper's figure 12: %d slots, %d of %d endpoints removed", slots, removed, paperEndpoints)
			n := trials
			if slots > 1<<17 { // the spread of a larger table is smaller, and the time is ten times as long
				n = max(trials/10, 1)
			}
			c, err := paperCurve(r.ctx, r.o.Seed, slots, removed, n)
			if err != nil {
				return err
			}
			rep.Paper = append(rep.Paper, c)
		}
	}
	flows := min(r.o.Flows, 1_000_000)
	for _, nodes := range []int{2, 4, 8, 64, 1000} {
		for _, position := range []int{1, (nodes + 1) / 2, nodes} {
			r.show("RFC 2992: node %d of %d is lost", position, nodes)
			rep.RFC2992 = append(rep.RFC2992, formula(r.o.Seed, nodes, position, flows, r.o.Buckets))
		}
	}
	return nil
}

// sizes measures table sizes.
func (r *runner) sizes(rep *Report) error {
	endpoints, slots, samples := []int{100, 1000, 5000}, []int{16381, 65521, 262139, 524287, 1048573}, 10
	if r.o.Short {
		endpoints, slots, samples = []int{1000}, []int{65521, 262139}, 1
	}
	for _, n := range endpoints {
		for _, slots := range slots {
			if slots < 16*n {
				continue
			}
			r.show("%d slots for %d endpoints", slots, n)
			s, err := measureSize(r.ctx, r.o.Seed, slots, n, samples)
			if err != nil {
				return err
			}
			rep.Sizes = append(rep.Sizes, s)
		}
	}
	return nil
}
