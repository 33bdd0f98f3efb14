package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	a.set("a.example.com", "10.0.0.4:0")
	a.set("b.example.com", "10.0.0.3:0")
	s.DeleteSlice("default", "web-2")
	flush()
	wantWeb(t, s, "http:; admin: 10.0.0.1:9000@n1 10.0.0.1:9001@n1")
	wantErrors(t, web(s).Warnings, "10.0.0.4, which is refused", "10.0.0.3, which is refused", `port "http" has no endpoint: all addresses that its names lead to are refused`)
	a.set("b.example.com", "10.0.0.2:0", "10.0.0.3:0")
	s.SetSlice(aSlice("web-2", "web", "http:8080", "10.0.0.9"))
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
	if len(a.followed)+len(s.named.slices)+len(s.named.byAddr) > 0 || len(s.nodes.byName) > 0 {
		t.Errorf("left: %v, %v, %v", a.followed, s.named.slices, s.nodes.byName)
	}
}

// Mistakes in a slice of names are told as those in a slice of addresses, before there is an answer.
func TestMistakesInEndpointsByName(t *testing.T) {
	a := &answers{map[ServiceName][]NameQuestion{}, map[string][]netip.AddrPort{}}
	s := NewStore(Options{Names: a, Supported: ^Feature(0)})
	s.SetService(aService("web", "http:80", "grpc:81"))
	named := aSlice("web-1", "web", "http:8080 grcp:8081", "a.example.com\nb.example.com")
	named.AddressType = discoveryv1.AddressTypeFQDN
	named.Endpoints[0].Addresses = []string{"a.example.com", "c.example.com"}
	s.SetSlice(named)
	s.Flush()
	wantErrors(t, web(s).Warnings, `endpoints[0].addresses[1]: "c.example.com" is not used, as in kube-proxy`)
	if f := web(s).Faults; len(f) != 1 || f[0].Kind != FaultPortName || !strings.Contains(f[0].Reason, `of the name "grpc"; they have`) {
		t.Errorf("faults %v", f)
	}
	for addr, want := range map[string]string{"10.1.1.1": "addressType IPv4", "2001:db8::1": "addressType IPv6"} {
		bad := named.DeepCopy()
		bad.Endpoints[0].Addresses = []string{addr}
		s.SetSlice(bad)
		s.Flush()
		wantErrors(t, web(s).Errors, "endpoints[0].addresses[0]: Invalid value: \""+addr+"\": this is an address: "+want)
	}
}

// A slice makes a bounded number of endpoints, however often it has a name and whatever the answers are. It is
// made again only with another answer.
func TestEndpointsByNameAreBounded(t *testing.T) {
	a := &answers{map[ServiceName][]NameQuestion{}, map[string][]netip.AddrPort{}}
	s := NewStore(Options{Names: a, Supported: ^Feature(0)})
	s.SetService(aService("web", "http:80"))
	var targets []string
	for i := range 100 {
		targets = append(targets, fmt.Sprintf("10.0.0.%d:0", i+1))
	}
	a.set("a.example.com", targets...)
	named := aSlice("web-1", "web", "http:8080", strings.Repeat("a.example.com\n", 99)+"A.example.com. ready=false")
	named.AddressType = discoveryv1.AddressTypeFQDN
	made := func() (n int) {
		s.SetSlice(named)
		s.Flush()
		for _, d := range s.named.slices[objectName{"default", "web-1"}].named.made {
			n += len(d.endpoints)
		}
		return n
	}
	if n := made(); n != 100 || !web(s).Ports[0].Endpoints[0].Ready {
		t.Errorf("%d endpoints of a name that is in the slice 100 times", n)
	}
	wantErrors(t, web(s).Warnings, "endpoints[1].addresses[0]: a.example.com is also the name of an earlier endpoint, which counts")
	var hosts strings.Builder
	for i := range 2 * maxQuestions {
		host := fmt.Sprintf("n%d.example.com", i)
		fmt.Fprintln(&hosts, host)
		targets = targets[:0]
		for j := range 100 {
			targets = append(targets, fmt.Sprintf("10.1.%d.%d:0", i, j+1))
		}
		a.set(host, targets...)
	}
	named = aSlice("web-1", "web", "http:8080", hosts.String())
	named.AddressType = discoveryv1.AddressTypeFQDN
	if n := made(); n != maxMade || len(web(s).Ports[0].Endpoints) != maxMade {
		t.Errorf("%d endpoints, %d served", n, len(web(s).Ports[0].Endpoints))
	}
	wantErrors(t, web(s).Warnings, "at most 64 names are resolved", "more than 4096 endpoints: others are not used")
	if n := testing.AllocsPerRun(10, s.NamesChanged); n > maxQuestions { // the texts of the questions
		t.Errorf("%v allocations without another answer", n)
	}
	a.set("n0.example.com", "10.2.0.1:0")
	s.NamesChanged()
	if up := s.Flush(); up == nil || len(up.Put) != 1 {
		t.Errorf("with another answer: %+v", up)
	}
}

// Endpoints by name have bounds over all slices of a Service, of a namespace and of a node. What they would exceed is
// not made, and said.
func TestEndpointsByNameAreBoundedInAll(t *testing.T) {
	a := &answers{map[ServiceName][]NameQuestion{}, map[string][]netip.AddrPort{}}
	var targets []string
	for i := range 10 {
		targets = append(targets, fmt.Sprintf("10.0.0.%d:0", i+1))
	}
	a.set("a.example.com", targets...)
	s := NewStore(Options{Names: a, Supported: ^Feature(0), Limits: Limits{Names: Limit{Total: 60, Namespace: 40, Service: 30}}})
	set := func(ns, name string, slices int, created int64) {
		svc := aService(ns+"/"+name, "http:80")
		svc.CreationTimestamp = metav1.Unix(created, 0)
		s.SetService(svc)
		for i := range slices {
			d := aSlice(fmt.Sprintf("%s/%s-%d", ns, name, i), name, "http:8080", "a.example.com")
			d.AddressType = discoveryv1.AddressTypeFQDN
			s.SetSlice(d)
		}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		s.Flush()
		var got []string
		for _, svc := range s.All() {
			got = append(got, fmt.Sprintf("%s %d %s", svc.Name, len(svc.Ports[0].Endpoints), svc.Refused))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%q, want\n%q", when, got, want)
		}
		made := 0
		for _, d := range s.named.slices {
			for _, m := range d.named.made {
				made += len(m.endpoints)
			}
		}
		if made > 60 || made != s.Stats().NamedEndpoints {
			t.Errorf("%s: %d endpoints are made, %d counted", when, made, s.Stats().NamedEndpoints)
		}
	}
	const (
		large     = "asks for more than the 30 endpoints by name that a Service may have"
		namespace = "older Services of the namespace leave too few of the 40 endpoints by name that a namespace may have"
		node      = "older Services leave too few of the 60 endpoints by name of a node"
	)
	set("x", "first", 3, 1)
	set("x", "large", 4, 2)
	set("x", "second", 2, 3)
	set("x", "third", 1, 4)
	set("y", "fourth", 3, 5)
	expect("at first", "x/first 10 ", "x/large 0 "+large, "x/second 0 "+namespace, "x/third 10 ", "y/fourth 0 "+node)
	a.set("a.example.com", targets[:5]...)
	s.NamesChanged()
	expect("with fewer addresses", "x/first 5 ", "x/large 5 ", "x/second 0 "+namespace, "x/third 5 ", "y/fourth 5 ")
	s.DeleteService("x", "first")
	s.DeleteService("x", "large")
	expect("without older Services", "x/second 5 ", "x/third 5 ", "y/fourth 5 ")
	for _, svc := range []string{"x/second", "x/third", "y/fourth"} {
		ns, name := split(svc)
		s.DeleteService(ns, name)
	}
	expect("without Services")
	if len(s.named.byAddr) > 0 || s.demands.total != (demand{}) {
		t.Errorf("left: %v, %+v", s.named.byAddr, s.demands.total)
	}
}
