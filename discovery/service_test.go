package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// given is default/web with ports http and https, changed by f.
func given(f func(*corev1.Service)) *corev1.Service {
	svc := aService("web", "http:80", "https:443")
	if f != nil {
		f(svc)
	}
	return svc
}

// read is what a store with these features makes of a Service alone.
func read(features Feature, svc *corev1.Service) *Service {
	s := NewStore(Options{Supported: features})
	s.SetService(svc)
	s.Flush()
	return web(s)
}

func TestTrafficPolicyOfAService(t *testing.T) {
	type S = corev1.Service
	local := ptr(corev1.ServiceInternalTrafficPolicyLocal)
	bare := func(s *S) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	ingress := func(s *S, ip string, mode *corev1.LoadBalancerIPMode) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: mode})
	}
	for _, test := range []struct {
		name string
		f    func(*S)
		want topology.Policy
	}{
		{"node ports", nil, topology.Policy{External: true}},
		{"cluster IP alone", bare, topology.Policy{}},
		{"internal Local", func(s *S) { bare(s); s.Spec.InternalTrafficPolicy = local }, topology.Policy{InternalLocal: true}},
		{"external Local", func(s *S) { s.Spec.ExternalTrafficPolicy = "Local" }, topology.Policy{External: true, ExternalLocal: true}},
		{"external Local means nothing for a cluster IP", func(s *S) { bare(s); s.Spec.ExternalTrafficPolicy = "Local" }, topology.Policy{}},
		{"but does for external IPs", func(s *S) {
			bare(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.ExternalIPs = "Local", []string{"192.0.2.1"}
		}, topology.Policy{External: true, ExternalLocal: true}},
		{"an ingress IP makes it reachable", func(s *S) { bare(s); s.Spec.Type = "LoadBalancer"; ingress(s, "192.0.2.1", nil) }, topology.Policy{External: true}},
		{"of mode VIP as well", func(s *S) {
			bare(s)
			s.Spec.Type = "LoadBalancer"
			ingress(s, "192.0.2.1", ptr(corev1.LoadBalancerIPModeVIP))
		}, topology.Policy{External: true}},
		{"of mode Proxy not", func(s *S) {
			bare(s)
			s.Spec.Type = "LoadBalancer"
			ingress(s, "192.0.2.1", ptr(corev1.LoadBalancerIPModeProxy))
		}, topology.Policy{}},
		{"a host name not", func(s *S) { bare(s); s.Spec.Type = "LoadBalancer"; ingress(s, "", nil) }, topology.Policy{}},
		{"one node port will do", func(s *S) { s.Spec.Ports[1].NodePort = 0 }, topology.Policy{External: true}},
		{"a type left out with node ports", func(s *S) { s.Spec.Type = ""; s.Spec.ExternalTrafficPolicy = "Local" }, topology.Policy{External: true, ExternalLocal: true}},
		{"annotations", func(s *S) {
			s.Annotations[AnnotationTopologyKeys] = " kubernetes.io/hostname, topology.kubernetes.io/zone,*"
			s.Annotations[AnnotationTrafficDistribution] = "PreferSameRegion"
			s.Annotations[AnnotationMinReadyPercent] = "50"
		}, topology.Policy{External: true, TopologyKeys: []string{host, zone, "*"}, Distribution: topology.PreferSameRegion, MinReadyPercent: 50}},
		{"empty annotations", func(s *S) {
			s.Annotations[AnnotationTopologyKeys] = ""
			s.Annotations[AnnotationTrafficDistribution] = ""
			s.Annotations[AnnotationMinReadyPercent] = "0"
		}, topology.Policy{External: true}},
		{"spec.trafficDistribution acts through hints alone", func(s *S) { s.Spec.TrafficDistribution = ptr("PreferSameZone") }, topology.Policy{External: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := read(0, given(test.f))
			if !samePolicy(&svc.Policy, &test.want) {
				t.Errorf("got %+v, want %+v", svc.Policy, test.want)
			}
			wantErrors(t, svc.Errors)
		})
	}
}

func TestFrontendAddresses(t *testing.T) {
	svc := read(0, given(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerClass = "LoadBalancer", ptr("weir.dev/weir")
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "Local", 31000
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.1", []string{"10.96.0.1", "fd00:96::1"}
		s.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.1", "0.0.0.0", "x", "::ffff:192.0.2.2"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}, {IP: "127.0.0.1"}, {Hostname: "lb.example.com"}, {IP: "2001:db8::1"}}
	}))
	got := strings.TrimSpace(fmt.Sprintln(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs, svc.HealthCheckNodePort, svc.LoadBalancerClass))
	if want := "[10.96.0.1 fd00:96::1] [192.0.2.1 192.0.2.2] [198.51.100.1 2001:db8::1] 31000 weir.dev/weir"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	wantErrors(t, svc.Errors,
		`spec.externalIPs[1]: Duplicate value: "192.0.2.1"`,
		`spec.externalIPs[2]: Invalid value: "0.0.0.0": may not be unspecified`,
		`spec.externalIPs[3]: Invalid value: "x": must be a valid IP address`,
		`status.loadBalancer.ingress[1].ip: Invalid value: "127.0.0.1": may not be in the loopback range`)
}

func TestHealthCheckNodePortIsForLocalLoadBalancersOnly(t *testing.T) {
	for _, f := range []func(*corev1.Service){
		func(s *corev1.Service) { s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy = 31000, "Local" },
		func(s *corev1.Service) { s.Spec.HealthCheckNodePort, s.Spec.Type = 31000, "LoadBalancer" },
	} {
		if n := read(0, given(f)).HealthCheckNodePort; n != 0 {
			t.Errorf("port %d", n)
		}
	}
}

func TestHeadlessAndExternalNameServicesHaveNoEndpoints(t *testing.T) {
	slice := aSlice("web-1", "web", "http:8080", "10.0.0.1")
	s := load(given(func(s *corev1.Service) { s.Spec.Type, s.Spec.ClusterIP = "ClusterIP", "None"; clearNodePorts(s) }), slice)
	if svc := web(s); !svc.Headless || svc.ExternalName || show(svc) != "http:; https:" || len(svc.ClusterIPs) != 0 {
		t.Errorf("%+v", svc)
	}
	s = load(given(func(s *corev1.Service) { s.Labels[labelHeadless] = "" }), slice)
	if svc := web(s); svc.Headless || show(svc) == "http:; https:" {
		t.Errorf("with a cluster IP and the label: %+v", svc)
	}
	s = load(given(func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = "ExternalName", "example.com" }), slice)
	if svc := web(s); svc.Headless || !svc.ExternalName || len(svc.Ports) != 0 {
		t.Errorf("%+v", svc)
	}
}

func clearNodePorts(s *corev1.Service) {
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

func TestServicesOfOtherProxiesAreSkipped(t *testing.T) {
	labelled := given(func(s *corev1.Service) { s.Labels[labelServiceProxyName] = "weir" })
	if read(0, labelled) != nil {
		t.Error("took another's Service")
	}
	s := NewStore(Options{ServiceProxyName: "weir"})
	feed(s, labelled)
	if s.Flush(); web(s) == nil {
		t.Fatal("did not take its own")
	}
	feed(s, given(nil))
	if up := s.Flush(); len(up.Deleted) != 1 || web(s) != nil {
		t.Errorf("kept a Service that has lost the label: %+v", up)
	}
}

// What Weir cannot honour stays with the kernel as a whole.
func TestUnsupportedFields(t *testing.T) {
	balancer := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Type, s.Spec.LoadBalancerSourceRanges = "LoadBalancer", ranges }
	}
	affinity := func(s *corev1.Service) { s.Spec.SessionAffinity = "ClientIP" }
	mode := func(m string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations[AnnotationForwardingMode] = m }
	}
	for _, test := range []struct {
		name    string
		f       func(*corev1.Service)
		without string // Unsupported without features
		with    string // and with all
	}{
		{"plain", nil, "", ""},
		{"SCTP", func(s *corev1.Service) { s.Spec.Ports[1].Protocol = "SCTP" }, "spec.ports[1].protocol: SCTP", ""},
		{"affinity", affinity, "spec.sessionAffinity: ClientIP", ""},
		{"source ranges", balancer("192.0.2.0/24"), "spec.loadBalancerSourceRanges", ""},
		{"source ranges in the older annotation", func(s *corev1.Service) {
			s.Spec.Type, s.Annotations[annotationSourceRanges] = "LoadBalancer", "192.0.2.0/24, 198.51.100.0/24"
		}, "spec.loadBalancerSourceRanges", ""},
		{"source ranges of everything are none", balancer("0.0.0.0/0"), "", ""},
		{"for one family", balancer("0.0.0.0/0", "192.0.2.0/24"), "", ""},
		{"but not for the other", balancer("0.0.0.0/0", "2001:db8::/32"), "spec.loadBalancerSourceRanges", ""},
		{"source ranges mean nothing to a NodePort Service", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }, "", ""},
		{"source ranges guard a load balancer address whatever the type", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = "", []string{"192.0.2.0/24"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.10"}}
		}, "spec.loadBalancerSourceRanges", ""},
		{"source ranges that cannot be read", balancer("everybody"), "spec.loadBalancerSourceRanges", "spec.loadBalancerSourceRanges"},
		{"mode nat", mode("nat"), "", ""},
		{"mode gue", mode("gue"), "metadata.annotations[weir.dev/forwarding-mode]: gue", ""},
		{"an unknown mode", mode("fast"), "metadata.annotations[weir.dev/forwarding-mode]", "metadata.annotations[weir.dev/forwarding-mode]"},
		{"bad topology keys", func(s *corev1.Service) { s.Annotations[AnnotationTopologyKeys] = "*,a" }, "spec.topologyKeys", "spec.topologyKeys"},
		{"an unknown policy", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "Near" }, "spec.externalTrafficPolicy", "spec.externalTrafficPolicy"},
		{"the first field is named", func(s *corev1.Service) { affinity(s); mode("gue")(s); s.Spec.Ports[0].Protocol = "SCTP" }, "spec.ports[0].protocol: SCTP", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := read(0, given(test.f)).Unsupported; got != test.without {
				t.Errorf("without features: got %q, want %q", got, test.without)
			}
			if got := read(^Feature(0), given(test.f)).Unsupported; got != test.with {
				t.Errorf("with all features: got %q, want %q", got, test.with)
			}
		})
	}
}

func TestSourceRangesAndAffinityAreRead(t *testing.T) {
	svc := read(^Feature(0), given(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.SessionAffinity = "LoadBalancer", "ClientIP"
		s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.1/24 ", "2001:db8::/32", "010.0.0.0/8"}
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(60))}}
	}))
	if got := fmt.Sprint(svc.SourceRanges, svc.AffinitySeconds); got != "[192.0.2.0/24 2001:db8::/32 10.0.0.0/8] 60" {
		t.Error(got)
	}
	if n := read(^Feature(0), given(func(s *corev1.Service) { s.Spec.SessionAffinity = "ClientIP" })).AffinitySeconds; n != 10800 {
		t.Errorf("default timeout %d", n)
	}
}

func TestInvalidServices(t *testing.T) {
	type S = corev1.Service
	port := func(f func(*corev1.ServicePort)) func(*S) { return func(s *S) { f(&s.Spec.Ports[1]) } }
	annotate := func(name, value string) func(*S) { return func(s *S) { s.Annotations[name] = value } }
	for _, test := range []struct {
		name  string
		f     func(*S)
		fresh string // what is served without an older version
		want  string // the error
	}{
		{"port 0", port(func(p *corev1.ServicePort) { p.Port = 0 }), "http: 10.0.0.1:8080", "spec.ports[1].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{"port out of range", port(func(p *corev1.ServicePort) { p.Port = 70000 }), "http: 10.0.0.1:8080", "spec.ports[1].port: Invalid value: 70000"},
		{"node port out of range", port(func(p *corev1.ServicePort) { p.NodePort = -1 }), "http: 10.0.0.1:8080", "spec.ports[1].nodePort: Invalid value: -1"},
		{"node port twice", port(func(p *corev1.ServicePort) { p.NodePort = 30000 }), "http: 10.0.0.1:8080", "spec.ports[1].nodePort: Duplicate value: 30000"},
		{"name twice", port(func(p *corev1.ServicePort) { p.Name = "http" }), "http: 10.0.0.1:8080", `spec.ports[1].name: Duplicate value: "http"`},
		{"no name", port(func(p *corev1.ServicePort) { p.Name = "" }), "http: 10.0.0.1:8080", "spec.ports[1].name: Required value"},
		{"port twice", port(func(p *corev1.ServicePort) { p.Port = 80 }), "http: 10.0.0.1:8080", `spec.ports[1]: Duplicate value: "80/TCP"`},
		{"protocol", port(func(p *corev1.ServicePort) { p.Protocol = "ICMP" }), "http: 10.0.0.1:8080", `spec.ports[1].protocol: Unsupported value: "ICMP"`},
		{"node port of a ClusterIP Service", func(s *S) { s.Spec.Type = "ClusterIP"; s.Spec.Ports[0].NodePort = 0 }, "http: 10.0.0.1:8080", "spec.ports[1].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		{"type", func(s *S) { s.Spec.Type = "Odd" }, "unsupported", `spec.type: Unsupported value: "Odd"`},
		{"affinity", func(s *S) { s.Spec.SessionAffinity = "Cookie" }, "unsupported", `spec.sessionAffinity: Unsupported value: "Cookie"`},
		{"affinity timeout", func(s *S) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(86401))}}
		}, "unsupported", "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401"},
		{"topology keys", annotate(AnnotationTopologyKeys, "a,a"), "unsupported", `spec.topologyKeys[1]: Duplicate value: "a"`},
		{"topology keys with external Local", func(s *S) {
			s.Annotations[AnnotationTopologyKeys], s.Spec.ExternalTrafficPolicy = "a", "Local"
		}, "unsupported", "spec.topologyKeys: Forbidden: may not be specified when `externalTrafficPolicy=Local`"},
		{"distribution", annotate(AnnotationTrafficDistribution, "Nearby"), "http: 10.0.0.1:8080; https: 10.0.0.1:8443", `metadata.annotations[weir.dev/traffic-distribution]: Unsupported value: "Nearby"`},
		{"percent", annotate(AnnotationMinReadyPercent, "101"), "http: 10.0.0.1:8080; https: 10.0.0.1:8443", `metadata.annotations[weir.dev/min-ready-percent]: Invalid value: "101": must be a number between 0 and 100, inclusive`},
		{"mode", annotate(AnnotationForwardingMode, "x"), "unsupported", `metadata.annotations[weir.dev/forwarding-mode]: Unsupported value: "x"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			slice := aSlice("web-1", "web", "http:8080 https:8443", "10.0.0.1")
			s := load(given(test.f), slice)
			got := show(web(s))
			if web(s).Unsupported != "" {
				got = "unsupported"
			}
			if got != test.fresh {
				t.Errorf("at first: got %q, want %q", got, test.fresh)
			}
			wantErrors(t, web(s).Errors, test.want)

			good := given(func(s *S) { s.Annotations[AnnotationMinReadyPercent] = "30" })
			s = load(good, slice)
			feed(s, given(test.f))
			if s.Flush(); show(web(s)) != "http: 10.0.0.1:8080; https: 10.0.0.1:8443" || web(s).Unsupported != "" {
				t.Errorf("after a good one: %q, unsupported %q", show(web(s)), web(s).Unsupported)
			}
			if n := web(s).Policy.MinReadyPercent; n != 30 {
				t.Errorf("after a good one: min-ready-percent %d", n)
			}
			wantErrors(t, web(s).Errors, test.want)
			feed(s, given(nil))
			s.Flush()
			wantErrors(t, web(s).Errors)
			if n := web(s).Policy.MinReadyPercent; n != 0 {
				t.Errorf("after a new good one: min-ready-percent %d", n)
			}
		})
	}
}

func TestBadAnnotationsDoNotHoldUpTheRest(t *testing.T) {
	s := load(given(func(s *corev1.Service) { s.Annotations[AnnotationTopologyKeys] = host }))
	feed(s, given(func(s *corev1.Service) {
		s.Annotations[AnnotationTopologyKeys] = "a b"
		s.Spec.Ports = s.Spec.Ports[:1]
		s.Spec.Ports[0].NodePort = 31234
	}))
	s.Flush()
	svc := web(s)
	if len(svc.Ports) != 1 || svc.Ports[0].NodePort != 31234 || !slices.Equal(svc.Policy.TopologyKeys, []string{host}) || svc.Unsupported != "" {
		t.Errorf("%+v", svc)
	}
	// The keys as they were do not go with the new policy.
	feed(s, given(func(s *corev1.Service) {
		s.Annotations[AnnotationTopologyKeys] = "a b"
		s.Spec.ExternalTrafficPolicy = "Local"
	}))
	if s.Flush(); web(s).Unsupported != "spec.topologyKeys" {
		t.Errorf("%+v", web(s))
	}
}

func TestEndpointErrorsAreAddedToTheServices(t *testing.T) {
	s := load(given(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"x"} }),
		aSlice("web-2", "web", "http:8080", "127.0.0.2"), aSlice("web-1", "web", "http:8080", "127.0.0.1"))
	wantErrors(t, web(s).Errors, "spec.externalIPs[0]", "web-1: endpoints[0]", "web-2: endpoints[0]")
}

func TestLongValuesAreCut(t *testing.T) {
	svc := read(0, given(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{strings.Repeat("x", 1<<20)} }))
	if n := len(svc.Errors[0]); n > 250 {
		t.Errorf("an error of %d bytes", n)
	}
}

func TestAModeThatKeepsPortsNeedsEndpointsOnThem(t *testing.T) {
	for _, tt := range []struct {
		mode, target string
		wrong        bool
	}{
		{"ipip", "10.1.1.1:80", false},
		{"ipip", "10.1.1.1:8080", true},
		{"l2dsr", "10.1.1.1:8080", true},
		{"nat", "10.1.1.1:8080", false},
		{"", "10.1.1.1:8080", false},
	} {
		s := Service{
			Ports:   []Port{{Port: 80, Endpoints: []topology.Endpoint{{AddrPort: netip.MustParseAddrPort(tt.target)}}}},
			Options: ServiceOptions{ForwardingMode: tt.mode},
		}
		if got := s.modeConflict(); (got != "") != tt.wrong {
			t.Errorf("%s to %s: %q", tt.mode, tt.target, got)
		}
	}
}
