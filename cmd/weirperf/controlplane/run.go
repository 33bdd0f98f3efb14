package controlplane

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/weirlb/weir/cmd/weir/tuning"
)

// Result is the output of `weirperf table --json`. Durations are microseconds
// from the slice event to the published snapshot unless named otherwise.
type Result struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	// BuildSeconds is everything from the first slice to the snapshot.
	BuildSeconds float64 `json:"buildSeconds"`
	// ChangeP50us and the next are of an endpoint replaced in any slice.
	ChangeP50us float64 `json:"changeP50us"`
	ChangeP99us float64 `json:"changeP99us"`
	// Change is all of their quantiles.
	Change Quantiles `json:"change"`
	// ChangeAllocBytes is of a Service of 25 endpoints.
	ChangeAllocBytes     uint64  `json:"changeAllocBytes"`
	HeapBytesPerEndpoint float64 `json:"heapBytesPerEndpoint"`
	// BySize are changes of Services of a given size.
	BySize  []SizeResult   `json:"bySize"`
	Rollout *RolloutResult `json:"rollout,omitempty"`
	// Tenth is the same with a tenth of the Services and endpoints.
	Tenth *TenthResult `json:"tenth,omitempty"`
	// Economy compares EndpointSlices with an Endpoints object.
	Economy *Economy `json:"economy,omitempty"`
}

// Quantiles are of durations in microseconds: on the clock, and of the
// thread's CPU time alone.
type Quantiles struct {
	MinUs    float64 `json:"minUs"`
	P50us    float64 `json:"p50us"`
	P99us    float64 `json:"p99us"`
	Maxus    float64 `json:"maxus"`
	CPUP50us float64 `json:"cpuP50us"`
	CPUP99us float64 `json:"cpuP99us"`
}

// SizeResult is of changes of Services with so many endpoints.
type SizeResult struct {
	Endpoints int `json:"endpoints"`
	Changes   int `json:"changes"`
	Quantiles
	AllocBytes   uint64 `json:"allocBytes"`
	AllocObjects uint64 `json:"allocObjects"`
}

// RolloutResult is a rolling replacement of the largest Service.
type RolloutResult struct {
	Endpoints int     `json:"endpoints"`
	Events    int     `json:"events"`
	Seconds   float64 `json:"seconds"`
	Quantiles
}

// TenthResult says how the cost of a change of a Service of 25 endpoints
// grows with the rest of the cluster: ratios of the full to the tenth, those
// of time by the CPU's.
type TenthResult struct {
	Services   int     `json:"services"`
	Endpoints  int     `json:"endpoints"`
	P50us      float64 `json:"cpuP50us"`
	AllocBytes uint64  `json:"allocBytes"`
	RatioP50   float64 `json:"ratioP50"`
	RatioAlloc float64 `json:"ratioAlloc"`
}

// Options are the size of the cluster, and how long to measure.
type Options struct {
	Services, Endpoints int
	Changes             int // one-slice changes over all slices
	Economy             bool
}

// runner measures, telling w how far it is.
type runner struct {
	ctx context.Context
	w   io.Writer
}

func (r *runner) say(format string, args ...any) { fmt.Fprintf(r.w, format+"\n", args...) }

// run measures everything.
func (r *runner) run(o Options) (*Result, error) {
	// The runtime as the daemon has it, which collects garbage seldom: on two
	// CPUs a collection takes as long as two changes of the largest Service.
	defer tuning.Apply(func(err error) { r.say("%v", err) }, 1, nil).All()
	out := &Result{Services: o.Services, Endpoints: o.Endpoints}
	c := newCluster(o.Services, o.Endpoints)
	before := heap()
	p := newPlane()
	r.say("building %d Services with %d endpoints in %d slices", o.Services, c.total, c.slices())
	d, err := p.build(c)
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	out.BuildSeconds = d.Seconds()
	out.HeapBytesPerEndpoint = float64(heap()-before) / float64(c.total)

	r.say("%d changes of any slice", o.Changes)
	s, err := p.changes(r.ctx, c, o.Changes, c.anySlice())
	if err != nil {
		return nil, fmt.Errorf("change: %w", err)
	}
	out.Change = s.quantiles()
	out.ChangeP50us, out.ChangeP99us = out.Change.P50us, out.Change.P99us
	if err := r.sizes(out, p, c); err != nil {
		return nil, err
	}
	if c.sizes[0] == giantSize {
		r.say("rolling replacement of %d endpoints", giantSize)
		if out.Rollout, err = r.rollout(p, c); err != nil {
			return nil, fmt.Errorf("rollout: %w", err)
		}
	}
	runtime.KeepAlive(p)
	if out.Tenth, err = r.tenth(o, out); err != nil {
		return nil, fmt.Errorf("a tenth: %w", err)
	}
	if !o.Economy {
		return out, nil
	}
	r.say("bytes of slices and of Endpoints")
	e, err := economy(giantSize, nodes)
	if err != nil {
		return nil, fmt.Errorf("economy: %w", err)
	}
	out.Economy = &e
	return out, nil
}

// sizes measures Services of each size that is there.
func (r *runner) sizes(out *Result, p *plane, c *cluster) error {
	for _, k := range []struct{ size, changes int }{{middleSize, 1000}, {largeSize, 300}, {giantSize, 100}} {
		pick := c.ofSize(k.size)
		if pick == nil {
			continue
		}
		r.say("%d changes of Services of %d endpoints", k.changes, k.size)
		s, err := p.changes(r.ctx, c, k.changes, pick)
		if err != nil {
			return fmt.Errorf("change: %w", err)
		}
		a, err := p.allocations(c, 21, pick)
		if err != nil {
			return fmt.Errorf("change: %w", err)
		}
		out.BySize = append(out.BySize, SizeResult{
			Endpoints: k.size, Changes: k.changes, Quantiles: s.quantiles(),
			AllocBytes: a.bytes, AllocObjects: a.objects,
		})
		if k.size == middleSize {
			out.ChangeAllocBytes = a.bytes
		}
	}
	return nil
}

// rolloutStep is the number of endpoints that an event of a rollout replaces: the slice
// controller coalesces the changes of a second.
const rolloutStep = 20

// rollout replaces all endpoints of the largest Service, slice by slice.
func (r *runner) rollout(p *plane, c *cluster) (*RolloutResult, error) {
	var s spread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	for slice := range c.sliceCount(0) {
		for n := rolloutStep; n <= perSlice; n += rolloutStep {
			if err := r.ctx.Err(); err != nil {
				return nil, err
			}
			t := target{0, slice}
			if p.replaced[t] == n {
				continue // left like this by the changes before
			}
			p.replaced[t] = n
			d, err := p.change(c.sliceObject(0, slice, n))
			if err != nil {
				return nil, err
			}
			s.add(d)
		}
	}
	return &RolloutResult{
		Endpoints: c.sizes[0], Events: len(s.wall), Seconds: time.Since(start).Seconds(), Quantiles: s.quantiles(),
	}, nil
}

// tenth measures a tenth of the cluster.
func (r *runner) tenth(o Options, full *Result) (*TenthResult, error) {
	t := &TenthResult{Services: o.Services / 10, Endpoints: o.Endpoints / 10}
	if t.Services < 1 {
		return nil, nil
	}
	c := newCluster(t.Services, t.Endpoints)
	pick := c.ofSize(middleSize)
	if pick == nil || len(full.BySize) == 0 || full.BySize[0].Endpoints != middleSize {
		return nil, nil
	}
	r.say("the same with a tenth of it")
	p := newPlane()
	if _, err := p.build(c); err != nil {
		return nil, err
	}
	s, err := p.changes(r.ctx, c, 1000, pick)
	if err != nil {
		return nil, err
	}
	a, err := p.allocations(c, 21, pick)
	if err != nil {
		return nil, err
	}
	t.P50us, t.AllocBytes = s.quantiles().CPUP50us, a.bytes
	t.RatioP50 = full.BySize[0].CPUP50us / t.P50us
	t.RatioAlloc = float64(full.ChangeAllocBytes) / float64(t.AllocBytes)
	return t, nil
}
