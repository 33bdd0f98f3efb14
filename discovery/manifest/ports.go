package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodePort is a port that a Service takes on every node.
type nodePort struct {
	protocol corev1.Protocol
	number   int32
	field    string
}

// The range of node ports of an API server that is not configured otherwise.
const firstNodePort, lastNodePort = 30000, 32767

// portsOf are the node ports of a Service.
func portsOf(svc *corev1.Service) (out []nodePort) {
	for i, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, nodePort{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.NodePort, fmt.Sprintf("spec.ports[%d].nodePort", i)})
		}
	}
	if p := svc.Spec.HealthCheckNodePort; p != 0 && checksHealth(&svc.Spec) {
		out = append(out, nodePort{corev1.ProtocolTCP, p, "spec.healthCheckNodePort"})
	}
	return out
}

// checksHealth reports whether the Service has a health check port.
func checksHealth(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// key is the port without the field.
func (p nodePort) key() nodePort { return nodePort{protocol: p.protocol, number: p.number} }

// String is PROTOCOL NUMBER.
func (p nodePort) String() string { return fmt.Sprintf("%s %d", p.protocol, p.number) }

// settlePorts refuses Services that claim a node port of another: an API server allocates a port
// once. The Service that serves on the port keeps it. A refused Service stays as last served,
// with its ports of then, which may decide about others.
func (r *round) settlePorts() {
	holders := map[nodePort]Key{} // as served now
	for key, v := range r.s.served {
		for _, p := range v.ports {
			holders[p.key()] = key
		}
	}
	for again := true; again; {
		again = false
		taken := make(map[nodePort]Key, len(holders))
		for _, key := range r.services() {
			for _, p := range r.portsOf(key) {
				other, found := taken[p.key()]
				switch {
				case !found:
					taken[p.key()] = key
				case r.precedes(key, other, holders[p.key()]):
					again = r.refusePort(other, key, p) || again
					taken[p.key()] = key
				default:
					again = r.refusePort(key, other, p) || again
				}
			}
		}
	}
}

// services are the claimed Services, sorted.
func (r *round) services() (out []Key) {
	for key := range r.claims {
		if key.Kind == "Service" {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// portsOf are the ports of a claimed Service.
func (r *round) portsOf(key Key) []nodePort {
	if o := r.claims[key].object; o != nil && o.value != nil {
		return portsOf(o.value.(*corev1.Service))
	}
	return r.s.served[key].ports
}

// precedes reports whether a has precedence over b for a port that holder serves on: the holder,
// then the older by metadata.creationTimestamp, then the one with endpoints, then the first by name.
func (r *round) precedes(a, b, holder Key) bool {
	if a == holder || b == holder {
		return a == holder
	}
	return cmp.Or(cmp.Compare(r.created(a), r.created(b)), cmp.Compare(r.endpoints(b), r.endpoints(a)), strings.Compare(a.String(), b.String())) < 0
}

// created is the time of creation in Unix seconds. Without a time, an object is younger than all.
func (r *round) created(key Key) int64 {
	const none = 1 << 62
	if o := r.claims[key].object; o != nil {
		if svc, ok := o.value.(*corev1.Service); ok && !svc.CreationTimestamp.IsZero() {
			return svc.CreationTimestamp.Unix()
		}
	}
	return none
}

// endpoints is 1 if a claimed slice has endpoints of the Service, else 0.
func (r *round) endpoints(service Key) int {
	for _, key := range r.order {
		o := r.claims[key].object
		if key.Kind != "EndpointSlice" || o == nil || o.service.Namespace != service.Namespace || o.service.Name != service.Name {
			continue
		}
		if slice, ok := o.value.(*discoveryv1.EndpointSlice); !ok || len(slice.Endpoints) > 0 {
			return 1
		}
	}
	return 0
}

// refusePort refuses the version of a Service that claims a port of another, and warns of it at
// the other. It is false if the version is refused already.
func (r *round) refusePort(key, holder Key, p nodePort) bool {
	c := r.claims[key]
	if c.object == nil {
		return false
	}
	at := slices.IndexFunc(portsOfObject(c.object), func(q nodePort) bool { return q.key() == p.key() })
	if at < 0 {
		return false
	}
	mine := portsOfObject(c.object)[at]
	_, kept := r.s.served[key]
	r.claims[key] = claim{file: c.file, document: c.document, item: c.item}
	c.file.clean = false
	e := Error{
		File: c.file.path, Document: c.document, Line: c.file.lineOf(c.document), Object: key, Service: c.object.service,
		Field:  joinPath(c.object.prefix(), mine.field),
		Reason: fmt.Sprintf("Invalid value: %d: provided port is already allocated: %s is of %s", mine.number, mine, holder), Kept: kept,
	}
	r.report.Errors = append(r.report.Errors, e)
	h := r.claims[holder]
	e = Error{
		File: h.file.path, Document: h.document, Line: h.file.lineOf(h.document), Object: holder,
		Reason: fmt.Sprintf("%s asks for node port %s, too: it is refused, and this Service keeps the port", key, mine),
	}
	e.Service.Namespace, e.Service.Name = holder.Namespace, holder.Name
	r.report.Warnings = append(r.report.Warnings, e)
	return true
}

func portsOfObject(o *object) []nodePort {
	if svc, ok := o.value.(*corev1.Service); ok {
		return portsOf(svc)
	}
	return nil
}

// lineOf is the line where a document begins.
func (f *file) lineOf(number int) int {
	for _, d := range f.docs {
		if d.number == number {
			return d.line
		}
	}
	return 0
}

// prefix is put before the paths of fields.
func (o *object) prefix() string {
	if o.item < 0 {
		return ""
	}
	return fmt.Sprintf("items[%d]", o.item)
}

// ages give Services their places in the order in which frontends are given away. Those of the
// first load have the times of their creation, or its own. Later ones are younger, whatever they
// say: a copied document takes nothing from a Service that serves.
type ages struct{ last int64 }

// begin begins a load.
func (a *ages) begin() { a.last = max(a.last+1, time.Now().Unix()) }

// of is the age of a new object, in Unix seconds.
func (a *ages) of(created metav1.Time, first bool) int64 {
	if first && !created.IsZero() {
		return min(created.Unix(), a.last)
	}
	return a.last
}
