package lb

import (
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/worker"
)

// Status is the packet path at one moment. Counters count since New.
type Status struct {
	Started    time.Time
	Attached   bool // traffic is being taken
	Interfaces []ports.Status
	Workers    []WorkerStatus
	Flows      int
	MaxFlows   int
	FlowMemory int64 // bytes
	FlowStats  conntrack.Stats
	SNATPorts  SNATPorts
	Restored   int // flows of the last process
	Snapshot   uint64
	Services   int
	Frontends  int
	Endpoints  int
	Steering   map[string]uint64 // packets by verdict of the XDP program, over all interfaces
	Neighbors  []NeighborStatus
	Denied     []DenyStatus
	Warnings   []warning.Warning
	// Absent are the configured interfaces by which no traffic is taken since
	// they are gone, with the reason.
	Absent map[string]string
}

// WorkerStatus is one worker.
type WorkerStatus struct {
	ID, CPU int
	worker.Counters
}

// Refused counts the connections refused so far: for want of a SNAT port, and of room in the flow
// table. A connection that another mode, source or endpoint served is not among them.
func (s *Status) Refused() (noPort, tableFull uint64) {
	for i := range s.Workers {
		noPort += s.Workers[i].Drops[worker.DropSNATPorts.String()]
		tableFull += s.Workers[i].Drops[worker.DropTableFull.String()]
	}
	return noPort, tableFull
}

// NeighborStatus is a next hop in use.
type NeighborStatus struct {
	route.Neighbor
	Interface string
}

// CPUs are those of the workers, in order; -1 is any.
func (l *LB) CPUs() (list []int) {
	for _, w := range l.workers.list {
		list = append(list, w.CPU())
	}
	return list
}

// Status reads everything; it disturbs no worker.
func (l *LB) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	snap := l.tables.Load()
	s := Status{
		Started: l.started, Attached: l.attached, Restored: l.restored,

		Flows:      l.flows.Flows(),
		MaxFlows:   l.flows.MaxFlows(),
		FlowMemory: l.flows.MemoryBytes(),
		FlowStats:  l.flows.Stats(),
		SNATPorts:  l.sources.ports.status(),

		Snapshot:  snap.Number(),
		Services:  snap.Services(),
		Frontends: snap.Frontends(),
		Endpoints: l.tables.PresentEndpoints(),
		Steering:  map[string]uint64{},

		Interfaces: l.ports.Status(),
		Warnings:   append(l.warnings.All(), l.ports.Refused()...),
		Absent:     l.ports.Absences(),
	}

	l.cache.addRepeated(s.Interfaces, l.steer)
	for _, w := range l.workers.list {
		s.Workers = append(s.Workers, WorkerStatus{ID: w.ID(), CPU: w.CPU(), Counters: w.Counters()})
	}
	s.Denied = l.denials.status(s.Workers)
	if counted, err := l.steer.TotalCounters(); err == nil {
		for v, n := range counted {
			if n > 0 {
				s.Steering[steer.Verdict(v).String()] = n
			}
		}
	}
	for _, n := range l.router.Neighbors() {
		s.Neighbors = append(s.Neighbors, NeighborStatus{n, l.ports.Name(n.Port)})
	}
	return s
}

// Tables are the published frontends and endpoints.
func (l *LB) Tables() *table.Table { return l.tables }

// FlowTable is the flow table.
func (l *LB) FlowTable() *conntrack.Table { return l.flows }

// Unsteered are the published frontends for which the steering program has no
// room: their packets go to the kernel.
func (l *LB) Unsteered() []*table.FrontendEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frontends.Unsteered()
}

// ModeTo is the mode of new flows from a frontend to one of its endpoints, as far as the
// mode does not depend on the client: by the routing rules that are for all.
func (l *LB) ModeTo(f *table.FrontendEntry, ep *table.EndpointEntry) conntrack.Mode {
	path, _ := l.router.Load().Lookup(&route.Packet{Dst: ep.AddrPort, Proto: f.Proto}, 0)
	return worker.ModeTo(f, ep, &path, l.node.Load())
}

// DropSamples are the samples of all workers, per worker and reason the oldest
// first. One that is overwritten meanwhile is left out.
func (l *LB) DropSamples() []worker.DropSample {
	var out []worker.DropSample
	for _, w := range l.workers.list {
		out = w.DropSamples(out)
	}
	return out
}

// InterfaceName is the name of the interface of a port, "" for none.
func (l *LB) InterfaceName(port int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ports.Name(port)
}

// Router is the view of the kernel's routes and addresses.
func (l *LB) Router() *route.Watcher { return l.router }

// LimitPrefixes changes the limit of new connections per source prefix.
func (l *LB) LimitPrefixes(limit ratelimit.PrefixLimit) { l.prefixes.Set(limit) }

// ServiceTotals are the counters of a Service; zero for a Service that is not served.
func (l *LB) ServiceTotals(name string) ServiceTotals { return l.counts.totals(l.flows, name) }
