package fleet

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// step is an event of a node, or of the machine.
type step struct {
	node int // from 0; everyNode for an event of the machine
	name string
	// serves is true if the router is to send to the node afterwards.
	serves bool
	do     func(context.Context, *bed, *node) error
	// after is called when connections have settled; nil: nothing is left to do.
	after func(*node) error
}

// everyNode is the number of a step that happens to all nodes.
const everyNode = -1

func (s *step) title() string {
	if s.node == everyNode {
		return s.name
	}
	return fmt.Sprintf("node%d %s", s.node+1, s.name)
}

// shown are the events of a run without --events.
var shown = []string{"drain", "kill", "stop"}

// events are a node's leaving and return, by name.
var events = []struct {
	name  string
	steps []step
}{
	{"drain", []step{
		{node: 0, name: "is drained", do: func(ctx context.Context, _ *bed, n *node) error {
			_, err := n.admin.DrainSelf(ctx, false)
			return err
		}},
		{node: 0, name: "ends its drain", serves: true, do: func(ctx context.Context, _ *bed, n *node) error {
			_, err := n.admin.DrainSelf(ctx, true)
			return err
		}},
	}},
	{"kill", []step{
		{node: 1, name: "is killed (kill -9)", do: func(_ context.Context, _ *bed, n *node) error { return n.Signal(syscall.SIGKILL) }},
		{node: 1, name: "starts again", serves: true, do: restart},
	}},
	{"stop", []step{
		{
			node: 2, name: "is stopped (SIGTERM)", do: func(_ context.Context, _ *bed, n *node) error { return n.Signal(syscall.SIGTERM) },
			after: func(n *node) error { return n.Stop(patience.For(stopWithin)) },
		},
		{node: 2, name: "starts again", serves: true, do: restart},
	}},
	// The link to a node is cut behind the bridge: the router hears of it by BFD or the hold time alone.
	{"cut", []step{
		{node: 3, name: "is cut off silently", do: func(_ context.Context, b *bed, _ *node) error { return b.cut(true) }},
		{node: 3, name: "is connected again", serves: true, do: func(_ context.Context, b *bed, _ *node) error { return b.cut(false) }},
	}},
	// No node leaves: a session that ends is a false alarm.
	{"busy", []step{
		{node: everyNode, name: "the CPUs are busy for a minute", serves: true, do: func(ctx context.Context, _ *bed, _ *node) error {
			return occupy(ctx, busyFor)
		}},
	}},
}

// cut takes the bridge's port to node4 down, or up again.
func (b *bed) cut(down bool) error {
	link, err := b.Router.Interface("node4")
	if err != nil {
		return err
	}
	if down {
		return b.Router.Netlink().LinkSetDown(link)
	}
	return b.Router.Netlink().LinkSetUp(link)
}

func restart(_ context.Context, b *bed, n *node) error { return b.start(n) }

func eventNames() (out []string) {
	for _, e := range events {
		out = append(out, e.name)
	}
	return out
}

// steps are those of the events, in their order.
func steps(names []string) (out []step) {
	for _, e := range events {
		if slices.Contains(names, e.name) {
			out = append(out, e.steps...)
		}
	}
	return out
}

// result is the outcome of a step.
type result struct {
	step
	follows time.Duration // until the router sent to the nodes that serve, and to no others
	ended   int           // sessions, in a step in which no node leaves
	modes   []outcome     // of modes
}

// lingers is how long clients go on after a step before it is judged: longer than BFD of 300 ms
// needs to miss a router.
const lingers = time.Second

// take takes a step while clients go on. It returns when each established connection has been
// used after the router followed, or is lost.
func (b *bed) take(ctx context.Context, t *traffic, s step) (result, error) {
	res := result{step: s}
	var n *node
	if s.node != everyNode {
		n = b.nodes[s.node]
	}
	ended, err := b.ended(ctx)
	if err != nil {
		return res, err
	}
	if err := t.establish(ctx); err != nil {
		return res, err
	}
	if !s.serves || n == nil { // all nodes do
		if err := b.detects(ctx); err != nil {
			return res, err
		}
	}
	began := time.Now()
	if err := s.do(ctx, b, n); err != nil {
		return res, err
	}
	var serving []int
	for i := range b.nodes {
		if i != s.node || s.serves {
			serving = append(serving, i)
		}
	}
	followed, err := b.follows(ctx, serving...)
	if err != nil {
		return res, err
	}
	if n != nil {
		res.follows = followed.Sub(began)
	}
	if err := wait(ctx, lingers); err != nil {
		return res, err
	}
	if n == nil {
		now, err := b.ended(ctx)
		if err != nil {
			return res, err
		}
		res.ended = ended.until(now)
	}
	if s.after != nil {
		if err := s.after(n); err != nil {
			return res, err
		}
	}
	res.modes, err = t.settle(ctx)
	return res, err
}

// faults are the broken promises of a step.
func (r *result) faults() (out []string) {
	if r.ended > 0 {
		out = append(out, fmt.Sprintf("%s: %d sessions ended, of which none was dead", r.title(), r.ended))
	}
	for i := range r.modes {
		o, m := &r.modes[i], &modes[i]
		switch {
		case o.established == 0 || o.opened.Requests() == 0:
			out = append(out, fmt.Sprintf("%s: no traffic in mode %s", r.title(), m.name))
		case (m.keeps || r.node == everyNode) && o.lost > 0:
			out = append(out, fmt.Sprintf("%s: %d established connections were lost in mode %s: %v", r.title(), o.lost, m.name, o.err))
		case (m.keeps || r.node == everyNode) && o.opened.Failed() > 0:
			out = append(out, fmt.Sprintf("%s: new connections failed in mode %s: %v", r.title(), m.name, o.opened.Err()))
		}
	}
	return out
}
