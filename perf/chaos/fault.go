package chaos

import (
	"context"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// part is a part of the node. Two faults of the same part are never active together.
type part int

const (
	partProcess part = iota
	partLink
	partSource
	partEndpoint
)

// fault is a kind of fault.
type fault struct {
	name string
	part part
	// ends: the process is ended.
	ends        bool
	least, most time.Duration // that it is active
	// do begins the fault, calls hold, and undoes the fault.
	do func(n *node, ctx context.Context, hold func()) error
	// holdsUp reports whether the connections of a Service may wait while the fault is active;
	// nil: none may.
	holdsUp func(*service) bool
	// explains reports whether the fault may be the cause of a failure; nil: of none.
	explains func(*failure) bool
}

// faults are those of any source. Those of the process explain nothing: neither an
// established nor a new connection may fail.
var faults = []fault{
	{"kill -9", partProcess, true, 0, time.Second, ofProcess((*process).kill), everybody, nil},
	{"restart", partProcess, true, 0, 0, ofProcess((*process).restart), everybody, nil},
	{"reload", partProcess, false, 0, 0, ofProcess((*process).reload), nil, nil},
	{"stopped process", partProcess, false, 200 * time.Millisecond, 2 * time.Second, ofProcess((*process).stall), everybody, nil},
	{"CPU hogs", partProcess, false, time.Second, 4 * time.Second, ofProcess((*process).hog), nil, nil},
	{"full disk", partProcess, true, 0, time.Second, ofProcess((*process).fillDisk), everybody, nil},
	{"memory pressure", partProcess, true, time.Second, 3 * time.Second, ofProcess((*process).pressMemory), everybody, nil},

	{"link flap", partLink, false, 200 * time.Millisecond, 2 * time.Second, ofNetwork((*network).flapLink), throughFabric, unreachable},
	{"interface made anew", partLink, false, 0, time.Second, ofNetwork((*network).recreateLink), throughFabric, resetByKernel},
	{"smaller MTU", partLink, false, time.Second, 3 * time.Second, ofNetwork((*network).changeMTU), throughFabric, nil},
	{"other route", partLink, false, time.Second, 3 * time.Second, ofNetwork((*network).reroute), nil, nil},
	{"lost route", partLink, false, 200 * time.Millisecond, 2 * time.Second, ofNetwork((*network).loseRoute), throughFabric, unreachable},
	{"lost neighbors", partLink, false, 0, 0, ofNetwork((*network).loseNeighbors), nil, nil},

	// Long enough for health checks and outlier rules to act.
	{"hung endpoint", partEndpoint, false, 3 * time.Second, 8 * time.Second, ofEndpoint("pod", (*endpoint).hang), mayReach("pod"), nil},
	{"silent endpoint", partEndpoint, false, 3 * time.Second, 8 * time.Second, ofEndpoint("attached", (*endpoint).fall), mayReach("attached"), nil},
	{"refusing endpoint", partEndpoint, false, 3 * time.Second, 8 * time.Second, ofEndpoint("routed", (*endpoint).refuse), nil, refused("routed")},
}

func ofProcess(do func(*process, context.Context, func()) error) func(*node, context.Context, func()) error {
	return func(n *node, ctx context.Context, hold func()) error { return do(n.weir, ctx, hold) }
}

func ofNetwork(do func(*network, context.Context, func()) error) func(*node, context.Context, func()) error {
	return func(n *node, ctx context.Context, hold func()) error { return do(n.network, ctx, hold) }
}

func ofSource(do func(*source, context.Context, func()) error) func(*node, context.Context, func()) error {
	return func(n *node, ctx context.Context, hold func()) error { return do(n.source, ctx, hold) }
}

func everybody(*service) bool { return true }

func throughFabric(s *service) bool { return s.fabric }

// unreachable explains new connections, to Services with an endpoint behind the interface,
// that end with an ICMP error while there is no route.
func unreachable(f *failure) bool {
	return f.what == "new" && f.service.fabric && f.kind == workload.KindOther
}

// resetByKernel explains besides that a connection is reset: between the moment at which the
// new interface has the SNAT address and that at which Weir guards it, the kernel answers the
// endpoint.
func resetByKernel(f *failure) bool {
	return unreachable(f) || f.service.fabric && f.kind == workload.KindReset
}
