package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/topology"
)

// sliceData is the stored part of an EndpointSlice, or of a subset and family of a legacy
// Endpoints object.
type sliceData struct {
	svc       *service
	name      string
	ports     []slicePort
	endpoints []sliceEndpoint
	weight    uint32 // of each endpoint; 0: that of the node
	errors    []string
	unsaid    int // errors beyond maxErrors
	warnings  []string
	refused   int         // endpoints not taken
	fqdn      bool        // skipped
	named     *namedSlice // of addressType FQDN, nil for others
	byName    bool        // made of answers
}

// slicePort is a port that every endpoint of a slice has.
type slicePort struct {
	portID
	port uint16
}

// sliceEndpoint is an endpoint of a slice: 72 bytes, pointing to shared data.
type sliceEndpoint struct {
	addr  netip.Addr
	node  *node // nil when the slice does not say
	zone  string
	hints *zoneHints
	extra *extraLabels
	state state
}

// state is an endpoint's conditions, nil ones resolved.
type state uint8

const (
	ready state = 1 << iota
	serving
	terminating
)

// rank orders states of claims to the same endpoint: ready and not terminating wins, then,
// as with kube-proxy, any that does not terminate, since the address may have gone on
// from a terminating Pod to a new Pod.
func (c state) rank() int {
	switch {
	case c&ready != 0 && c&terminating == 0:
		return 3
	case c&terminating == 0:
		return 2
	case c&(ready|serving) != 0:
		return 1
	}
	return 0
}

// conditions resolves nil conditions: ready and serving are true,
// terminating is false.
func conditions(c *discoveryv1.EndpointConditions) state {
	var st state
	if c.Ready == nil || *c.Ready {
		st |= ready
	}
	if c.Serving == nil || *c.Serving {
		st |= serving
	}
	if c.Terminating != nil && *c.Terminating {
		st |= terminating
	}
	return st
}

// maxErrors bounds the complaints kept of an object.
const maxErrors = 8

// addError keeps a complaint about the slice.
func (d *sliceData) addError(object, text string) {
	if len(d.errors) == maxErrors {
		d.unsaid++
		return
	}
	d.errors = append(d.errors, object+": "+text)
}

// addOmittedCount says how many complaints were not kept.
func (d *sliceData) addOmittedCount(object string) {
	if d.unsaid > 0 {
		d.errors = append(d.errors, fmt.Sprintf("%s: and %d more", object, d.unsaid))
	}
}

// sliceParser reads slices, with names and nodes shared among all endpoints.
type sliceParser struct {
	intern *interner
	nodes  *nodes
	named  bool // names are resolved
}

// slice takes the valid parts of a slice and complains of the rest.
func (p sliceParser) slice(obj *discoveryv1.EndpointSlice) *sliceData {
	d := &sliceData{name: strings.Clone(obj.Name)}
	object := "EndpointSlice " + obj.Namespace + "/" + obj.Name
	switch obj.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		if !p.named {
			d.fqdn = true
			d.warnings = []string{object + ": addressType FQDN is skipped (discovery.names)"}
			return d
		}
		p.ports(d, object, obj.Ports, true)
		p.names(d, object, obj)
		d.addOmittedCount(object)
		return d
	default:
		d.addError(object, notSupported("addressType", string(obj.AddressType), `"FQDN", "IPv4", "IPv6"`))
		return d
	}
	if text, ok := obj.Annotations[AnnotationWeight]; ok {
		if d.weight, ok = parseWeight(text); !ok {
			d.weight = 0
			d.addError(object, invalid(annotationPath(AnnotationWeight), text, weightRange))
		}
	}
	p.ports(d, object, obj.Ports, false)
	d.endpoints = make([]sliceEndpoint, 0, len(obj.Endpoints))
	second := "" // the first address that is passed over
	for i := range obj.Endpoints {
		e, reason := p.endpoint(&obj.Endpoints[i], obj.AddressType, i)
		if reason != "" {
			d.refused++
			d.addError(object, reason)
			continue
		}
		d.endpoints = append(d.endpoints, e)
		if second == "" {
			second = passedOver(object, &obj.Endpoints[i], i)
		}
	}
	if second != "" {
		d.warnings = append(d.warnings, second)
	}
	d.addOmittedCount(object)
	return d
}

// passedOver is the warning of an endpoint with a second address, "" with one.
func passedOver(object string, e *discoveryv1.Endpoint, i int) string {
	if len(e.Addresses) < 2 {
		return ""
	}
	return fmt.Sprintf("%s: %s.addresses[1]: %s is not used, as in kube-proxy: the first address of an endpoint counts",
		object, index("endpoints", i), quote(e.Addresses[1]))
}

// ports takes the ports that a Service port can be matched with. Without a number a port of names is that of
// SRV records.
func (p sliceParser) ports(d *sliceData, object string, ports []discoveryv1.EndpointPort, names bool) {
	seen, unset := make(map[portID]bool, len(ports)), 0
	for i := range ports {
		q := &ports[i]
		at := index("ports", i)
		sp := slicePort{portID: portID{protocol: string(corev1.ProtocolTCP)}}
		if q.Name != nil {
			sp.name = p.intern.string(*q.Name)
		}
		if q.Protocol != nil && *q.Protocol != "" {
			sp.protocol = p.intern.string(string(*q.Protocol))
		}
		switch {
		case q.Port == nil && names && sp.name != "" && knownProtocol(sp.protocol) && !seen[sp.portID]: // by SRV
		case q.Port == nil:
			if unset++; unset == 1 {
				d.warnings = append(d.warnings, object+": "+at+".port: not set, which means all ports: skipped, as kube-proxy does")
			}
			continue
		case *q.Port < 1 || *q.Port > 65535:
			d.addError(object, invalidInt(at+".port", int(*q.Port), portRange))
			continue
		case !knownProtocol(sp.protocol):
			d.addError(object, notSupported(at+".protocol", sp.protocol, protocols))
			continue
		case seen[sp.portID]:
			d.addError(object, duplicate(at+".name", sp.name))
			continue
		}
		if q.Port != nil {
			sp.port = uint16(*q.Port)
		}
		seen[sp.portID] = true
		d.ports = append(d.ports, sp)
	}
	if unset > 1 {
		d.warnings = append(d.warnings, fmt.Sprintf("%s: and %d more ports without a number", object, unset-1))
	}
}

// endpoint takes an endpoint, or returns the reason why not. Of several addresses the
// first counts: they are said to be fungible.
func (p sliceParser) endpoint(e *discoveryv1.Endpoint, family discoveryv1.AddressType, i int) (sliceEndpoint, string) {
	at := index("endpoints", i) + ".addresses"
	if len(e.Addresses) == 0 {
		return sliceEndpoint{}, at + ": Required value: must contain at least 1 address"
	}
	at += "[0]"
	text := e.Addresses[0]
	addr, reason := checkAddr(text)
	switch {
	case !addr.IsValid():
	case family == discoveryv1.AddressTypeIPv4 && !addr.Is4():
		reason = "must be an IPv4 address"
	case family == discoveryv1.AddressTypeIPv6 && !addr.Is6():
		reason = "must be an IPv6 address"
	}
	if reason != "" {
		return sliceEndpoint{}, invalid(at, text, reason)
	}
	out := p.described(e)
	out.addr = addr
	return out, ""
}

// described is an endpoint without its address.
func (p sliceParser) described(e *discoveryv1.Endpoint) sliceEndpoint {
	out := sliceEndpoint{
		hints: p.intern.hintsOf(e.Hints),
		extra: p.intern.extraLabelsOf(e.DeprecatedTopology),
		state: conditions(&e.Conditions),
	}
	name := e.DeprecatedTopology[topology.LabelHostname]
	if e.NodeName != nil && *e.NodeName != "" {
		name = *e.NodeName
	}
	if name != "" {
		out.node = p.nodes.named(name)
	}
	zone := e.DeprecatedTopology[topology.LabelZone]
	if e.Zone != nil && *e.Zone != "" {
		zone = *e.Zone
	}
	out.zone = p.intern.string(zone)
	return out
}

// equal reports whether two versions of a slice say the same.
func (d *sliceData) equal(o *sliceData) bool {
	return d.name == o.name && d.refused == o.refused && d.fqdn == o.fqdn && d.weight == o.weight && d.named.same(o.named) &&
		slices.Equal(d.ports, o.ports) && slices.Equal(d.endpoints, o.endpoints) &&
		slices.Equal(d.errors, o.errors) && slices.Equal(d.warnings, o.warnings)
}

const protocols = `"SCTP", "TCP", "UDP"`

func knownProtocol(p string) bool {
	switch corev1.Protocol(p) {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return true
	}
	return false
}
