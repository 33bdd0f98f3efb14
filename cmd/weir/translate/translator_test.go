package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

var (
	node1 = netip.MustParseAddr("192.0.2.1")
	node2 = netip.MustParseAddr("192.0.2.2")
	node6 = netip.MustParseAddr("2001:db8::1")
)

// ep is "10.1.1.1:80 node zone hint": ready unless it ends in "!" (not ready)
// or "~" (terminating, serving).
func ep(text string) topology.Endpoint {
	f := append(strings.Fields(text), "", "", "")
	e := topology.Endpoint{Ready: true, Serving: true}
	switch addr := f[0]; addr[len(addr)-1] {
	case '!':
		e.Ready, e.Serving = false, false
	case '~':
		e.Ready, e.Terminating = false, true
	}
	e.AddrPort = netip.MustParseAddrPort(strings.TrimRight(f[0], "!~"))
	e.NodeName, e.Zone = f[1], f[2]
	e.Labels = map[string]string{topology.LabelHostname: f[1], topology.LabelZone: f[2]}
	if f[3] != "" {
		e.HintZones = []string{f[3]}
	}
	return e
}

func service(name string, change func(*discovery.Service), eps ...string) *discovery.Service {
	svc := &discovery.Service{
		Name:  discovery.ServiceName{Namespace: "ns", Name: name},
		Ports: []discovery.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
	}
	svc.Policy.External = true
	for _, text := range eps {
		svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, ep(text))
	}
	if change != nil {
		change(svc)
	}
	return svc
}

// show is a batch in words, a line per frontend.
func show(b Batch) []string {
	var out []string
	for _, s := range b.Put {
		out = append(out, "put "+s.Name)
		for _, f := range s.Frontends {
			p := s.Pools[f.Pool]
			line := fmt.Sprintf("%v %v/%d -> %s", f.Kind, f.AddrPort, f.Proto, p.Tier)
			for _, e := range p.Endpoints {
				line += " " + e.AddrPort.String()
				if e.Weight != 1 {
					line += fmt.Sprintf("*%d", e.Weight)
				}
				if e.Local {
					line += "(local)"
				}
			}
			if len(p.Endpoints) == 0 {
				line += " " + p.OnEmpty.String()
			}
			out = append(out, line)
		}
		if len(s.Listed) > 0 {
			line := "listed"
			for _, l := range s.Listed {
				line += fmt.Sprintf(" %v/%d", l.AddrPort, l.Proto)
			}
			out = append(out, line)
		}
	}
	for _, name := range b.Delete {
		out = append(out, "delete "+name)
	}
	for _, c := range b.Complaints {
		for _, p := range c.Problems {
			out = append(out, fmt.Sprintf("%s %s: %s", p.Kind, c.Service, p.Reason))
		}
	}
	return out
}

func expect(t *testing.T, b Batch, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, show(b)); diff != "" {
		t.Errorf("batch (-want +got):\n%s", diff)
	}
}

func update(put ...*discovery.Service) *discovery.Update { return &discovery.Update{Put: put} }

func addrs(text ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range text {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func asUDP(s *discovery.Service) { s.Ports[0].Protocol = "UDP" }

func TestFrontendsOfAService(t *testing.T) {
	all := func(s *discovery.Service) {
		s.LoadBalancerIPs = addrs("198.51.100.1")
		s.ExternalIPs = addrs("203.0.113.1")
		s.ClusterIPs = addrs("10.96.0.1")
	}
	for _, c := range []struct {
		name string
		opts Options
		svc  *discovery.Service
		want []string
	}{
		{"node port and load balancer", Options{NodeAddresses: []netip.Addr{node1, node2}}, service("web", all, "10.1.1.1:8080 a"), []string{
			"put ns/web",
			"NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:8080(local)",
			"NodePort 192.0.2.2:30080/6 -> all 10.1.1.1:8080(local)",
			"LoadBalancer 198.51.100.1:80/6 -> all 10.1.1.1:8080(local)",
		}},
		{"cluster and external IPs when told", Options{ClusterIPs: true, ExternalIPs: true}, service("web", all, "10.1.1.1:8080 b"), []string{
			"put ns/web",
			"LoadBalancer 198.51.100.1:80/6 -> all 10.1.1.1:8080",
			"ExternalIP 203.0.113.1:80/6 -> all 10.1.1.1:8080",
			"ClusterIP 10.96.0.1:80/6 -> all 10.1.1.1:8080",
		}},
		{"UDP", Options{NodeAddresses: []netip.Addr{node1}}, service("web", func(s *discovery.Service) { s.Ports[0].Protocol = "UDP" }, "10.1.1.1:53"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/17 -> all 10.1.1.1:53"}},
		{"no endpoint is refused", Options{NodeAddresses: []netip.Addr{node1}}, service("web", nil), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> none Reject"}},
		{"not ready endpoints are listed", Options{NodeAddresses: []netip.Addr{node1}}, service("web", nil, "10.1.1.1:80", "10.1.1.2:80!", "10.1.1.3:80~"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80", "listed 10.1.1.2:80/6 10.1.1.3:80/6"}},
		{"not serving ones are not of UDP", Options{NodeAddresses: []netip.Addr{node1}}, service("web", asUDP, "10.1.1.1:53", "10.1.1.2:53!", "10.1.1.3:53~"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/17 -> all 10.1.1.1:53", "listed 10.1.1.3:53/17"}},
		{"but of UDP without another endpoint", Options{NodeAddresses: []netip.Addr{node1}}, service("web", asUDP, "10.1.1.2:53!"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/17 -> none Reject", "listed 10.1.1.2:53/17"}},
		{"and of UDP with names in connection IDs", Options{NodeAddresses: []netip.Addr{node1}}, service("web", func(s *discovery.Service) {
			asUDP(s)
			s.Options.QUICConnectionID = discovery.QUICConnectionID{Offset: 1, Length: 4}
		}, "10.1.1.1:53", "10.1.1.2:53!"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/17 -> all 10.1.1.1:53", "listed 10.1.1.2:53/17"}},
		{"and of UDP that is not translated", Options{}, service("web", func(s *discovery.Service) {
			asUDP(s)
			s.LoadBalancerIPs, s.Options.ForwardingMode = addrs("198.51.100.1"), "gue"
		}, "10.1.1.1:80", "10.1.1.2:80!"), []string{
			"put ns/web", "LoadBalancer 198.51.100.1:80/17 -> all 10.1.1.1:80", "listed 10.1.1.2:80/17"}},
		{"terminating ones when none is ready", Options{NodeAddresses: []netip.Addr{node1}}, service("web", nil, "10.1.1.2:80!", "10.1.1.3:80~"), []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> terminating 10.1.1.3:80", "listed 10.1.1.2:80/6"}},
		{"families apart", Options{NodeAddresses: []netip.Addr{node1, node6}}, service("web", func(s *discovery.Service) {
			s.LoadBalancerIPs = addrs("2001:db8::100")
		}, "10.1.1.1:80", "[fd00::1]:80"), []string{
			"put ns/web",
			"NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80",
			"NodePort [2001:db8::1]:30080/6 -> all [fd00::1]:80",
			"LoadBalancer [2001:db8::100]:80/6 -> all [fd00::1]:80"}},
		{"single-stack by cluster IP", Options{NodeAddresses: []netip.Addr{node1, node6}}, service("web", func(s *discovery.Service) {
			s.ClusterIPs, s.Families = addrs("10.96.0.1"), discovery.IPv4
		}, "10.1.1.1:80"), []string{"put ns/web", "NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80"}},
		{"dual-stack by cluster IPs without endpoints", Options{NodeAddresses: []netip.Addr{node1, node6}}, service("web", func(s *discovery.Service) {
			s.ClusterIPs, s.Families = addrs("10.96.0.1", "fd00:96::1"), discovery.IPv4|discovery.IPv6
		}), []string{"put ns/web", "NodePort 192.0.2.1:30080/6 -> none Reject", "NodePort [2001:db8::1]:30080/6 -> none Reject"}},
		{"load balancer of its class", Options{LoadBalancerClass: "weir.dev/weir"}, service("web", func(s *discovery.Service) {
			all(s)
			s.LoadBalancerClass = "weir.dev/weir"
		}, "10.1.1.1:80"), []string{"put ns/web", "LoadBalancer 198.51.100.1:80/6 -> all 10.1.1.1:80"}},
		{"load balancer of another class keeps its node port", Options{LoadBalancerClass: "weir.dev/weir", NodeAddresses: []netip.Addr{node1}},
			service("web", all, "10.1.1.1:80"), []string{"put ns/web", "NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80",
				`other-class ns/web: is "" and loadBalancerClass of the configuration is "weir.dev/weir": the load balancer addresses are not served`}},
		{"headless", Options{ClusterIPs: true}, service("web", func(s *discovery.Service) { s.Headless = true }, "10.1.1.1:80"), nil},
		{"no frontend here", Options{}, service("web", nil, "10.1.1.1:80"), nil},
		{"unsupported as a whole", Options{NodeAddresses: []netip.Addr{node1}}, service("web", func(s *discovery.Service) {
			s.Unsupported = "spec.loadBalancerSourceRanges"
		}, "10.1.1.1:80"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Node.Name = "a"
			expect(t, New(c.opts).Apply(update(c.svc)), c.want...)
		})
	}
}

// KEP-1669, KEP-2086.
func TestPoliciesPerKindOfFrontend(t *testing.T) {
	opts := Options{Node: topology.Node{Name: "a"}, NodeAddresses: []netip.Addr{node1}, ClusterIPs: true}
	for _, c := range []struct {
		name               string
		external, internal bool
		eps                []string
		want               []string
	}{
		{"external local", true, false, []string{"10.1.1.1:80 a", "10.1.1.2:80 b"}, []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80(local)", "ClusterIP 10.96.0.1:80/6 -> all 10.1.1.1:80(local) 10.1.1.2:80"}},
		{"internal local", false, true, []string{"10.1.1.1:80 a", "10.1.1.2:80 b"}, []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> all 10.1.1.1:80(local) 10.1.1.2:80", "ClusterIP 10.96.0.1:80/6 -> all 10.1.1.1:80(local)"}},
		{"local without a local one drops", true, false, []string{"10.1.1.2:80 b"}, []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> none Drop", "ClusterIP 10.96.0.1:80/6 -> all 10.1.1.2:80"}},
		{"local without any refuses", true, true, []string{"10.1.1.2:80! b"}, []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> none Reject", "ClusterIP 10.96.0.1:80/6 -> none Reject", "listed 10.1.1.2:80/6"}},
		{"local terminating", true, false, []string{"10.1.1.1:80~ a", "10.1.1.2:80 b"}, []string{
			"put ns/web", "NodePort 192.0.2.1:30080/6 -> terminating 10.1.1.1:80(local)", "ClusterIP 10.96.0.1:80/6 -> all 10.1.1.2:80"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service("web", func(s *discovery.Service) {
				s.ClusterIPs = addrs("10.96.0.1")
				s.Policy.ExternalLocal, s.Policy.InternalLocal = c.external, c.internal
			}, c.eps...)
			expect(t, New(opts).Apply(update(svc)), c.want...)
		})
	}
}

// KEP-536: no match is refused, though there are endpoints.
func TestTopologyKeysWithoutMatchRefuse(t *testing.T) {
	svc := service("web", func(s *discovery.Service) { s.Policy.TopologyKeys = []string{topology.LabelHostname} }, "10.1.1.2:80 b z")
	tr := New(Options{Node: topology.Node{Name: "a", Labels: map[string]string{topology.LabelHostname: "a"}}, NodeAddresses: []netip.Addr{node1}})
	expect(t, tr.Apply(update(svc)), "put ns/web", "NodePort 192.0.2.1:30080/6 -> none Reject", "listed 10.1.1.2:80/6")
}

func TestSharesBecomeWeights(t *testing.T) {
	svc := service("web", func(s *discovery.Service) {
		s.Policy.Distribution, s.Policy.MinReadyPercent = topology.PreferSameNode, 100
	}, "10.1.1.1:80 a z", "10.1.1.2:80! a z", "10.1.1.3:80 b z")
	tr := New(Options{Node: topology.Node{Name: "a", Labels: map[string]string{topology.LabelZone: "z"}}, NodeAddresses: []netip.Addr{node1}})
	b := tr.Apply(update(svc))
	p := b.Put[0].Pools[0]
	if len(p.Endpoints) != 2 || p.Endpoints[0].Weight+p.Endpoints[1].Weight != shareUnit || p.Endpoints[0].Weight < shareUnit/2 {
		t.Errorf("pool %+v", p)
	}
}

func TestServicesComeInOrderOfTheirNames(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}})
	b := tr.Apply(update(service("b", nil), service("a", nil)))
	if len(b.Put) != 2 || b.Put[0].Name != "ns/a" {
		t.Fatalf("%q", show(b))
	}
	// So the table gives the frontend that both claim to the first.
	change, err := table.New(table.Config{}).Apply(b.Put, b.Delete)
	if err != nil || len(change.Errors) != 1 || change.Errors[0].Service != "ns/b" {
		t.Errorf("%v %v", change.Errors, err)
	}
}

func TestServiceThatLosesItsFrontendsIsDeletedOnce(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}})
	tr.Apply(update(service("web", nil)))
	gone := update(service("web", func(s *discovery.Service) { s.Ports[0].NodePort = 0 }))
	expect(t, tr.Apply(gone), "delete ns/web")
	if b := tr.Apply(gone); !b.Empty() {
		t.Errorf("%q", show(b))
	}
	tr.Apply(update(service("web", nil)))
	expect(t, tr.Apply(update(service("web", func(s *discovery.Service) { s.Unsupported = "x" }))),
		"delete ns/web")
	b := tr.Apply(&discovery.Update{Deleted: []discovery.ServiceName{{Namespace: "ns", Name: "web"}}})
	if !b.Empty() {
		t.Errorf("%q", show(b))
	}
}

func TestNodeLabelsConcernWhatDependsOnThemAlone(t *testing.T) {
	tr := New(Options{Node: topology.Node{Name: "a"}, NodeAddresses: []netip.Addr{node1}})
	tr.Apply(update(
		service("plain", nil, "10.1.1.1:80 b z"),
		service("hints", func(s *discovery.Service) { s.Ports[0].NodePort = 30081 }, "10.1.1.1:80 b z1 z1", "10.1.1.2:80 c z2 z2"),
		service("keys", func(s *discovery.Service) {
			s.Ports[0].NodePort, s.Policy.TopologyKeys = 30082, []string{topology.LabelZone}
		}, "10.1.1.1:80 b z1"),
	))
	node := &discovery.Node{Node: topology.Node{Name: "a", Labels: map[string]string{topology.LabelZone: "z1"}}}
	expect(t, tr.Apply(&discovery.Update{Node: node}),
		"put ns/hints", "NodePort 192.0.2.1:30081/6 -> same-zone 10.1.1.1:80", "listed 10.1.1.2:80/6",
		"put ns/keys", "NodePort 192.0.2.1:30082/6 -> topology-key:topology.kubernetes.io/zone 10.1.1.1:80")
	if b := tr.Apply(&discovery.Update{Node: node}); !b.Empty() {
		t.Errorf("the same labels: %q", show(b))
	}
}

// A batch must hold together although its memory is used again and again.
func TestLargeBatchIsSound(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1, node2}})
	for range 3 {
		var put []*discovery.Service
		for i := range 500 {
			svc := service(fmt.Sprintf("s%03d", i), func(s *discovery.Service) { s.Ports[0].NodePort = uint16(20000 + i) })
			for j := range 50 {
				svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, ep(fmt.Sprintf("10.%d.%d.%d:80", i/250+1, i%250, j+1)))
			}
			put = append(put, svc)
		}
		b := tr.Apply(&discovery.Update{Put: put})
		for i, s := range b.Put {
			if len(s.Frontends) != 2 || len(s.Pools) != 1 || len(s.Pools[0].Endpoints) != 50 || len(s.Listed) != 0 {
				t.Fatalf("%s: %d frontends, %d pools", s.Name, len(s.Frontends), len(s.Pools))
			}
			for j, e := range s.Pools[0].Endpoints {
				if want := put[i].Ports[0].Endpoints[j].AddrPort; e.AddrPort != want {
					t.Fatalf("%s: endpoint %v, want %v", s.Name, e.AddrPort, want)
				}
			}
			if s.Frontends[0].AddrPort != netip.AddrPortFrom(node1, uint16(20000+i)) {
				t.Fatalf("%s: %v", s.Name, s.Frontends[0])
			}
		}
	}
}

func BenchmarkApplyOneOf10000(b *testing.B) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1, node2}})
	var put []*discovery.Service
	for i := range 10000 {
		svc := service(fmt.Sprintf("s%05d", i), nil)
		for j := range 25 {
			svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, ep(fmt.Sprintf("10.%d.%d.%d:80", i/250+1, i%250, j+1)))
		}
		put = append(put, svc)
	}
	tr.Apply(update(put...))
	one := update(put[77])
	b.ReportAllocs()
	for b.Loop() {
		tr.Apply(one)
	}
}

func TestServicesAreThoseWithFrontends(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}})
	tr.Apply(update(service("a", nil), service("b", func(s *discovery.Service) { s.Headless = true })))
	got := tr.Services()
	if len(got) != 1 || !slices.ContainsFunc(got, func(s *discovery.Service) bool { return s.Name.Name == "a" }) {
		t.Errorf("%v", got)
	}
}

// Clients of Local policy are to be seen by their addresses; who wants
// something else says so.
func TestForwardingMode(t *testing.T) {
	local := func(s *discovery.Service) { s.Policy.ExternalLocal = true }
	asked := func(mode string, more func(*discovery.Service)) func(*discovery.Service) {
		return func(s *discovery.Service) {
			s.Options.ForwardingMode = mode
			if more != nil {
				more(s)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		byRule  conntrack.Mode
		change  func(*discovery.Service)
		want    conntrack.Mode // of the node port and the load balancer IP
		cluster conntrack.Mode // of the ClusterIP
	}{
		{"Cluster policy", 0, nil, conntrack.ModeNAT, conntrack.ModeNAT},
		{"Local policy", conntrack.ModeNAT, local, conntrack.ModeDNAT, conntrack.ModeNAT},
		{"Local policy that asks for nat", 0, asked("nat", local), conntrack.ModeNAT, conntrack.ModeNAT},
		{"Local policy where gue is configured, on the node's own addresses", conntrack.ModeGUE, local, conntrack.ModeDNAT, conntrack.ModeNAT},
		{"dnat asked for", 0, asked("dnat", nil), conntrack.ModeDNAT, conntrack.ModeDNAT},
		{"dnat configured", conntrack.ModeDNAT, nil, conntrack.ModeDNAT, conntrack.ModeDNAT},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := New(Options{Node: topology.Node{Name: "n"}, NodeAddresses: []netip.Addr{node1, node2}, ClusterIPs: true, Mode: tt.byRule})
			b := tr.Apply(&discovery.Update{Put: []*discovery.Service{service("a", func(s *discovery.Service) {
				s.LoadBalancerIPs, s.ClusterIPs = []netip.Addr{node2}, []netip.Addr{netip.MustParseAddr("10.96.0.1")}
				if tt.change != nil {
					tt.change(s)
				}
			}, "10.1.1.1:80 n")}})
			for _, f := range b.Put[0].Frontends {
				want := tt.want
				if f.Kind == table.ClusterIP {
					want = tt.cluster
				}
				if f.Mode != want {
					t.Errorf("%v: mode %d, want %d", f.Kind, f.Mode, want)
				}
			}
		})
	}
}
