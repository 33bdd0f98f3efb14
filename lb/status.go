package lb

import (
	"maps"
	"slices"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// Status is the packet path at one moment. Counters count since New.
type Status struct {
	Started    time.Time
	Attached   bool // traffic is being taken
	Interfaces []InterfaceStatus
	Workers    []WorkerStatus
	Flows      int
	MaxFlows   int
	FlowMemory int64 // bytes
	FlowStats  conntrack.Stats
	Adopted    int // flows of the last process
	Snapshot   uint64
	Services   int
	Frontends  int
	Endpoints  int
	Steering   map[string]uint64 // packets by verdict of the XDP program, over all interfaces
	Neighbors  []NeighborStatus
	Warnings   []Warning
	// Absent are the configured interfaces by which no traffic is taken since
	// they are gone, with the reason.
	Absent map[string]string
}

// InterfaceStatus is one attached interface, or the host veth.
type InterfaceStatus struct {
	Name     string
	Index    int
	Driver   string
	Mode     string // granted: zerocopy, native, generic, the least of the queues' modes; "" before attachment
	Queues   int
	MTU      int
	HostVeth bool
	// Of a bond's member and a VLAN: the interface that it is a port of, the
	// device whose queues carry it, the VLAN's number, and whether the bond does
	// not use it now.
	Interface, Device string
	VLAN              int
	Inactive          bool
	Pinned            bool
	Metadata          bool // partial checksums are completed by TX metadata
	MultiBuffer       bool
	Sockets           []SocketStatus
}

// SocketStatus is one AF_XDP socket and what the kernel counted for it.
type SocketStatus struct {
	Queue    int
	Mode     string // granted: zerocopy, native, generic; "" before attachment
	Umem     int    // number of its umem
	Rejected uint64 // descriptors from the kernel that cannot be
	Kernel   xsk.Statistics
}

// WorkerStatus is one worker.
type WorkerStatus struct {
	ID, CPU int
	worker.Counters
}

// NeighborStatus is a next hop in use.
type NeighborStatus struct {
	route.Neighbor
	Interface string
}

// Status reads everything; it disturbs no worker.
func (l *LB) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	snap := l.tables.Load()
	s := Status{
		Started: l.started, Attached: l.attached, Adopted: l.adopted,
		Flows: l.flows.Flows(), MaxFlows: l.flows.MaxFlows(), FlowMemory: l.flows.MemoryBytes(), FlowStats: l.flows.Stats(),
		Snapshot: snap.Number(), Services: snap.Services(), Frontends: snap.Frontends(), Endpoints: l.tables.PresentEndpoints(),
		Steering: map[string]uint64{},
		Warnings: slices.Clone(l.warnings), Absent: map[string]string{},
	}
	for _, r := range l.refused {
		if r.member {
			s.Warnings = append(s.Warnings, r.warning())
		}
	}
	for name, a := range l.absent {
		s.Absent[name] = a.reason
	}
	for _, i := range l.ifaces {
		if i.stage > joining {
			continue
		}
		s.Interfaces = append(s.Interfaces, l.interfaceStatus(i))
	}
	for _, w := range l.workers {
		s.Workers = append(s.Workers, WorkerStatus{ID: w.ID(), CPU: w.CPU(), Counters: w.Counters()})
	}
	if counted, err := l.steer.Counted(); err == nil {
		for v, n := range counted {
			if n > 0 {
				s.Steering[steer.Verdict(v).String()] = n
			}
		}
	}
	for _, n := range l.router.Neighbors() {
		name := ""
		if n.Port >= 0 && n.Port < len(l.ifaces) {
			name = l.ifaces[n.Port].name
		}
		s.Neighbors = append(s.Neighbors, NeighborStatus{n, name})
	}
	return s
}

func (l *LB) interfaceStatus(i *iface) InterfaceStatus {
	st := InterfaceStatus{Name: i.name, Index: i.index, Driver: i.driver, Queues: i.queues, MTU: i.mtu, HostVeth: i.host}
	c := i.carrier(l)
	if c.attachment != nil {
		st.Mode, st.Pinned = l.granted(c), c.attachment.Pinned
	}
	if c != i || i.as != i.index && !i.host {
		st.Interface, st.Device, st.VLAN, st.Inactive = i.of, c.name, int(uint16(i.tag)), !i.active && i.as != 0
	}
	if i.virtual() {
		_, st.Metadata, st.MultiBuffer = c.sockets[0].Granted()
	}
	for q, sock := range i.sockets {
		_, st.Metadata, st.MultiBuffer = sock.Granted()
		k, err := sock.Statistics()
		if err != nil {
			l.log.Debug("socket statistics", "interface", i.name, "queue", q, "err", err)
		}
		st.Sockets = append(st.Sockets, SocketStatus{Queue: q, Mode: l.grantedTo(i, sock), Umem: sock.UmemID(), Rejected: sock.Rejected(), Kernel: k})
	}
	return st
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
	return slices.Collect(maps.Values(l.unsteered))
}
