package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

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
	// FaultNoSlices: no object describes endpoints of the Service, where all objects are known.
	FaultNoSlices
)

// Fault is such a reason with the details.
type Fault struct {
	Kind   FaultKind
	Field  string // as spec.ports[0].name
	Reason string // a sentence without a full stop
}

// nodePortFaults notes ports that nothing leads to. The API server allocates a node port
// for each port of a Service of type NodePort, and of type LoadBalancer unless that is
// switched off; nothing does for a manifest, nor does anything give it an address.
func (p *parser) nodePortFaults() {
	s := &p.obj.Spec
	if p.out.Headless || s.Type != corev1.ServiceTypeNodePort && s.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if s.Type == corev1.ServiceTypeLoadBalancer && (p.addressed() || s.AllocateLoadBalancerNodePorts != nil && !*s.AllocateLoadBalancerNodePorts) {
		return
	}
	count := 0
	for i := range s.Ports {
		if s.Ports[i].NodePort != 0 {
			continue
		}
		if count++; count <= maxFaults {
			p.out.Faults = append(p.out.Faults, Fault{FaultNoNodePort, index("spec.ports", i) + ".nodePort",
				fmt.Sprintf("a Service of type %s in a manifest needs a number: nobody allocates one", s.Type)})
		}
	}
	if count > maxFaults {
		p.out.Faults = append(p.out.Faults, omitted(FaultNoNodePort, count-maxFaults))
	}
}

// maxFaults bounds the faults of a kind that are kept of a Service.
const maxFaults = 8

// omitted is the fault that stands for more of its kind than maxFaults.
func omitted(kind FaultKind, more int) Fault {
	return Fault{kind, "spec.ports", fmt.Sprintf("and %d more ports", more)}
}

// noSlicesFault notes a Service of manifests without any endpoint: a controller of a cluster would
// have made a slice.
func (svc *Service) noSlicesFault(m *merging) {
	if m.store.opts.Complete && len(m.sources) == 0 {
		svc.Faults = append(slices.Clip(svc.Faults), Fault{FaultNoSlices, "", fmt.Sprintf(
			"no valid EndpointSlice has the label %s: %s; an EndpointSlice without endpoints states that this is meant", discoveryv1.LabelServiceName, svc.Name.Name)})
	}
}

// portNameFaults notes the ports whose name and protocol no source has, although sources have
// endpoints.
func (svc *Service) portNameFaults(m *merging) {
	var names string
	count := 0
	for i := range svc.Ports {
		if len(m.matches[i]) > 0 || m.named(portID{svc.Ports[i].Name, svc.Ports[i].Protocol}) {
			continue
		}
		if count == 0 {
			var any bool
			if names, any = m.portNames(); !any {
				return // nobody to serve yet
			}
		}
		if count++; count <= maxFaults {
			p := &svc.Ports[i]
			svc.Faults = append(slices.Clip(svc.Faults), Fault{FaultPortName, index("spec.ports", i) + ".name",
				fmt.Sprintf("no EndpointSlice has a %s port of the name %q; they have %s", p.Protocol, p.Name, names)})
		}
	}
	if count > maxFaults {
		svc.Faults = append(svc.Faults, omitted(FaultPortName, count-maxFaults))
	}
}

// named reports whether a slice of names has the port, which counts before there is an answer.
func (m *merging) named(id portID) bool {
	return slices.ContainsFunc(m.sources, func(d *sliceData) bool { return d.named.has(id) })
}

// portNames are the first port names of the sources with endpoints. any is false if there is no
// such source.
func (m *merging) portNames() (text string, any bool) {
	seen := map[portID]bool{}
	for _, d := range m.sources {
		ports := d.ports
		switch {
		case d.named != nil && len(d.named.hosts) > 0: // whatever the answers are
			ports = d.named.ports
		case len(d.endpoints) == 0 || d.byName:
			continue
		}
		any = true
		for _, sp := range ports {
			seen[sp.portID] = true
		}
	}
	if len(seen) == 0 {
		return "no port", any
	}
	names := slices.SortedFunc(maps.Keys(seen), func(a, b portID) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.protocol, b.protocol))
	})
	const most = 8
	var first []string
	for _, n := range names[:min(most, len(names))] {
		first = append(first, fmt.Sprintf("%q (%s)", n.name, n.protocol))
	}
	text = strings.Join(first, ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text, any
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
