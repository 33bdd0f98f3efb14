// Package answers has the answers of `weir run` to its API, the status page and the metrics. It reads
// the state of the parts that it is given, and changes nothing but the level of the log and, for
// connections, the flow table.
package answers

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirlb/weir/cmd/weir/announcer"
	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/flowlog"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/topology"
)

// Published is what is published on this node, and what it follows from.
type Published interface {
	// Node is the node as the source has told it last.
	Node() topology.Node
	// NodePorts are the addresses on which node ports are served. synced is true once traffic is taken.
	NodePorts() (addresses []api.NodePortAddress, synced bool)
	// Readiness is what the node combines with the conditions of endpoints.
	Readiness() *translate.Readiness
	// Claims are the frontends that a Service claims. It waits for a publication, and makes none wait
	// for longer than a Service takes.
	Claims(svc *discovery.Service) []translate.Claim
	// Served are the Services that are translated.
	Served() []*discovery.Service
	// Tiers are those in use of a Service port.
	Tiers(service string, port uint16, proto uint8) []api.TierInUse
	// Removed counts the Services that the source has withdrawn.
	Removed() uint64
}

// Process is the state of the process and of the node as a whole.
type Process interface {
	healthz.Source
	// NotEligible is why load balancers in front should send nothing to this node, "" when they should.
	NotEligible() string
	// DrainNow is the drain in progress, nil for none.
	DrainNow(now time.Time) *api.Drain
	// Kernel are the features of the kernel, nil until they are probed.
	Kernel() []api.Feature
	// Privileges are those that are left, nil until the others are given up.
	Privileges() *privilege.Status
	// LookForProblems brings Source.Problems up to date.
	LookForProblems()
}

// Operator does what an operator asks for.
type Operator interface {
	api.DrainSource
	// Stop begins to end the daemon for good, and does not wait.
	Stop(ctx context.Context) error
}

// Source implements api.Source.
type Source struct {
	Published
	Process
	Operator

	NodeName  string // of the configuration
	LB        *lb.LB
	Services  source.Source
	Announcer *announcer.Announcer // nil where nothing is announced
	FlowLog   *flowlog.Log         // nil where connections are not recorded
	Attempts  *Attempts
	Monitor   *endpointhealth.Monitor
	Problems  *problem.Registry
	EventRing *event.Ring
	Phases    *phase.Phases  // of the start
	Level     *slog.LevelVar // nil: the level of the log is fixed
	Log       *slog.Logger
}

// Events implements api.Source. A Service that is gone is found by its events. A reader that follows has found it before.
func (src *Source) Events(f *event.Filter) (list []event.Event, last uint64, err error) {
	if list, last = src.EventRing.List(f); len(list) > 0 || f.Service == "" || f.After > 0 {
		return list, last, nil
	}
	if ever, _ := src.EventRing.List(&event.Filter{Service: f.Service, Limit: 1}); len(ever) == 0 {
		_, err = src.servicesNamed(f.Service)
	}
	return list, last, err
}
