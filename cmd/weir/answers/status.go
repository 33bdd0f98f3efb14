package answers

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/ports"
)

// Status implements api.Source.
func (src *Source) Status(context.Context) (*api.Status, error) {
	nodePorts, synced := src.NodePorts()
	drain, h := src.DrainNow(time.Now()), src.Health()
	p := src.LB.Status()
	s := &api.Status{
		Version: version.Get().Version, Node: src.NodeName, PID: os.Getpid(),
		StartTime: p.Started, UptimeSeconds: time.Since(p.Started).Seconds(),
		Snapshot: p.Snapshot, LastUpdated: h.LastUpdated, Synced: synced, Draining: drain != nil, Drain: drain,
		Discovery: src.discoveryStatus(), NodePorts: nodePorts,
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
	for _, l := range p.Denied {
		s.DenyLists = append(s.DenyLists, api.DenyList{Name: l.Name, Prefixes: l.Prefixes, Packets: l.Packets, EndedFlows: l.Ended})
	}
	for _, n := range p.Neighbors {
		s.Neighbors = append(s.Neighbors, api.Neighbor{
			Address: n.NextHop, Interface: n.Interface, MAC: macText(n.MAC), State: n.State.String(),
		})
	}
	for _, ph := range src.Phases.List() {
		s.Start = append(s.Start, api.Phase{Name: ph.Name, Seconds: ph.Took.Seconds()})
	}
	for _, w := range p.Warnings {
		s.Warnings = append(s.Warnings, w.String())
	}
	s.Kernel, s.Privileges, s.StateFiles = src.Kernel(), src.Privileges(), src.stateFiles()
	s.FlowLog = src.FlowLog.Status()
	s.FrontendsHash = src.frontendsHash()
	s.Healthy, s.Unhealthy = h.Healthy, h.Reason
	s.Announce = src.Announcer.Status()
	src.Announcer.AddChoices(s.Announce)
	src.addProblems(s)
	return s, nil
}

// maxProblems is how many problems a status has; the counts are of all.
const maxProblems = 1000

// addProblems adds the problems to a status, also to the older fields for them.
func (src *Source) addProblems(s *api.Status) {
	src.LookForProblems()
	s.Problems, s.ProblemsLeftOut = src.Problems.List(maxProblems)
	s.ProblemCounts = src.Problems.Counts()
	for i := range s.Problems {
		p := &s.Problems[i]
		switch p.Kind {
		case problem.InvalidObject, problem.Manifest, problem.APIServer, problem.StateFile, problem.LastKnownState, problem.HealthCheckPort:
			s.Discovery.Errors = append(s.Discovery.Errors, p.String())
		case problem.UnsupportedField:
			s.Discovery.LeftToKernel = append(s.Discovery.LeftToKernel, strings.TrimPrefix(p.Object, "Service ")+": "+p.Field)
		}
	}
}

func (src *Source) stateFiles() []api.StateFile {
	list := api.StateFiles()
	c, ok := src.Services.(*source.Cluster)
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

func (src *Source) discoveryStatus() api.Discovery {
	out := api.Discovery{Source: src.Services.String(), Errors: []string{}, NodeNotEligible: src.NotEligible()}
	if c, ok := src.Services.(*source.Cluster); ok {
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
	stats := src.Services.Stats()
	out.Slices, out.FQDNSlices, out.NamedEndpoints = stats.Slices, stats.FQDNSlices, stats.NamedEndpoints
	out.Mirrored, out.RefusedEndpoints, out.ServicesRemoved = stats.Mirrored, stats.RefusedEndpoints, src.Removed()
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
		SNATPorts: api.SNATPorts{Ports: p.SNATPorts.Ports, Count: p.SNATPorts.Count, Reason: p.SNATPorts.Reason},
	}
	for state, n := range f.ByState {
		if n > 0 {
			out.ByState[flowstate.State(state).String()] = uint64(n)
		}
	}
	for _, class := range conntrack.DisplacedClasses() {
		out.DisplacedBy[class.String()] = f.Displaced[class]
		out.Displaced += f.Displaced[class]
	}
	return out
}
