package lan

import (
	"context"
	"fmt"
	"maps"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// step is an event of a node.
type step struct {
	node int // from 0
	name string
	// leaves is true if the node is to own nothing afterwards, and takesBack if it is to own again
	// what it did at the beginning.
	leaves, takesBack bool
	// died is true of the only step that may lose something.
	died bool
	do   func(context.Context, *bed, *node) error
	// after is called when the others own the addresses; nil: nothing is left to do.
	after func(*node) error
}

func (s *step) title() string { return fmt.Sprintf("node%d %s", s.node+1, s.name) }

var steps = []step{
	{node: 0, name: "is drained", leaves: true, do: func(ctx context.Context, _ *bed, n *node) error {
		_, err := n.admin.DrainSelf(ctx, false)
		return err
	}},
	{node: 0, name: "ends its drain", takesBack: true, do: func(ctx context.Context, _ *bed, n *node) error {
		_, err := n.admin.DrainSelf(ctx, true)
		return err
	}},
	{node: 1, name: "is killed (kill -9)", leaves: true, died: true, do: func(_ context.Context, _ *bed, n *node) error {
		return n.Signal(syscall.SIGKILL)
	}},
	{node: 1, name: "starts again", do: func(_ context.Context, b *bed, n *node) error { return b.start(n) }},
	{
		node: 2, name: "is stopped (SIGTERM)", leaves: true,
		do:    func(_ context.Context, _ *bed, n *node) error { return n.Signal(syscall.SIGTERM) },
		after: func(n *node) error { return n.Stop(patience.For(stopWithin)) },
	},
}

// result is the outcome of a step.
type result struct {
	*step
	moved int           // addresses that have another owner
	after time.Duration // until they had
	modes []outcome     // of modes
}

// lingers is how long clients go on after a step before it is judged.
const lingers = 500 * time.Millisecond

// take takes a step while the client goes on. A step in which a node returns goes on with the
// addresses of the one in which it left.
func (b *bed) take(ctx context.Context, t *traffic, s *step) (*result, error) {
	n, res := b.nodes[s.node], &result{step: s}
	before, err := b.owners(ctx, nil)
	if err == nil && s.leaves {
		t.targets, err = before.targets(s.node)
	}
	if err == nil {
		err = t.begin(ctx)
	}
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := s.do(ctx, b, n); err != nil {
		return nil, err
	}
	now, err := b.follow(ctx, s, n)
	if err != nil {
		return nil, err
	}
	for a, i := range before {
		if now[a] != i {
			res.moved++
		}
	}
	res.after = time.Since(began)
	if err := wait(ctx, lingers); err != nil {
		return nil, err
	}
	if s.after != nil {
		if err := s.after(n); err != nil {
			return nil, err
		}
	}
	res.modes, err = t.end(ctx)
	return res, err
}

// follow waits until the nodes have come to the owners that follow from a step.
func (b *bed) follow(ctx context.Context, s *step, n *node) (owners, error) {
	if s.leaves {
		return b.settle(ctx, n, func(owners) bool { return true })
	}
	return b.settle(ctx, nil, func(o owners) bool {
		return b.joined(ctx, n) && (!s.takesBack || maps.Equal(o, b.home))
	})
}

// outage is the longest time without an answer that a death may cause, on a quiet machine.
const outage = time.Second

// faults are the broken promises of a step.
func (r *result) faults() (out []string) {
	add := func(format string, args ...any) { out = append(out, r.title()+": "+fmt.Sprintf(format, args...)) }
	if !r.leaves && !r.takesBack && r.moved > 0 {
		add("%d addresses moved, which nothing had told to", r.moved)
	}
	for i := range r.modes {
		o, m := &r.modes[i], &modes[i]
		if gap := max(o.datagrams.Gap, o.opened.Gap); r.died && gap > patience.For(outage) {
			add("no answer for %s in mode %s", milliseconds(gap), m.name)
		}
		switch {
		case o.established == 0 || o.opened.Sent == 0 || o.datagrams.Sent == 0:
			add("no traffic in mode %s", m.name)
		case m.keeps && o.lost > 0:
			add("%d established connections were lost in mode %s: %v", o.lost, m.name, o.err)
		case !r.died && o.datagrams.Lost > 0:
			add("%d of %d probes were lost in mode %s: %v", o.datagrams.Lost, o.datagrams.Sent, m.name, o.datagrams.Err)
		case !r.died && o.opened.Lost > 0:
			add("%d of %d new connections failed in mode %s: %v", o.opened.Lost, o.opened.Sent, m.name, o.opened.Err)
		}
	}
	return out
}
