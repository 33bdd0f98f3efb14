package discovery

import (
	"maps"

	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"

	"github.com/weirlb/weir/topology"
)

// FromV1beta1 is the v1 form of a discovery.k8s.io/v1beta1 slice. The topology map becomes
// zone, nodeName (from kubernetes.io/hostname, where the
// field nodeName is not set) and deprecatedTopology, of which SetSlice makes
// labels for topologyKeys. The result shares memory with obj.
func FromV1beta1(obj *discoveryv1beta1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  obj.ObjectMeta,
		AddressType: discoveryv1.AddressType(obj.AddressType),
		Endpoints:   make([]discoveryv1.Endpoint, len(obj.Endpoints)),
		Ports:       make([]discoveryv1.EndpointPort, len(obj.Ports)),
	}
	for i := range obj.Ports {
		p := &obj.Ports[i]
		out.Ports[i] = discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, AppProtocol: p.AppProtocol}
	}
	for i := range obj.Endpoints {
		fromV1beta1(&obj.Endpoints[i], &out.Endpoints[i])
	}
	return out
}

func fromV1beta1(e *discoveryv1beta1.Endpoint, out *discoveryv1.Endpoint) {
	out.Addresses = e.Addresses
	out.Conditions = discoveryv1.EndpointConditions(e.Conditions)
	out.Hostname, out.TargetRef, out.NodeName = e.Hostname, e.TargetRef, e.NodeName
	if e.Hints != nil {
		out.Hints = &discoveryv1.EndpointHints{}
		for _, z := range e.Hints.ForZones {
			out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone(z))
		}
		for _, n := range e.Hints.ForNodes {
			out.Hints.ForNodes = append(out.Hints.ForNodes, discoveryv1.ForNode(n))
		}
	}
	if len(e.Topology) == 0 {
		return
	}
	more := maps.Clone(e.Topology)
	if zone, ok := more[topology.LabelZone]; ok {
		out.Zone = &zone
		delete(more, topology.LabelZone)
	}
	if name, ok := more[topology.LabelHostname]; ok && (out.NodeName == nil || *out.NodeName == name) {
		out.NodeName = &name
		delete(more, topology.LabelHostname)
	}
	if len(more) > 0 {
		out.DeprecatedTopology = more
	}
}
