// Package process has the life of the process of `weir run`: its start, the signals, the drain, the
// privileges that it gives up, and the start again where a worker is stalled.
package process

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/conntrack"
)

// Node is the node whose process ends.
type Node interface {
	// Configuration is that of now.
	Configuration() config.Configuration
	// Serving reports whether traffic is taken: otherwise there is nothing to drain.
	Serving() bool
	// PacketPath is that of a node that serves.
	PacketPath() PacketPath
	// KeepsRoutes reports whether routers keep the routes of the node during a restart.
	KeepsRoutes() bool
	// Withdraw withdraws announced addresses before a stop, and returns how long packets may still come.
	Withdraw() time.Duration
	// ForgetDrains keeps the next process from taking over the operator's drains.
	ForgetDrains()
}

// PacketPath is what is drained.
type PacketPath interface {
	Connections() int
	// Drain leaves new connections to the kernel.
	Drain()
	FlowTable() *conntrack.Table
}

// Ending decides how and when the process ends.
type Ending struct {
	node   Node
	notify *sdnotify.Notifier
	events *event.Ring
	log    *slog.Logger
	stop   func() // ends the process

	draining  atomic.Pointer[draining] // nil before SIGTERM
	leaving   atomic.Bool              // for the next process, in place of a stop
	stopAsked chan struct{}            // by Stop
	sourced   chan struct{}            // closed when source is set
	source    source.Source
}

// NewEnding makes an Ending that calls stop in the end.
func NewEnding(node Node, stop func(), notify *sdnotify.Notifier, events *event.Ring, log *slog.Logger) *Ending {
	return &Ending{
		node: node, stop: stop, notify: notify, events: events, log: log,
		stopAsked: make(chan struct{}, 1), sourced: make(chan struct{}),
	}
}

// Sourced tells the source of Services, which may know whether another Pod follows. It is called once.
func (e *Ending) Sourced(s source.Source) {
	e.source = s
	close(e.sourced)
}

// Draining reports whether the process drains before a stop, for good.
func (e *Ending) Draining() bool { return e.draining.Load() != nil }

// Leaving reports whether the process ends for the next, in place of a stop.
func (e *Ending) Leaving() bool { return e.leaving.Load() }

// Progress is the drain in progress, nil for none.
func (e *Ending) Progress(now time.Time) *api.Drain { return e.draining.Load().status(now) }
