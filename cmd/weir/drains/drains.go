// Package drains has the drains that an operator asks for, and may undo: of endpoints, and of the
// node. They have no end. The next process has them too, unless this one is stopped: see file.go.
package drains

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/process"
	"github.com/weirlb/weir/cmd/weir/translate"
)

// Drains are the drains in progress. Whoever publishes owns the endpoints: all methods about them need
// the lock of publications, those about the node none.
type Drains struct {
	node string
	file string
	log  *slog.Logger
	// self is since when the node is drained, nil: not.
	self      atomic.Pointer[time.Time]
	endpoints []drained
	counted   lastCount
}

// drained is an endpoint that gets no new connections.
type drained struct {
	translate.Drained
	since time.Time
}

// most bounds the list: each endpoint is compared with all of it.
const most = 1000

// Listed are those of a set that Services with a frontend list, as translate.Translator has them.
type Listed func(translate.DrainedSet) translate.DrainedSet

// Self is since when the operator drains the node, nil: not.
func (d *Drains) Self() *time.Time { return d.self.Load() }

// DrainSelf begins the drain of the node, or ends it.
func (d *Drains) DrainSelf(undo bool) {
	now := time.Now()
	switch {
	case undo && d.self.Swap(nil) != nil:
		d.log.Info("the operator ends the drain of the node: health checks succeed again")
	case !undo && d.self.CompareAndSwap(nil, &now):
		d.log.Info("the operator drains the node: health checks fail from now on, new connections are still taken")
	}
}

// Endpoints are the endpoints that are drained.
func (d *Drains) Endpoints() []translate.Drained { return drainedOf(d.endpoints) }

// Set is a set of Endpoints.
func (d *Drains) Set() translate.DrainedSet {
	s := make(translate.DrainedSet, len(d.endpoints))
	for _, e := range d.endpoints {
		s[e.Drained] = e.since
	}
	return s
}

func drainedOf(list []drained) (out []translate.Drained) {
	for _, e := range list {
		out = append(out, e.Drained)
	}
	return out
}

// DrainEndpoints drains endpoints, or ends their drain: all of them or, with an error, none.
func (d *Drains) DrainEndpoints(names []string, undo bool, of Listed) error {
	if len(names) > most {
		return fmt.Errorf("%w: at most %d endpoints may be drained", api.ErrInvalid, most)
	}
	list := slices.Clone(d.endpoints)
	asked := make([]translate.Drained, len(names))
	for i, name := range names {
		var ok bool
		if asked[i], ok = translate.ParseDrained(name); !ok {
			return fmt.Errorf("%w: endpoint %q: must be ADDRESS or ADDRESS:PORT", api.ErrInvalid, name)
		}
	}
	listed := of(translate.NewDrainedSet(asked))
	for _, e := range asked {
		_, known := listed[e]
		at := slices.IndexFunc(list, func(x drained) bool { return x.Drained == e })
		switch {
		case undo && at < 0:
			return fmt.Errorf("endpoint %s is not drained: %w", e, api.ErrNotFound)
		case undo:
			list = slices.Delete(list, at, at+1)
		case at >= 0:
		case !known:
			return fmt.Errorf("endpoint %s, of a Service with a frontend on this node: %w", e, api.ErrNotFound)
		case len(list) == most:
			return fmt.Errorf("%w: %d endpoints are drained, as many as there may be", api.ErrTooMany, most)
		default:
			list = append(list, drained{e, time.Now()})
		}
	}
	d.endpoints = list
	return nil
}

// Forget ends the drain of endpoints that no Service lists any more, and reports whether there were
// any: the address may become another's.
func (d *Drains) Forget(of Listed) (changed bool) {
	if len(d.endpoints) == 0 {
		return false
	}
	listed := of(d.Set())
	left := slices.DeleteFunc(slices.Clone(d.endpoints), func(e drained) bool {
		_, there := listed[e.Drained]
		if !there {
			d.log.Info("a drained endpoint is gone: its drain has ended", "endpoint", e.String())
		}
		return !there
	})
	changed = len(left) != len(d.endpoints)
	d.endpoints = left
	return changed
}

// Problems show drains that may have been forgotten.
func (d *Drains) Problems() (out []problem.Problem) {
	if d.Self() != nil {
		out = append(out, problem.Problem{
			Kind: problem.Drained, Object: "Node " + d.node,
			Reason: "weir drain self lets the health checks fail and withdraws announced addresses, until weir drain self --undo",
		})
	}
	var names []string
	for _, e := range d.endpoints {
		names = append(names, e.String())
	}
	if len(names) > 0 {
		out = append(out, problem.Problem{
			Kind: problem.Drained, Object: problem.Weir,
			Reason: "weir drain endpoint gives no new connections to " + event.Some(names),
		})
	}
	return out
}

// Answer is the answer of the API about the endpoints, linger being the time until the routers of a
// drained node have followed.
func (d *Drains) Answer(connections int, linger time.Duration) *api.Drains {
	out := &api.Drains{Connections: connections, Endpoints: d.shown()}
	if since := d.Self(); since != nil {
		out.Self, out.SelfSince = true, since
		out.LingerSeconds = max(0, (linger - time.Since(*since)).Seconds())
	}
	return out
}

func (d *Drains) shown() []api.DrainedEndpoint {
	out := []api.DrainedEndpoint{}
	for _, e := range d.endpoints {
		out = append(out, api.DrainedEndpoint{Endpoint: e.String(), Since: e.since})
	}
	return out
}

// Connections are those that a drain waits for, counted by count, or a moment ago.
func (d *Drains) Connections(count func() int) int { return d.counted.of(count) }

// lastCount is the last count of the connections that a drain waits for. A count looks at the
// whole flow table, and any number of clients may ask for it, also by the status.
type lastCount struct {
	mu   sync.Mutex
	n    int
	next time.Time // when the count is too old
}

// of is the last count. Counting takes a twentieth of the time at most.
func (c *lastCount) of(count func() int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if !began.Before(c.next) {
		c.n = count()
		now := time.Now()
		c.next = now.Add(max(process.LeastPause, 20*now.Sub(began)))
	}
	return c.n
}
