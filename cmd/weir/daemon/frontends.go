package daemon

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Explain implements api.Source.
func (d *Daemon) Explain(_ context.Context, query api.ExplainQuery) (api.Stream, error) {
	d.mu.Lock()
	q := explain.Question{Node: d.node.Node}
	d.mu.Unlock()
	if err := q.Parse(query); err != nil {
		return nil, err
	}
	if m, ok := d.source.(interface{ Report() *manifest.Report }); ok {
		q.Report = m.Report()
	}
	d.lookForProblems()
	view := d.frontendView()
	q.Services = d.services()
	q.View = &view
	out, err := q.Answer()
	if err != nil {
		return nil, err
	}
	return out.WriteFields, nil
}

// frontendView is the view of the frontends that this node serves.
func (d *Daemon) frontendView() explain.View {
	v := explain.View{
		Claims: func(svc *discovery.Service) []translate.Claim {
			d.mu.Lock() // for a single Service at a time: publications go on in between
			defer d.mu.Unlock()
			return d.translate.Claims(svc)
		},
		Table: d.lb.Tables().Load(), NoRoom: map[table.Key]bool{}, Problems: d.problems.Of,
	}
	for _, f := range d.lb.Unsteered() {
		v.NoRoom[f.Key] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.nodeAddresses()) == 0 {
		v.NoNodePorts = "nodePortAddresses has no address of this node"
	}
	if !d.synced {
		v.Waiting = "waiting for the first full view of Services: no traffic is taken yet"
	}
	return v
}

// Frontends implements api.Source.
func (d *Daemon) Frontends(context.Context) (api.Stream, error) {
	services := map[string]*discovery.Service{}
	for _, svc := range d.source.Services() {
		services[svc.Name.String()] = svc
	}
	published := d.lb.Tables().Load()
	return func(w *api.ObjectWriter) error {
		w.List("frontends")
		for f := range published.All() {
			shown := d.frontend(f)
			shown.PortName = portName(services[f.ServiceName], f, shown.Protocol)
			if err := w.Element(&shown); err != nil {
				return err
			}
		}
		return w.End()
	}, nil
}

// portName is the name of the Service port of a frontend. svc is nil for a
// Service that is gone.
func portName(svc *discovery.Service, f *table.FrontendEntry, protocol string) string {
	if svc == nil {
		return ""
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		port := p.Port
		if f.Kind == table.NodePort {
			port = p.NodePort
		}
		if port == f.AddrPort.Port() && p.Protocol == protocol {
			return p.Name
		}
	}
	return ""
}

func (d *Daemon) frontend(f *table.FrontendEntry) api.Frontend {
	out := api.Frontend{
		Service: f.ServiceName, Address: f.AddrPort.String(), Protocol: header.ProtocolName(f.Proto), Kind: f.Kind.String(), Mode: translate.ModeName(f.Mode),
		Tier: f.Pool.Tier(), OnEmpty: onEmptyText[f.Pool.OnEmpty()], Endpoints: []api.FrontendEndpoint{},
	}
	var total float64
	for _, e := range f.Pool.Endpoints() {
		total += float64(e.Weight)
	}
	for _, e := range f.Pool.Endpoints() {
		out.Endpoints = append(out.Endpoints, api.FrontendEndpoint{
			Address: e.AddrPort.String(), Local: e.Local, Mode: translate.ModeName(d.lb.ModeTo(f, &e)), Share: float64(e.Weight) / total,
			Flows: uint64(d.lb.FlowTable().EndpointFlows(e.ID)),
		})
	}
	return out
}

var onEmptyText = map[table.OnEmpty]string{table.Reject: "reject", table.Drop: "drop"}

// frontendsHash is a hash of all frontends, without node ports, with their
// Services: nodes that serve the same have the same.
func (d *Daemon) frontendsHash() uint32 {
	var sum uint32
	for f := range d.lb.Tables().Load().All() {
		if f.Kind.String() == "NodePort" {
			continue // on the node's own addresses
		}
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %s %d", f.ServiceName, f.AddrPort, f.Proto)
		sum += h.Sum32()
	}
	return sum
}
