package answers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/topology"
)

// servicesNamed are the Services of the source with a name, or all for "", by name.
func (src *Source) servicesNamed(name string) ([]*discovery.Service, error) {
	var out []*discovery.Service
	readiness := src.Readiness()
	for _, svc := range src.Services.Services() {
		if name == "" || svc.Name.String() == name {
			if svc.Unused {
				if svc = src.Services.Merged(svc.Name); svc == nil {
					continue // it is gone
				}
			}
			out = append(out, readiness.Of(svc))
		}
	}
	if name != "" && len(out) == 0 {
		return nil, fmt.Errorf("service %s: %w", name, api.ErrNotFound)
	}
	slices.SortFunc(out, func(a, b *discovery.Service) int {
		return cmp.Or(cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
	return out, nil
}

// services are the Services of the source as this node sees them. Of
// only, nil for all, the endpoints are there also where no frontend needs them.
func (src *Source) services(only *discovery.ServiceName) []*discovery.Service {
	readiness := src.Readiness()
	list := slices.Clone(src.Services.Services()) // not under the lock: the source may be delivering
	for i, svc := range list {
		if svc.Unused && (only == nil || *only == svc.Name) {
			svc = cmp.Or(src.Services.Merged(svc.Name), svc)
		}
		list[i] = readiness.Of(svc)
	}
	return list
}

// ServiceStates implements api.Source.
func (src *Source) ServiceStates(name string) (api.Stream, error) {
	services, err := src.servicesNamed(name)
	if err != nil {
		return nil, err
	}
	node := src.Node()
	return func(o *api.ObjectWriter) error {
		o.Field("time", time.Now())
		o.List("services")
		for _, svc := range services {
			s := src.serviceState(svc, &node)
			if err := o.Element(&s); err != nil {
				return err
			}
		}
		return o.End()
	}, nil
}

func (src *Source) serviceState(svc *discovery.Service, node *topology.Node) api.ServiceState {
	t := src.LB.ServiceTotals(svc.Name.String())
	out := counted(&t)
	out.Service, out.Ports, out.Health = svc.Name.String(), []api.ServicePort{}, src.Monitor.Counts(svc)
	out.MaxConnections, out.NewConnectionsPerSecond = svc.Options.MaxConnections, svc.Options.NewConnectionsPerSecond
	for i := range svc.Ports {
		p := &svc.Ports[i]
		proto, _ := header.ProtocolNumber(p.Protocol)
		port := api.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, Endpoints: len(p.Endpoints),
			EndpointsByTier: map[string]int{}, Tiers: src.Tiers(out.Service, p.Port, proto),
		}
		for j := range p.Endpoints {
			if e := &p.Endpoints[j]; e.Ready {
				port.Ready++
				port.EndpointsByTier[nearestTier(e, node)]++
			}
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}

// ServiceMetrics implements metrics.ServiceSource.
func (src *Source) ServiceMetrics() []api.ServiceState {
	services, node := src.Served(), src.Node()
	out := make([]api.ServiceState, 0, len(services))
	for _, svc := range services {
		out = append(out, src.serviceState(svc, &node))
	}
	return out
}

// nearestTier is the nearest tier that an endpoint belongs to, seen from node.
func nearestTier(e *topology.Endpoint, node *topology.Node) string {
	same := func(label, value string) bool { return value != "" && node.Labels[label] == value }
	switch {
	case e.NodeName != "" && e.NodeName == node.Name:
		return string(topology.TierSameNode)
	case same("topology.kubernetes.io/zone", e.Zone):
		return string(topology.TierSameZone)
	case same("topology.kubernetes.io/region", e.Labels["topology.kubernetes.io/region"]):
		return string(topology.TierSameRegion)
	}
	return string(topology.TierAll)
}

// counted are the counters of a Service as the API has them.
func counted(t *lb.ServiceTotals) api.ServiceState {
	out := api.ServiceState{
		Open: t.Open, HalfOpen: t.HalfOpen, NewConnections: t.NewFlows, FailedHandshakes: t.FailedHandshakes,
		Retransmissions: api.Retransmissions{SYNs: t.ResentSYNs, SYNACKs: t.ResentSYNACKs, FINs: t.ResentFINs},
		Packets:         api.Traffic{FromClients: t.Packets[0], FromEndpoints: t.Packets[1]},
		Bytes:           api.Traffic{FromClients: t.Bytes[0], FromEndpoints: t.Bytes[1]},
		Drops:           t.Drops(),
	}
	h := &out.Handshakes
	h.Count, h.SumSeconds = t.Answered, float64(t.AnswerMicros)/1e6
	bounds := worker.HandshakeBounds()
	for i, n := range t.Answers {
		b := api.Bucket{Count: n}
		if i < len(bounds) {
			b.UpToSeconds = float64(bounds[i]) / 1e6
		}
		h.Buckets = append(h.Buckets, b)
	}
	return out
}

// EndpointStates implements api.Source.
func (src *Source) EndpointStates(name string) (api.Stream, error) {
	services, err := src.servicesNamed(name)
	if err != nil {
		return nil, err
	}
	r := src.Readiness()
	q := explain.Question{Services: services, Node: src.Node(), Guard: r.Guard, Why: src.why(r.Drained)}
	answer, err := q.Answer()
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for f := range src.LB.Tables().Load().All() {
		served[f.ServiceName] = true
	}
	byName := make(map[string]*discovery.Service, len(services))
	for _, svc := range services {
		byName[svc.Name.String()] = svc
	}
	return func(o *api.ObjectWriter) error {
		o.List("endpoints")
		for s, err := range answer.Services {
			if err != nil {
				return err
			}
			svc := byName[s.Namespace+"/"+s.Name]
			for i := range s.Ports {
				if !served[svc.Name.String()] {
					s.Ports[i].Unuse()
				}
				if err := src.writeEndpoints(o, s, svc, &s.Ports[i], r.Drained); err != nil {
					return err
				}
			}
		}
		return o.End()
	}, nil
}

// why says what keeps new flows from endpoints beside their conditions, as explain.Question has it.
func (src *Source) why(drained translate.DrainedSet) func(*discovery.Service, *discovery.Port, netip.AddrPort) string {
	now := time.Now()
	return func(svc *discovery.Service, p *discovery.Port, at netip.AddrPort) string {
		health := src.Monitor.State(svc, p, at)
		why := endpointhealth.Reason(&health, now)
		since, is := drained.Since(at)
		if !is {
			return why
		}
		text := "drained by weir drain" + endpointhealth.Age(&api.EndpointHealth{Since: &since}, now)
		return strings.TrimSuffix(text+"; "+why, "; ")
	}
}

func (src *Source) writeEndpoints(o *api.ObjectWriter, s *explain.Service, svc *discovery.Service, p *explain.Port, drained translate.DrainedSet) error {
	service := s.Namespace + "/" + s.Name
	proto, _ := header.ProtocolNumber(p.Protocol)
	port := slices.IndexFunc(svc.Ports, func(q discovery.Port) bool { return q.Port == p.Port && q.Protocol == p.Protocol })
	for i := range p.Detail {
		e := &p.Detail[i]
		out := api.EndpointState{
			Service: service, Port: p.Name, Protocol: p.Protocol, Address: e.Address, Node: e.Node, Zone: e.Zone,
			State: e.State, Cluster: e.Cluster, Local: e.Local, Used: e.Used, Policy: p.Policy, Reason: p.ClientsReason(e),
		}
		if out.Port == "" {
			out.Port = strconv.Itoa(int(p.Port))
		}
		if a, err := netip.ParseAddrPort(e.Address); err == nil {
			if port >= 0 {
				out.Health = src.Monitor.State(svc, &svc.Ports[port], a)
			}
			out.Drained = drained.Has(a)
			if n, ok := src.LB.Tables().EndpointID(service, p.Port, proto, a); ok {
				out.Connections, out.Open = src.LB.FlowTable().EndpointFlows(n), src.LB.FlowTable().EndpointOpen(n)
				out.Attempts = src.Attempts.of(n)
				out.Health.FailedConnections = out.Attempts.Refused + out.Attempts.Unanswered
			}
		}
		if err := o.Element(&out); err != nil {
			return err
		}
	}
	return nil
}
