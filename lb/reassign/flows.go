// Package reassign gives flows the numbers of the Service port that now has their
// frontend: the flows of an earlier process, and UDP flows whose frontend has passed to
// another Service.
package reassign

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// maxFormer is how many frontends that are no longer served are remembered with their
// Service port. When there are more, all are forgotten.
const maxFormer = 1 << 14

// Flows reassigns the flows of a flow table. It must not be used concurrently.
type Flows struct {
	flows  *conntrack.Table
	tables *table.Table
	// servicePorts are the Service ports of UDP frontends, also of some that are no
	// longer served.
	servicePorts map[table.Key]uint64
	// ranged are the addresses of those that are ranges of ports.
	ranged map[netip.Addr]bool
}

// New makes a Flows. tables are the frontends to which the flows belong.
func New(flows *conntrack.Table, tables *table.Table) *Flows {
	return &Flows{flows: flows, tables: tables, servicePorts: make(map[table.Key]uint64), ranged: make(map[netip.Addr]bool)}
}

// Follow lets the UDP flows of a frontend follow it to another Service port, at once
// or after a time without any: a load balancer IP often passes to the next release's
// Service. A flow's endpoint is then gone unless the new Service port lists it too, as
// in kube-proxy, which compares flows with the endpoints of their frontend. Connections
// stay with the Service that they began with.
//
// It reads the whole flow table, on the caller's thread, only when the change holds a
// frontend of this kind, or one at an address with a range of ports.
func (r *Flows) Follow(ch *table.Change) {
	moved := make(map[table.Key]*table.FrontendEntry)
	for _, list := range [][]*table.FrontendEntry{ch.Added, ch.Changed} {
		for _, f := range list {
			if f.Proto != header.ProtoUDP {
				continue
			}
			if was, known := r.servicePorts[f.Key]; known && was != f.ServicePort() {
				moved[f.Key] = f
			}
			r.servicePorts[f.Key] = f.ServicePort()
			if f.LastPort != 0 {
				r.ranged[f.AddrPort.Addr()] = true
			}
		}
	}
	ranged := r.besideRanges(ch.Added) || r.besideRanges(ch.Removed)
	r.forget()
	if len(moved) == 0 && !ranged {
		return
	}
	snapshot := r.tables.Load()
	r.flows.Range(func(ref conntrack.Ref) bool {
		key := &r.flows.Entry(ref).Key
		k := table.DestinationKey(&key.W)
		f := snapshot.Lookup(&k)
		if f != nil && (moved[f.Key] == f || ranged && key.Proto() == header.ProtoUDP && r.isOfAnother(ref, f)) {
			r.renumber(ref, f)
		}
		return true
	})
}

// besideRanges reports whether a UDP frontend of a list is at an address where a range of ports is
// served, or was: flows may have passed from one to the other.
func (r *Flows) besideRanges(list []*table.FrontendEntry) bool {
	return len(r.ranged) > 0 && slices.ContainsFunc(list, func(f *table.FrontendEntry) bool {
		return f.Proto == header.ProtoUDP && r.ranged[f.AddrPort.Addr()]
	})
}

// isOfAnother reports whether the flow of ref has the number of another Service than frontend f. A Service
// with a range has no other port.
func (r *Flows) isOfAnother(ref conntrack.Ref, f *table.FrontendEntry) bool {
	n := atomic.LoadUint32(&r.flows.Conn(ref).ServiceID)
	return n != conntrack.NoID && n != f.ServiceID
}

// forget drops the frontends that are no longer served when there are too many.
func (r *Flows) forget() {
	snapshot := r.tables.Load()
	if len(r.servicePorts) <= snapshot.Frontends()+maxFormer {
		return
	}
	for k := range r.servicePorts {
		if snapshot.Exact(&k) == nil {
			delete(r.servicePorts, k)
		}
	}
	clear(r.ranged)
	for f := range snapshot.All() {
		if f.LastPort != 0 && f.Proto == header.ProtoUDP {
			r.ranged[f.AddrPort.Addr()] = true
		}
	}
}

// Restore gives the flows of an earlier process the numbers of this process's tables. It
// returns the number of flows that go on. With stop, a program in the kernel that still goes by
// the last process's tables forwards no more packets of flows whose endpoint or frontend was
// removed meanwhile. served is called for each flow that goes on, with its frontend, and orphan for the
// frontend of one that goes on though its frontend is served no more.
func (r *Flows) Restore(
	stop bool, served func(f *table.FrontendEntry, ref conntrack.Ref), orphan func(k table.Key, to netip.AddrPort, proto uint8),
) (n int) {
	r.flows.Range(func(ref conntrack.Ref) bool {
		c := r.flows.Conn(ref)
		if atomic.LoadUint32(&c.EndpointID) != conntrack.NoID {
			return true
		}
		key := &r.flows.Entry(ref).Key
		k := table.DestinationKey(&key.W)
		f := r.tables.Load().Lookup(&k)
		if !r.renumber(ref, f) {
			return true
		}
		n++
		if f == nil {
			orphan(k, key.Dst(), key.Proto())
		} else {
			served(f, ref)
		}
		if stop {
			if _, removed := r.tables.EndpointRemoved(atomic.LoadUint32(&c.EndpointID)); removed {
				r.flows.Unsettle(ref)
			}
		}
		return true
	})
	return n
}

// renumber gives the flow of ref the numbers of frontend f's Service port; f is nil if
// the flow's frontend is no longer served. A flow for whose endpoint no number is left
// is deleted, and renumber reports false.
func (r *Flows) renumber(ref conntrack.Ref, f *table.FrontendEntry) bool {
	key, at, lists := &r.flows.Entry(ref).Key, r.flows.EndpointAddr(ref), f
	if f != nil && f.LastPort != 0 && at.Port() != key.Dst().Port() {
		lists = nil // a range leads to the same port of an endpoint
	}
	number, err := r.tables.RestoreEndpoint(lists, at, key.Proto())
	if err != nil {
		r.flows.Delete(ref)
		return false
	}
	var service uint32
	if f != nil {
		service = f.ServiceID
	}
	r.flows.SetIDs(ref, number, service)
	return true
}
