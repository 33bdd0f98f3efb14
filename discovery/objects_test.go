package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func ptr[T any](v T) *T { return &v }

// split cuts "namespace/name"; the namespace may be left out.
func split(id string) (namespace, name string) {
	if ns, n, found := strings.Cut(id, "/"); found {
		return ns, n
	}
	return "default", id
}

// aService is a NodePort Service with a selector and the ports given as
// name:port or name:port/UDP.
func aService(id string, ports ...string) *corev1.Service {
	ns, name := split(id)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{}, Labels: map[string]string{}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": name}},
	}
	for i, text := range ports {
		text, protocol, _ := strings.Cut(text, "/")
		pname, number, _ := strings.Cut(text, ":")
		n, err := strconv.Atoi(number)
		if err != nil {
			panic(err)
		}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: pname, Port: int32(n), Protocol: corev1.Protocol(protocol), NodePort: int32(30000 + i),
		})
	}
	return svc
}

func selectorless(svc *corev1.Service) *corev1.Service {
	svc.Spec.Selector = nil
	return svc
}

// aSlice is a slice of a Service with ports as name:port[/PROTOCOL] (a name
// of "-" is nil) and one endpoint per line: an address and words as follows:
// ready=, serving=, terminating= (a bool; absent: nil), node=, zone=,
// hints=, nodehints=, and label=value for deprecatedTopology.
func aSlice(id, owner, ports, endpoints string) *discoveryv1.EndpointSlice {
	ns, name := split(id)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: owner}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if strings.Contains(endpoints, "::") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, text := range strings.Fields(ports) {
		s.Ports = append(s.Ports, aSlicePort(text))
	}
	for line := range strings.Lines(endpoints) {
		if words := strings.Fields(line); len(words) > 0 {
			s.Endpoints = append(s.Endpoints, anEndpoint(words))
		}
	}
	return s
}

func aSlicePort(text string) discoveryv1.EndpointPort {
	text, protocol, hasProtocol := strings.Cut(text, "/")
	name, number, _ := strings.Cut(text, ":")
	p := discoveryv1.EndpointPort{Name: &name}
	if name == "-" {
		p.Name = nil
	}
	if hasProtocol {
		p.Protocol = ptr(corev1.Protocol(protocol))
	}
	if n, err := strconv.Atoi(number); err == nil {
		p.Port = ptr(int32(n))
	}
	return p
}

func anEndpoint(words []string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{words[0]}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "ready":
			e.Conditions.Ready = ptr(value == "true")
		case "serving":
			e.Conditions.Serving = ptr(value == "true")
		case "terminating":
			e.Conditions.Terminating = ptr(value == "true")
		case "node":
			e.NodeName = &value
		case "zone":
			e.Zone = &value
		case "hints":
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			for z := range strings.SplitSeq(value, ",") {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
			}
		case "nodehints":
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			for n := range strings.SplitSeq(value, ",") {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
			}
		default:
			if e.DeprecatedTopology == nil {
				e.DeprecatedTopology = map[string]string{}
			}
			e.DeprecatedTopology[key] = value
		}
	}
	return e
}

// aNode is a Node with labels key=value and addresses Type=address.
func aNode(name string, words ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "InternalIP", "ExternalIP", "Hostname":
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(key), Address: value})
		default:
			n.Labels[key] = value
		}
	}
	return n
}

// someEndpoints is a legacy Endpoints object; a subset is a line of
// addresses, "!" before those not ready, "@node" after those with a node,
// "#uid" after those with a target, and ports as name:port[/PROTOCOL].
func someEndpoints(id string, subsets ...string) *corev1.Endpoints {
	ns, name := split(id)
	ep := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	for _, text := range subsets {
		var sub corev1.EndpointSubset
		for _, w := range strings.Fields(text) {
			if name, rest, isPort := strings.Cut(w, ":"); isPort && !strings.Contains(w, "::") {
				number, protocol, _ := strings.Cut(rest, "/")
				n, _ := strconv.Atoi(number)
				sub.Ports = append(sub.Ports, corev1.EndpointPort{Name: name, Port: int32(n), Protocol: corev1.Protocol(protocol)})
				continue
			}
			w, notReady := strings.CutPrefix(w, "!")
			w, uid, hasTarget := strings.Cut(w, "#")
			w, node, hasNode := strings.Cut(w, "@")
			a := corev1.EndpointAddress{IP: w}
			if hasNode {
				a.NodeName = &node
			}
			if hasTarget {
				a.TargetRef = &corev1.ObjectReference{UID: types.UID(uid)}
			}
			if notReady {
				sub.NotReadyAddresses = append(sub.NotReadyAddresses, a)
			} else {
				sub.Addresses = append(sub.Addresses, a)
			}
		}
		ep.Subsets = append(ep.Subsets, sub)
	}
	return ep
}

// show is a Service's endpoints, port by port: the name and, for each
// endpoint, address:port with "-" after those not ready, "~" after those
// serving and terminating, "@node" and "?" where the node is inferred.
func show(svc *Service) string {
	if svc == nil {
		return "none"
	}
	var ports []string
	for _, p := range svc.Ports {
		text := p.Name + ":"
		for _, e := range p.Endpoints {
			text += " " + e.AddrPort.String()
			switch {
			case e.Ready:
			case e.Serving && e.Terminating:
				text += "~"
			default:
				text += "-"
			}
			if e.NodeName != "" {
				text += "@" + e.NodeName
			}
			if e.Inferred {
				text += "?"
			}
		}
		ports = append(ports, text)
	}
	return strings.Join(ports, "; ")
}

// feed gives objects to a store.
func feed(s *Store, objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			s.SetService(o)
		case *discoveryv1.EndpointSlice:
			s.SetSlice(o)
		case *corev1.Endpoints:
			s.SetEndpoints(o)
		case *corev1.Node:
			s.SetNode(o)
		default:
			panic(fmt.Sprintf("%T", o))
		}
	}
}

// load is a store, flushed, with objects in it.
func load(objects ...any) *Store {
	s := NewStore(Options{NodeName: "n1"})
	feed(s, objects...)
	s.Flush()
	return s
}

// web is the Service default/web.
func web(s *Store) *Service { return s.Service(ServiceName{"default", "web"}) }

func wantWeb(t *testing.T, s *Store, want string) {
	t.Helper()
	s.Flush()
	if got := show(web(s)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func wantErrors(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// labelsOf are the labels of the first endpoint of default/web's first port.
func labelsOf(s *Store) map[string]string {
	return web(s).Ports[0].Endpoints[0].Labels
}
