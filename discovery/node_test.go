package discovery

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/topology"
)

const (
	host = topology.LabelHostname
	zone = topology.LabelZone
)

// An endpoint's labels are those of its node (KEP-536), whatever is known of
// it.
func TestLabelsOfEndpoints(t *testing.T) {
	type labels = map[string]string
	for _, test := range []struct {
		name     string
		endpoint string
		node     []string // nil: no such Node
		want     labels
		zone     string
	}{
		{"of a known Node", "10.0.0.1 node=n2", []string{host + "=h2", zone + "=za", "rack=k1"}, labels{host: "h2", zone: "za", "rack": "k1"}, "za"},
		{"of a Node that is not known", "10.0.0.1 node=n2", nil, labels{host: "n2"}, ""},
		{"with the slice's zone", "10.0.0.1 node=n2 zone=zb", nil, labels{host: "n2", zone: "zb"}, "zb"},
		{"the Node's own label wins", "10.0.0.1 node=n2 zone=zb", []string{zone + "=za"}, labels{host: "n2", zone: "za"}, "za"},
		{"zone without a node", "10.0.0.1 zone=zb", nil, labels{zone: "zb"}, "zb"},
		{"nothing known", "10.0.0.1", nil, nil, ""},
		{"deprecated topology", "10.0.0.1 rack=k7 " + host + "=n2 " + zone + "=zc", nil, labels{host: "n2", zone: "zc", "rack": "k7"}, "zc"},
		{"deprecated topology, and the Node knows better", "10.0.0.1 rack=k7 row=w1 node=n2", []string{"rack=k1"}, labels{host: "n2", "rack": "k1", "row": "w1"}, ""},
		{"topology may name another host than nodeName", "10.0.0.1 " + host + "=h9 node=n2", nil, labels{host: "h9"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := load(aService("web", "http:80"), aSlice("web-1", "web", "http:8080", test.endpoint))
			if test.node != nil {
				feed(s, aNode("n2", test.node...))
				s.Flush()
			}
			if got := labelsOf(s); !maps.Equal(got, test.want) {
				t.Errorf("labels %v, want %v", got, test.want)
			}
			if got := web(s).Ports[0].Endpoints[0].Zone; got != test.zone {
				t.Errorf("zone %q, want %q", got, test.zone)
			}
		})
	}
}

func TestNodeLabelsReachTheirServicesOnly(t *testing.T) {
	s := load(aService("web", "http:80"), aService("api", "http:80"),
		aSlice("web-1", "web", "http:8080", "10.0.0.1 node=n2"), aSlice("api-1", "api", "http:8080", "10.0.0.2 node=n3"),
		aNode("n2", "rack=k1"))
	feed(s, aNode("n2", "rack=k2"))
	up := s.Flush()
	if len(up.Put) != 1 || up.Put[0].Name.Name != "web" || labelsOf(s)["rack"] != "k2" || up.Node != nil {
		t.Fatalf("%+v", up)
	}
	heartbeat := aNode("n2", "rack=k2")
	heartbeat.ResourceVersion = "7"
	if feed(s, heartbeat); s.Flush() != nil {
		t.Error("a heartbeat is an update")
	}
	s.DeleteNode("n2")
	if up := s.Flush(); len(up.Put) != 1 || labelsOf(s)["rack"] != "" || labelsOf(s)[host] != "n2" {
		t.Errorf("after the Node has gone: %+v", labelsOf(s))
	}
}

func TestThisNode(t *testing.T) {
	s := NewStore(Options{NodeName: "n1"})
	up := s.Flush()
	if up == nil || up.Node == nil || up.Node.Name != "n1" || up.Node.Labels != nil {
		t.Fatalf("at first: %+v", up)
	}
	feed(s, aNode("n1", "rack=k1"), aNode("n2", "rack=k2"))
	if up := s.Flush(); up.Node == nil || up.Node.Labels["rack"] != "k1" {
		t.Fatalf("%+v", up)
	}
	feed(s, aNode("n2", "rack=k2", "InternalIP=192.0.2.2"))
	if up := s.Flush(); up != nil {
		t.Fatalf("%+v", up)
	}
	s.DeleteNode("n1")
	if up := s.Flush(); up.Node == nil || len(up.Node.Labels) != 0 {
		t.Fatalf("%+v", up)
	}
}

// The node's own addresses are those that kube-proxy takes of the Node object.
func TestAddressesOfThisNode(t *testing.T) {
	s := NewStore(Options{NodeName: "n1"})
	s.Flush()
	for _, step := range []struct {
		node string // "": deleted
		want string // "same": no update
	}{
		{"InternalIP=192.0.2.1", "[192.0.2.1]"},
		{"InternalIP=192.0.2.1 Hostname=n1", "same"},
		{"ExternalIP=203.0.113.1 InternalIP=192.0.2.1", "same"},
		{"InternalIP=192.0.2.2 InternalIP=192.0.2.1", "[192.0.2.2]"},
		{"ExternalIP=203.0.113.1", "[203.0.113.1]"},
		{"ExternalIP=203.0.113.1 InternalIP=2001:db8::1", "[2001:db8::1 203.0.113.1]"},
		{"InternalIP=2001:db8::1 InternalIP=192.0.2.1", "[2001:db8::1 192.0.2.1]"},
		{"Hostname=192.0.2.1", "[]"},
		{"InternalIP=192.0.2.1", "[192.0.2.1]"},
		{"", "[]"},
	} {
		if step.node == "" {
			s.DeleteNode("n1")
		} else {
			feed(s, aNode("n1", strings.Fields(step.node)...))
		}
		got := "same"
		if up := s.Flush(); up != nil && up.Node != nil {
			got = fmt.Sprint(up.Node.Addresses)
		}
		if got != step.want {
			t.Errorf("Node with %q: addresses %s, want %s", step.node, got, step.want)
		}
	}
}

// Hand-written Endpoints, as of default/kubernetes, name no nodes.
func TestNodeIsInferredFromAddress(t *testing.T) {
	s := load(selectorless(aService("web", "https:443")), someEndpoints("web", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.9@n9 https:6443"),
		aNode("n1", "InternalIP=192.0.2.1", "rack=k1"), aNode("n2", "ExternalIP=192.0.2.2"), aNode("n3", "Hostname=192.0.2.3"), aNode("n4", "InternalIP=192.0.2.9"))
	wantWeb(t, s, "https: 192.0.2.1:6443@n1? 192.0.2.2:6443@n2? 192.0.2.3:6443 192.0.2.9:6443@n9")
	if labelsOf(s)["rack"] != "k1" {
		t.Errorf("labels %v", labelsOf(s))
	}
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"a Node comes", func() { feed(s, aNode("n5", "InternalIP=192.0.2.3")) }, "https: 192.0.2.1:6443@n1? 192.0.2.2:6443@n2? 192.0.2.3:6443@n5? 192.0.2.9:6443@n9"},
		{"of two that claim an address the first by name is believed", func() { feed(s, aNode("n0", "InternalIP=192.0.2.3")) }, "https: 192.0.2.1:6443@n1? 192.0.2.2:6443@n2? 192.0.2.3:6443@n0? 192.0.2.9:6443@n9"},
		{"it moves", func() { feed(s, aNode("n0", "InternalIP=192.0.2.8")) }, "https: 192.0.2.1:6443@n1? 192.0.2.2:6443@n2? 192.0.2.3:6443@n5? 192.0.2.9:6443@n9"},
		{"one goes", func() { s.DeleteNode("n1") }, "https: 192.0.2.1:6443 192.0.2.2:6443@n2? 192.0.2.3:6443@n5? 192.0.2.9:6443@n9"},
	} {
		t.Log(step.name)
		step.do()
		wantWeb(t, s, step.want)
	}
}

// A node that was renamed leaves its old object behind for a while.
func TestOfTwoNodesWithOneAddressTheNewerIsBelieved(t *testing.T) {
	made := func(name string, created int64) *corev1.Node {
		n := aNode(name, "InternalIP=192.0.2.1")
		n.CreationTimestamp = metav1.Unix(created, 0)
		return n
	}
	service := []any{selectorless(aService("web", "https:443")), someEndpoints("web", "192.0.2.1 https:6443")}
	for name, nodes := range map[string][]any{
		"older first": {made("a-old", 100), made("b-new", 200)},
		"newer first": {made("b-new", 200), made("a-old", 100)},
		"made anew":   {made("b-new", 50), made("a-old", 100), made("b-new", 200)},
	} {
		t.Log(name)
		s := load(append(service, nodes...)...)
		wantWeb(t, s, "https: 192.0.2.1:6443@b-new?")
		s.DeleteNode("b-new")
		wantWeb(t, s, "https: 192.0.2.1:6443@a-old?")
	}
}

func TestInferenceWorksForSlicesAndManyServices(t *testing.T) {
	var objects []any
	for i := range 3 * maxListedUsers {
		name := string(rune('A' + i))
		objects = append(objects, aService(name, "http:80"), aSlice(name, name, "http:8080", "192.0.2.1"))
	}
	s := load(objects...)
	feed(s, aNode("n2", "InternalIP=192.0.2.1"))
	if up := s.Flush(); len(up.Put) != 3*maxListedUsers || show(up.Put[0]) != "http: 192.0.2.1:8080@n2?" {
		t.Fatalf("%d Services, %s", len(up.Put), show(up.Put[0]))
	}
	for i := range 3 * maxListedUsers {
		name := string(rune('A' + i))
		s.DeleteService("default", name)
		s.DeleteSlice("default", name)
	}
	s.DeleteNode("n2")
	if s.Flush(); len(s.nodes.byAddr)+len(s.nodes.byName)+len(s.services) != 0 {
		t.Errorf("left: %d places, %d nodes, %d services", len(s.nodes.byAddr), len(s.nodes.byName), len(s.services))
	}
}

func TestV1beta1Slices(t *testing.T) {
	old := func(nodeName *string, topo map[string]string) *discoveryv1beta1.EndpointSlice {
		return &discoveryv1beta1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"kubernetes.io/service-name": "web"}},
			AddressType: discoveryv1beta1.AddressTypeIPv4,
			Ports:       []discoveryv1beta1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}},
			Endpoints: []discoveryv1beta1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: nodeName, Topology: topo,
				Conditions: discoveryv1beta1.EndpointConditions{Ready: ptr(false), Terminating: ptr(true)},
				Hints:      &discoveryv1beta1.EndpointHints{ForZones: []discoveryv1beta1.ForZone{{Name: "za"}}, ForNodes: []discoveryv1beta1.ForNode{{Name: "n2"}}}}},
		}
	}
	topo := map[string]string{host: "n2", zone: "za", "topology.kubernetes.io/region": "r1", "rack": "k1"}
	s := load(aService("web", "http:80"), FromV1beta1(old(nil, topo)))
	wantWeb(t, s, "http: 10.0.0.1:8080~@n2")
	e := web(s).Ports[0].Endpoints[0]
	if !maps.Equal(e.Labels, topo) || e.Zone != "za" || e.HintZones[0] != "za" || e.HintNodes[0] != "n2" {
		t.Errorf("%+v", e)
	}
	feed(s, aNode("n2", "rack=k9"))
	if s.Flush(); labelsOf(s)["rack"] != "k9" || labelsOf(s)[zone] != "za" {
		t.Errorf("the Node's own label does not win: %v", labelsOf(s))
	}
	feed(s, FromV1beta1(old(ptr("n3"), topo)))
	wantWeb(t, s, "http: 10.0.0.1:8080~@n3")
	if len(topo) != 4 {
		t.Error("the topology map has been written to")
	}
}

// A frontend at an address of a Node is known as such, whichever comes first.
func TestFrontendsOfNodes(t *testing.T) {
	svc := aService("web", "http:80")
	svc.Spec.ExternalIPs = []string{"192.0.2.2", "192.0.2.9"}
	s := load(svc, aService("api", "http:80"), aSlice("web-1", "web", "http:8080", "10.0.0.1 node=n3"))
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "[]"},
		{func() { feed(s, aNode("n2", "InternalIP=192.0.2.2")) }, "[192.0.2.2]"},
		{func() { s.DeleteNode("n2") }, "[]"},
	} {
		step.change()
		if up := s.Flush(); up != nil && (len(up.Put) != 1 || up.Put[0].Name.Name != "web") {
			t.Errorf("others are told: %v", up.Put)
		}
		if got := fmt.Sprint(web(s).OfNodes); got != step.want {
			t.Errorf("addresses of Nodes: %s, want %s", got, step.want)
		}
	}
}
