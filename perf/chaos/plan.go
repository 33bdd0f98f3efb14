package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// step is a fault, or two that are active together.
type step struct {
	at     time.Duration // since the start, or later if the steps before take longer
	faults []*fault
	hold   time.Duration
}

// settle is the time without a new fault at the beginning and at the end.
const settle = 3 * time.Second

// chosen are the faults of the configuration. Those of another source are left out.
func (c *Config) chosen() ([]*fault, error) {
	for _, name := range c.Only {
		known := slices.ContainsFunc(slices.Concat(faults, sourceFaults[Sources[0]], sourceFaults[Sources[1]]),
			func(f fault) bool { return f.name == name })
		if !known {
			return nil, fmt.Errorf("fault %q is not known", name)
		}
	}
	var out []*fault
	for _, f := range slices.Concat(faults, sourceFaults[c.source()]) {
		if len(c.Only) == 0 || slices.Contains(c.Only, f.name) {
			out = append(out, &f)
		}
	}
	return out, nil
}

// plan is the faults of a seed. Every kind comes once before any comes again.
func plan(seed uint64, duration time.Duration, kinds []*fault) []step {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []step
	var turn []*fault
	next := func(not *fault, calm bool) *fault {
		for range 2 * len(kinds) {
			if len(turn) == 0 {
				turn = slices.Clone(kinds)
				rng.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
			}
			f := turn[0]
			if not != nil && f.part == not.part {
				return nil
			}
			turn = turn[1:]
			if !calm || !f.ends {
				return f
			}
		}
		return nil
	}
	for at := settle; at < duration-settle; {
		calm := at > duration*2/3
		first := next(nil, calm)
		if first == nil {
			break
		}
		s := step{at: at, faults: []*fault{first}, hold: between(rng, first.least, first.most)}
		if rng.IntN(3) == 0 {
			if second := next(first, calm); second != nil {
				s.faults = append(s.faults, second)
			}
		}
		out = append(out, s)
		at += s.hold + between(rng, 500*time.Millisecond, 2500*time.Millisecond)
	}
	return out
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

// execute carries out the steps of a plan and returns when the last is over.
func (n *node) execute(ctx context.Context, steps []step, log *faultLog) error {
	start := time.Now()
	for _, s := range steps {
		if wait := time.Until(start.Add(s.at)); wait > 0 && !pause(ctx, wait) {
			return context.Cause(ctx)
		}
		errs := make([]error, len(s.faults))
		var active sync.WaitGroup
		for i, f := range s.faults {
			n.cfg.Log("%6.1f s: %s, %.1f s", time.Since(start).Seconds(), f.name, s.hold.Seconds())
			active.Go(func() { errs[i] = n.inflict(ctx, f, s.hold, log) })
		}
		active.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	if !pause(ctx, settle) {
		return context.Cause(ctx)
	}
	return nil
}

// inflict lets a fault last for the given time.
func (n *node) inflict(ctx context.Context, f *fault, hold time.Duration, log *faultLog) error {
	over := log.begin(f)
	defer over()
	return f.do(n, ctx, func() { pause(ctx, hold) })
}

// faultLog is what was active when.
type faultLog struct {
	sync.Mutex
	past []activity
}

type activity struct {
	fault      *fault
	begun, end time.Time // end is zero while the fault is active
}

func (l *faultLog) begin(f *fault) (over func()) {
	l.Lock()
	defer l.Unlock()
	i := len(l.past)
	l.past = append(l.past, activity{fault: f, begun: time.Now()})
	return func() {
		l.Lock()
		defer l.Unlock()
		l.past[i].end = time.Now()
	}
}

// after is how long a fault may have consequences once it is over.
const after = time.Second

// explanation returns the fault that explains a failure, nil if there is none. wait is mostWait.
func (l *faultLog) explanation(f *failure, wait time.Duration) *fault {
	if f.kind == workload.KindTimeout {
		return l.explainTimeout(f, wait)
	}
	l.Lock()
	past := slices.Clone(l.past)
	l.Unlock()
	lasts := patience.For(after)
	for _, a := range past {
		if a.fault.explains == nil || !a.fault.explains(f) || f.ended.Before(a.begun) {
			continue
		}
		if a.end.IsZero() || !f.ended.After(a.end.Add(lasts)) || l.heardLate(f, a.end, lasts, wait) {
			return a.fault
		}
	}
	return nil
}

// heardLate reports whether the client of an exchange may hear only now of a reset by end: it
// hears when it sends again, which other faults have held up ever since.
func (l *faultLog) heardLate(f *failure, end time.Time, lasts, wait time.Duration) bool {
	return f.kind == workload.KindReset && wait != 0 && f.begun.Before(end.Add(lasts)) && l.free(f.service, end, f.ended) <= wait
}

// explainTimeout returns the last of the faults that explain a failure by time: they follow
// each other so closely that no retransmission came between them.
func (l *faultLog) explainTimeout(f *failure, wait time.Duration) (last *fault) {
	if wait != 0 && l.free(f.service, f.begun, f.ended) > wait {
		return nil
	}
	l.Lock()
	defer l.Unlock()
	for _, a := range l.past {
		if a.fault.holdsUp != nil && a.fault.holdsUp(f.service) && a.begun.Before(f.ended) {
			last = a.fault
		}
	}
	return last
}

// free returns the longest time between two moments in which no fault held up the connections
// of a Service.
func (l *faultLog) free(s *service, from, to time.Time) (longest time.Duration) {
	l.Lock()
	defer l.Unlock()
	for _, a := range l.past { // in the order of their begin
		if a.fault.holdsUp == nil || !a.fault.holdsUp(s) {
			continue
		}
		if a.begun.After(to) {
			break
		}
		longest = max(longest, a.begun.Sub(from))
		if a.end.IsZero() {
			return longest
		}
		if a.end.After(from) {
			from = a.end
		}
	}
	return max(longest, to.Sub(from))
}

// counts returns how often each fault was active.
func (l *faultLog) counts() map[string]int {
	l.Lock()
	defer l.Unlock()
	out := map[string]int{}
	for _, a := range l.past {
		out[a.fault.name]++
	}
	return out
}
