package answers

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Explain implements api.Source.
func (src *Source) Explain(_ context.Context, query api.ExplainQuery) (api.Stream, error) {
	q := explain.Question{Node: src.Node()}
	if err := q.Parse(query); err != nil {
		return nil, err
	}
	if m, ok := src.Services.(interface{ Report() *manifest.Report }); ok {
		q.Report = m.Report()
	}
	src.LookForProblems()
	view := src.frontendView()
	q.Services = src.services(q.Only)
	q.View, q.Why = &view, src.why(src.Readiness().Drained)
	out, err := q.Answer()
	if err != nil {
		return nil, err
	}
	return out.WriteFields, nil
}

// frontendView is the view of the frontends that this node serves.
func (src *Source) frontendView() explain.View {
	v := explain.View{
		Guard: *src.Readiness().Guard, Claims: src.Claims,
		Table: src.LB.Tables().Load(), NoRoom: map[table.Key]bool{}, Problems: src.Problems.Of,
	}
	for _, f := range src.LB.Unsteered() {
		v.NoRoom[f.Key] = true
	}
	nodePorts, synced := src.NodePorts()
	if len(nodePorts) == 0 {
		v.NoNodePorts = "nodePortAddresses has no address of this node"
	}
	if !synced {
		v.Waiting = "waiting for the first full view of Services: no traffic is taken yet"
	}
	return v
}

// Frontends implements api.Source.
func (src *Source) Frontends(context.Context) (api.Stream, error) {
	names := portNames(src.Services.Services())
	published := src.LB.Tables().Load()
	return func(w *api.ObjectWriter) error {
		w.List("frontends")
		for f := range published.All() {
			shown := src.frontend(f)
			shown.PortName = names[servicePort{f.ServiceName, shown.Protocol, cmp.Or(f.ListedPort(), f.AddrPort.Port()), f.Kind == table.NodePort}]
			if err := w.Element(&shown); err != nil {
				return err
			}
		}
		return w.End()
	}, nil
}

// ExplainAddress implements api.Source.
func (src *Source) ExplainAddress(_ context.Context, address netip.Addr) (*api.AddressExplanation, error) {
	if src.Announcer == nil {
		return nil, fmt.Errorf("%w: nothing is announced to routers: announce.speaker is off", api.ErrNotFound)
	}
	out := src.Announcer.Explain(address, src.frontend)
	out.Node = src.Node().Name
	return out, nil
}

// servicePort is a port of a Service as a frontend shows it.
type servicePort struct {
	service, protocol string
	port              uint16
	nodePort          bool
}

// portNames are the names of the ports of Services, "" where there is none.
func portNames(services []*discovery.Service) map[servicePort]string {
	out := map[servicePort]string{}
	for _, svc := range services {
		name := svc.Name.String()
		for i := range svc.Ports {
			p := &svc.Ports[i]
			out[servicePort{name, p.Protocol, p.Port, false}] = p.Name
			out[servicePort{name, p.Protocol, p.NodePort, true}] = p.Name
		}
	}
	return out
}

func (src *Source) frontend(f *table.FrontendEntry) api.Frontend {
	out := api.Frontend{
		Service: f.ServiceName, Address: f.Address(), Protocol: header.ProtocolName(f.Proto), Kind: f.Kind.String(), Mode: translate.ModeName(f.Mode),
		Tier: f.Pool.Tier(), OnEmpty: onEmptyText[f.Pool.OnEmpty()], Endpoints: []api.FrontendEndpoint{},
	}
	var total float64
	for _, e := range f.Pool.Endpoints() {
		total += float64(e.Weight)
	}
	for _, e := range f.Pool.Endpoints() {
		out.Endpoints = append(out.Endpoints, api.FrontendEndpoint{
			Address: e.AddrPort.String(), Local: e.Local, Mode: translate.ModeName(src.LB.ModeTo(f, &e)), Share: float64(e.Weight) / total,
			Flows: uint64(src.LB.FlowTable().EndpointFlows(e.ID)),
		})
	}
	return out
}

var onEmptyText = map[table.OnEmpty]string{table.Reject: "reject", table.Drop: "drop"}

// frontendsHash is a hash of all frontends, without node ports, with their
// Services: nodes that serve the same have the same.
func (src *Source) frontendsHash() uint32 {
	var sum uint32
	for f := range src.LB.Tables().Load().All() {
		if f.Kind.String() == "NodePort" {
			continue // on the node's own addresses
		}
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %s %d", f.ServiceName, f.Address(), f.Proto)
		sum += h.Sum32()
	}
	return sum
}
