package discovery

import (
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// answers are Names of a test.
type answers struct {
	followed map[ServiceName][]NameQuestion
	targets  map[string][]netip.AddrPort // by name
}

func (a *answers) Settle() bool { return false }
func (a *answers) Follow(slice ServiceName, questions []NameQuestion) {
	if a.followed[slice] = questions; len(questions) == 0 {
		delete(a.followed, slice)
	}
}
func (a *answers) Answer(_ string, q NameQuestion) NameAnswer {
	return NameAnswer{Targets: a.targets[q.String()]}
}
func (a *answers) set(name string, targets ...string) {
	a.targets[name] = nil
	for _, t := range targets {
		a.targets[name] = append(a.targets[name], netip.MustParseAddrPort(t))
	}
}

// The endpoints of a slice of names follow the answers. Addresses of the machine, of links, of Nodes and of
// Services are refused, also those that become so later.
func TestEndpointsByName(t *testing.T) {
	a := &answers{map[ServiceName][]NameQuestion{}, map[string][]netip.AddrPort{}}
	s := NewStore(Options{Names: a, Supported: ^Feature(0)})
	flush := func() {
		s.NamesChanged()
		s.Flush()
	}
	svc := aService("web", "http:80", "admin:81")
	s.SetService(svc)
	named := aSlice("web-1", "web", "http:8080 admin:0", "a.example.com node=n1\nb.example.com ready=false")
	named.AddressType, named.Ports[1].Port = discoveryv1.AddressTypeFQDN, nil
	s.SetSlice(named)
	s.SetSlice(aSlice("web-2", "web", "http:8080", "10.0.0.9"))
	flush()
	wantWeb(t, s, "http: 10.0.0.9:8080; admin:")
	var asked []string
	for _, q := range a.followed[ServiceName{"default", "web-1"}] {
		asked = append(asked, q.String())
	}
	if want := []string{"a.example.com", "b.example.com", "_admin._tcp.a.example.com", "_admin._tcp.b.example.com"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	a.set("a.example.com", "10.0.0.1:0", "10.0.0.2:0")
	a.set("b.example.com", "10.0.0.2:0", "10.0.0.3:0")
	a.set("_admin._tcp.a.example.com", "10.0.0.1:9000", "10.0.0.1:9001")
	flush()
	wantWeb(t, s, "http: 10.0.0.1:8080@n1 10.0.0.2:8080@n1 10.0.0.3:8080- 10.0.0.9:8080; admin: 10.0.0.1:9000@n1 10.0.0.1:9001@n1")
	a.set("a.example.com", "10.0.0.4:0", "127.0.0.1:0", "169.254.169.254:0")
	flush()
	wantWeb(t, s, "http: 10.0.0.2:8080- 10.0.0.3:8080- 10.0.0.4:8080@n1 10.0.0.9:8080; admin: 10.0.0.1:9000@n1 10.0.0.1:9001@n1")
	wantErrors(t, web(s).Warnings, "name a.example.com: 127.0.0.1 is refused: may not be in the loopback range", "169.254.169.254 is refused: may not be in the link-local range")
	a.set("a.example.com", "10.0.0.4:0")
	s.SetNode(aNode("n2", "InternalIP=10.0.0.3"))
	other := aService("other", "http:80")
	other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.0.0.4", []string{"10.0.0.4"}
	s.SetService(other)
	flush()
	wantWeb(t, s, "http: 10.0.0.2:8080- 10.0.0.9:8080; admin: 10.0.0.1:9000@n1 10.0.0.1:9001@n1")
	wantErrors(t, web(s).Warnings, "10.0.0.4, which is refused: it is the address of a Service", "10.0.0.3, which is refused: it is the address of a Node")
	s.DeleteService("default", "other")
	s.DeleteNode("n2")
	flush()
	wantWeb(t, s, "http: 10.0.0.2:8080- 10.0.0.3:8080- 10.0.0.4:8080@n1 10.0.0.9:8080; admin: 10.0.0.1:9000@n1 10.0.0.1:9001@n1")
	bad := named.DeepCopy()
	bad.Endpoints[0].Addresses = []string{"nodots"}
	s.SetSlice(bad)
	flush()
	wantErrors(t, web(s).Errors, `endpoints[0].addresses[0]: Invalid value: "nodots": must be a domain name`)
	s.DeleteSlice("default", "web-1")
	flush()
	wantWeb(t, s, "http: 10.0.0.9:8080; admin:")
	if len(a.followed)+len(s.named.slices) > 0 || len(s.nodes.byName) > 0 {
		t.Errorf("left: %v, %v, %v", a.followed, s.named.slices, s.nodes.byName)
	}
}
