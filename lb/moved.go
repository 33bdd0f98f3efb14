package lb

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// maxFormer is how many frontends that are no longer served are remembered with their
// Service port. When there are more, all are forgotten.
const maxFormer = 1 << 14

// moveFlows lets the UDP flows of a frontend follow it to another Service port, at once
// or after a time in which nobody had it: a load balancer IP often passes to the next
// release's Service. A flow's endpoint is then gone unless the new Service port lists
// it too, as in kube-proxy, which compares flows with the endpoints of their frontend.
// Connections stay with the Service that they began with.
//
// It reads the whole flow table, on the caller's thread, only when such a frontend is
// in the change.
func (l *LB) moveFlows(ch *table.Change) {
	if l.servicePorts == nil {
		l.servicePorts = make(map[table.Key]uint64)
	}
	moved := make(map[table.Key]*table.FrontendEntry)
	for _, list := range [][]*table.FrontendEntry{ch.Added, ch.Changed} {
		for _, f := range list {
			if f.Proto != header.ProtoUDP {
				continue
			}
			if was, known := l.servicePorts[f.Key]; known && was != f.ServicePort() {
				moved[f.Key] = f
			}
			l.servicePorts[f.Key] = f.ServicePort()
		}
	}
	snapshot := l.tables.Load()
	if len(l.servicePorts) > snapshot.Frontends()+maxFormer {
		for k := range l.servicePorts {
			if snapshot.Lookup(&k) == nil {
				delete(l.servicePorts, k)
			}
		}
	}
	if len(moved) == 0 {
		return
	}
	l.flows.Range(func(r conntrack.Ref) bool {
		if f := moved[table.DestinationKey(&l.flows.Entry(r).Key.W)]; f != nil {
			l.renumber(r, f)
		}
		return true
	})
}
