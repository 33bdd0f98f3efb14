package daemon

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/ports"
)

// Status implements api.Source.
func (d *Daemon) Status(context.Context) (*api.Status, error) {
	d.mu.Lock()
	synced, updated := d.synced, d.updating.Last()
	nodePorts := d.nodePortAddresses()
	d.mu.Unlock()
	drain := d.drainNow(time.Now())
	p := d.lb.Status()
	s := &api.Status{
		Version: version.Get().Version, Node: d.cfg.NodeName, PID: os.Getpid(),
		StartTime: p.Started, UptimeSeconds: time.Since(p.Started).Seconds(),
		Snapshot: p.Snapshot, LastUpdated: updated, Synced: synced, Draining: drain != nil, Drain: drain,
		Discovery: d.discoveryStatus(), NodePorts: nodePorts,
		Services: p.Services, Frontends: p.Frontends, Endpoints: p.Endpoints,
		FrontendsLimit: lb.MaxFrontends, EndpointsLimit: lb.MaxEndpoints,
		Flows: flowStatus(&p), Drops: map[string]uint64{}, Steering: p.Steering,
		Interfaces: []api.Interface{}, Workers: []api.Worker{}, Neighbors: []api.Neighbor{},
	}
	for _, i := range p.Interfaces {
		s.Interfaces = append(s.Interfaces, interfaceStatus(&i))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Absent)) {
		s.Absent = append(s.Absent, api.AbsentInterface{Name: name, Reason: p.Absent[name]})
	}
	for _, w := range p.Workers {
		s.Workers = append(s.Workers, workerStatus(&w, s.UptimeSeconds))
		for reason, n := range w.Drops {
			s.Drops[reason] += n
		}
	}
	for _, n := range p.Neighbors {
		s.Neighbors = append(s.Neighbors, api.Neighbor{
			Address: n.NextHop, Interface: n.Interface, MAC: macText(n.MAC), State: n.State.String(),
		})
	}
	for _, ph := range d.phases.List() {
		s.Start = append(s.Start, api.Phase{Name: ph.Name, Seconds: ph.Took.Seconds()})
	}
	for _, w := range p.Warnings {
		s.Warnings = append(s.Warnings, w.String())
	}
	if k := d.kernel.Load(); k != nil {
		s.Kernel = *k
	}
	s.Privileges, s.StateFiles = d.privileges.Load(), d.stateFiles()
	s.FrontendsHash = d.frontendsHash()
	h := d.Health()
	s.Healthy, s.Unhealthy = h.Healthy, h.Reason
	s.Announce = d.announcer.Status()
	d.announcer.AddChoices(s.Announce)
	d.addProblems(s)
	return s, nil
}

func (d *Daemon) stateFiles() []api.StateFile {
	list := api.StateFiles()
	c, ok := d.source.(*source.Cluster)
	if !ok {
		return list
	}
	for i := range list {
		if size, good := c.KeptFile(); list[i].Name == string(statefile.ClusterState) && size > 0 {
			list[i].Bytes, list[i].GoodAt = size, &good
		}
	}
	return list
}

func (d *Daemon) discoveryStatus() api.Discovery {
	out := api.Discovery{Source: d.source.String(), Errors: []string{}, NodeNotEligible: d.notEligible()}
	if c, ok := d.source.(*source.Cluster); ok {
		if at, last := c.LastKnown(); last {
			out.LastKnown = &at
		}
		if at := c.ServedGoodAt(); !at.IsZero() {
			out.GoodAt = &at
		}
		for _, r := range c.Contacts() {
			out.Resources = append(out.Resources, api.Resource{Name: r.Resource, Connected: r.Connected, LastContact: r.Last})
		}
		out.WatchErrors = c.WatchErrors()
	}
	stats := d.source.Stats()
	out.Slices, out.FQDNSlices = stats.Slices, stats.FQDNSlices
	out.Mirrored, out.RefusedEndpoints, out.ServicesRemoved = stats.Mirrored, stats.RefusedEndpoints, d.withdrawn.Load()
	out.Services = stats.Services
	return out
}

func interfaceStatus(i *ports.Status) api.Interface {
	out := api.Interface{
		Name: i.Name, IfIndex: i.Index, Mode: i.Mode, Driver: i.Driver, Queues: i.Queues, BoundQueues: len(i.Sockets),
		TxChecksum: "software", MultiBuffer: i.MultiBuffer, Pinned: i.Pinned, HostVeth: i.HostVeth, MTU: i.MTU,
		Interface: i.Interface, Device: i.Device, VLAN: i.VLAN, Inactive: i.Inactive,
		Hook: i.Hook, HookReason: i.HookReason, Lost: api.Lost(i.Lost),
	}
	if r := i.Repeated; r != nil {
		out.Repeated = &api.Repeated{Packets: r.Packets, Bytes: r.Bytes, Steered: r.Steered}
	}
	if i.Metadata {
		out.TxChecksum = "metadata"
	}
	for _, s := range i.Sockets {
		out.Sockets = append(out.Sockets, api.Socket{
			Queue: s.Queue, Worker: s.Queue,
			RxDropped: s.Kernel.RxDropped, RxRingFull: s.Kernel.RxRingFull, RxFillRingEmpty: s.Kernel.RxFillEmpty,
			Mode: s.Mode, Umem: s.Umem, Rejected: s.Rejected,
			RxInvalidDescs: s.Kernel.RxInvalid, TxInvalidDescs: s.Kernel.TxInvalid, TxRingEmptyDescs: s.Kernel.TxRingEmpty,
		})
	}
	return out
}

func workerStatus(w *lb.WorkerStatus, uptime float64) api.Worker {
	return api.Worker{
		ID: w.ID, CPU: w.CPU, Counters: w.Values, Drops: w.Drops,
		BusyShare: w.Values.Busy().Seconds() / max(uptime, 1e-9),
	}
}

func macText(mac [6]byte) string {
	if mac == [6]byte{} {
		return ""
	}
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
}

func flowStatus(p *lb.Status) api.Flows {
	f := &p.FlowStats
	noPort, full := p.Refused()
	out := api.Flows{
		Current: uint64(p.Flows), Max: uint64(p.MaxFlows), MemoryBytes: uint64(p.FlowMemory),
		Created: f.Created, Expired: f.Expired, Evicted: f.Evicted, NoPort: noPort, Full: full,
		Adopted: uint64(f.Restored), ByState: map[string]uint64{}, DisplacedBy: map[string]uint64{},
	}
	for state, n := range f.ByState {
		if n > 0 {
			out.ByState[conntrack.State(state).String()] = uint64(n)
		}
	}
	for _, class := range conntrack.DisplacedClasses() {
		out.DisplacedBy[class.String()] = f.Displaced[class]
		out.Displaced += f.Displaced[class]
	}
	return out
}
