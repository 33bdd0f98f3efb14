package process

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/connections"
	"github.com/weirlb/weir/cmd/weir/event"
)

// draining is a drain in progress. It has two phases. First the health
// endpoints fail while new connections are still taken: load balancers in front
// need that time to notice. Then the open connections go on, and new connections are the
// kernel's, as they will be once Weir has left.
type draining struct {
	accepting   time.Time // end of the first phase
	end         time.Time
	connections atomic.Int64
}

// status is the drain as `weir status` shows it.
func (r *draining) status(now time.Time) *api.Drain {
	if r == nil {
		return nil
	}
	return &api.Drain{
		Accepting:   now.Before(r.accepting),
		Connections: int(r.connections.Load()),
		SecondsLeft: max(0, r.end.Sub(now).Seconds()),
	}
}

// drain returns when no connection is left, drain.timeoutSeconds are over, or
// another signal asks for the end at once.
func (e *Ending) drain(ctx context.Context, hurry <-chan os.Signal) {
	times := e.node.Configuration().Drain
	e.node.ForgetDrains()                              // now, since a stop that takes too long is killed
	linger := max(times.NotReady(), e.node.Withdraw()) // routers first: they need no health check
	now, path := time.Now(), e.node.PacketPath()
	r := &draining{accepting: now.Add(linger), end: now.Add(linger + times.Timeout())}
	r.connections.Store(int64(path.Connections()))
	// First of all, so that load balancers in front stop sending new connections.
	e.draining.Store(r)
	e.notify.Stopping()
	e.log.Info("draining: health checks fail from now on, new connections are still taken",
		"notReadySeconds", times.NotReadySeconds, "timeoutSeconds", times.TimeoutSeconds, "connections", r.connections.Load())
	said := func(format string, args ...any) {
		e.events.Add(event.New{Kind: event.Drain, Severity: event.Warning, Identity: format, Text: fmt.Sprintf(format, args...), Logged: true})
	}
	said("draining: health checks fail, new connections are still taken; connections: %d", r.connections.Load())
	if !e.pause(ctx, hurry, linger) {
		return
	}
	path.Drain()
	said("draining: new connections are left to the kernel; connections: %d", path.Connections())
	e.log.Info("draining: new connections are left to the kernel", "connections", path.Connections())
	if e.waitForConnections(ctx, hurry, r) {
		connections.EndAll(path.FlowTable())
		e.pause(ctx, hurry, tellTime)
	}
}

// tellTime is how long connections that the end of a drain cuts off have to be told, both sides of
// each with the next packet of either. Of others the kernel tells the side that sends next.
const tellTime = time.Second

// Progress of a drain is logged this often. Connections are counted after pauses
// of at least LeastPause, and long enough for counting to take a twentieth of the
// time at most: a table of millions takes a while.
const (
	logDrainEvery = 5 * time.Second
	LeastPause    = 100 * time.Millisecond
)

// waitForConnections reports whether connections are left at the end of the time.
func (e *Ending) waitForConnections(ctx context.Context, hurry <-chan os.Signal, r *draining) (left bool) {
	logged, path := time.Now(), e.node.PacketPath()
	for {
		began := time.Now()
		n := path.Connections()
		now := time.Now()
		r.connections.Store(int64(n))
		rest := r.end.Sub(now)
		switch {
		case n == 0:
			e.log.Info("drained: no connection is left")
			return false
		case rest <= 0:
			e.log.Warn("drained in part: drain.timeoutSeconds are over", "connections", n)
			return true
		case now.Sub(logged) >= logDrainEvery:
			logged = now
			e.log.Info("draining", "connections", n, "secondsLeft", int(rest.Seconds()))
		}
		if !e.pause(ctx, hurry, min(rest, max(LeastPause, 20*now.Sub(began)))) {
			return false
		}
	}
}

// pause reports whether the time passed without a reason to end at once.
func (e *Ending) pause(ctx context.Context, hurry <-chan os.Signal, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case s := <-hurry:
		e.log.Warn("the drain is cut short", "signal", fmt.Sprint(s), "connections", e.node.PacketPath().Connections())
		return false
	case <-timer.C:
		return true
	}
}
