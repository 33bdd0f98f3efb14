package discovery

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// FaultKind is a reason that keeps a well-formed Service from being served as it asks.
type FaultKind uint8

// Kinds of faults.
const (
	// FaultPortName: no slice has a port of a Service port's name and protocol.
	FaultPortName FaultKind = iota
	// FaultNoNodePort: a Service port has no node port, where the API server
	// would have allocated one.
	FaultNoNodePort
	// FaultNoHints: spec.trafficDistribution is set and no slice has hints.
	FaultNoHints
)

// Fault is such a reason with the details.
type Fault struct {
	Kind   FaultKind
	Field  string // as spec.ports[0].name
	Reason string // a sentence without a full stop
}

// nodePortFaults notes ports that nothing leads to. The API server allocates a node port
// for each port of a Service of type NodePort, and of type LoadBalancer unless that is
// switched off; nothing does for a manifest.
func (p *parser) nodePortFaults() {
	s := &p.obj.Spec
	balanced := s.Type == corev1.ServiceTypeLoadBalancer && (s.AllocateLoadBalancerNodePorts == nil || *s.AllocateLoadBalancerNodePorts) &&
		len(p.obj.Status.LoadBalancer.Ingress)+len(p.out.ExternalIPs) == 0
	if p.out.Headless || s.Type != corev1.ServiceTypeNodePort && !balanced {
		return
	}
	for i := range s.Ports {
		if s.Ports[i].NodePort == 0 {
			p.out.Faults = append(p.out.Faults, Fault{FaultNoNodePort, index("spec.ports", i) + ".nodePort",
				fmt.Sprintf("a Service of type %s in a manifest needs a number: nobody allocates one", s.Type)})
		}
	}
}

// portNameFault notes that no source has a port of p's name and protocol,
// although they have endpoints. n is the port's place in the Service.
func (svc *Service) portNameFault(n int, sources []*sliceData) {
	p := &svc.Ports[n]
	var others []string
	for _, d := range sources {
		for _, sp := range d.ports {
			if sp.name == p.Name && sp.protocol == p.Protocol {
				return
			}
			if len(d.endpoints) > 0 {
				others = append(others, fmt.Sprintf("%q (%s)", sp.name, sp.protocol))
			}
		}
	}
	if !slices.ContainsFunc(sources, func(d *sliceData) bool { return len(d.endpoints) > 0 }) {
		return // nobody to serve yet
	}
	slices.Sort(others)
	others = slices.Compact(others)
	const most = 8
	text := strings.Join(others[:min(most, len(others))], ", ")
	switch {
	case len(others) > most:
		text += fmt.Sprintf(" and %d more", len(others)-most)
	case len(others) == 0:
		text = "no port"
	}
	svc.Faults = append(slices.Clip(svc.Faults), Fault{FaultPortName, index("spec.ports", n) + ".name",
		fmt.Sprintf("no EndpointSlice has a %s port of the name %q; they have %s", p.Protocol, p.Name, text)})
}

// hintsFault notes that the Service asks for a traffic distribution which needs hints, and
// that no endpoint has a hint.
func (svc *Service) hintsFault(asked string) {
	if asked == "" || len(svc.Policy.TopologyKeys) > 0 || svc.Policy.Distribution != topology.DistributionNone {
		return
	}
	any := false
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[j]
			if len(e.HintZones)+len(e.HintNodes) > 0 {
				return
			}
			any = true
		}
	}
	if any {
		svc.Faults = append(slices.Clip(svc.Faults), Fault{FaultNoHints, "spec.trafficDistribution",
			fmt.Sprintf("is %s, and no EndpointSlice has hints: ignored; the annotation %s works without them", asked, AnnotationTrafficDistribution)})
	}
}
