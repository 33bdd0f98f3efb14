package discovery

import (
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// KEP-752: the union of a Service's slices.
func TestSlicesAreMerged(t *testing.T) {
	managed := func(s *discoveryv1.EndpointSlice, by string) *discoveryv1.EndpointSlice {
		s.Labels[discoveryv1.LabelManagedBy] = by
		return s
	}
	for _, test := range []struct {
		name    string
		objects []any
		want    string
	}{
		{"no slice", []any{aService("web", "http:80")}, "http:"},
		{"no Service", []any{aSlice("web-1", "web", "http:8080", "10.0.0.1")}, "none"},
		{"several slices, sorted by address", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.9\n10.0.0.1"), aSlice("web-2", "web", "http:8080", "10.0.0.5\n10.0.0.10")},
			"http: 10.0.0.1:8080 10.0.0.5:8080 10.0.0.9:8080 10.0.0.10:8080"},
		{"both families", []any{aService("web", "http:80"),
			aSlice("web-6", "web", "http:8080", "fd00::1"), aSlice("web-4", "web", "http:8080", "10.0.0.1")},
			"http: 10.0.0.1:8080 [fd00::1]:8080"},
		{"several managers", []any{aService("web", "http:80"),
			managed(aSlice("web-1", "web", "http:8080", "10.0.0.1"), "endpointslice-controller.k8s.io"),
			managed(aSlice("web-2", "web", "http:8080", "10.0.0.2"), "somebody.example.com")},
			"http: 10.0.0.1:8080 10.0.0.2:8080"},
		{"the same endpoint twice, once", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1 node=n1"), aSlice("web-2", "web", "http:8080", "10.0.0.1 node=n1")},
			"http: 10.0.0.1:8080@n1"},
		{"of duplicates the ready and not terminating wins", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1 ready=false serving=true terminating=true node=n1\n10.0.0.2 node=n2"),
			aSlice("web-2", "web", "http:8080", "10.0.0.1 node=n3\n10.0.0.2 ready=false node=n4")},
			"http: 10.0.0.1:8080@n3 10.0.0.2:8080@n2"},
		{"not terminating wins over terminating", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1 ready=false serving=true terminating=true node=n1"),
			aSlice("web-2", "web", "http:8080", "10.0.0.1 ready=false serving=false node=n2")},
			"http: 10.0.0.1:8080-@n2"},
		{"serving wins among the terminating", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1 ready=false serving=false terminating=true node=n1"),
			aSlice("web-2", "web", "http:8080", "10.0.0.1 ready=false serving=true terminating=true node=n2")},
			"http: 10.0.0.1:8080~@n2"},
		{"twice in one slice", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1 ready=false node=n1\n10.0.0.1 node=n2")}, "http: 10.0.0.1:8080@n2"},
		{"another namespace", []any{aService("web", "http:80"), aSlice("other/web-1", "web", "http:8080", "10.0.0.1")}, "http:"},
		{"another Service", []any{aService("web", "http:80"), aSlice("web-1", "api", "http:8080", "10.0.0.1")}, "http:"},
		{"ports match by name", []any{aService("web", "http:80", "metrics:9090"),
			aSlice("web-1", "web", "metrics:9000 http:8080 debug:6060", "10.0.0.1")},
			"http: 10.0.0.1:8080; metrics: 10.0.0.1:9000"},
		{"the number may differ from slice to slice", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1\n10.0.0.2"), aSlice("web-2", "web", "http:9090", "10.0.0.2\n10.0.0.3")},
			"http: 10.0.0.1:8080 10.0.0.2:8080 10.0.0.2:9090 10.0.0.3:9090"},
		{"a port without a name is nil", []any{aService("web", ":80"), aSlice("web-1", "web", "-:8080", "10.0.0.1")}, ": 10.0.0.1:8080"},
		{"or empty", []any{aService("web", ":80"), aSlice("web-1", "web", ":8080", "10.0.0.1")}, ": 10.0.0.1:8080"},
		{"and matches no name", []any{aService("web", "http:80"), aSlice("web-1", "web", "-:8080", "10.0.0.1")}, "http:"},
		{"protocols must match", []any{aService("web", "dns:53", "dnsu:53/UDP"),
			aSlice("web-1", "web", "dns:5353/UDP dnsu:5353/UDP", "10.0.0.1")}, "dns:; dnsu: 10.0.0.1:5353"},
		{"nil conditions", []any{aService("web", "http:80"),
			aSlice("web-1", "web", "http:8080", "10.0.0.1\n10.0.0.2 ready=false\n10.0.0.3 ready=false terminating=true")},
			"http: 10.0.0.1:8080 10.0.0.2:8080- 10.0.0.3:8080~"},
		{"of several addresses the first", []any{aService("web", "http:80"), func() any {
			s := aSlice("web-1", "web", "http:8080", "10.0.0.1")
			s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.2")
			return s
		}()}, "http: 10.0.0.1:8080"},
		{"leading zeros are decimal", []any{aService("web", "http:80"), aSlice("web-1", "web", "http:8080", "010.000.0.012")}, "http: 10.0.0.12:8080"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := load(test.objects...)
			if got := show(web(s)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			backwards := NewStore(Options{NodeName: "n1"})
			for i := len(test.objects) - 1; i >= 0; i-- {
				feed(backwards, test.objects[i])
			}
			wantWeb(t, backwards, test.want)
		})
	}
}

func TestSlicesOfOtherProxiesArePassedOver(t *testing.T) {
	labelled := func(key, value string) *discoveryv1.EndpointSlice {
		s := aSlice("web-1", "web", "http:8080", "10.0.0.1")
		if key != "" {
			s.Labels[key] = value
		}
		return s
	}
	s := load(aService("web", "http:80"), labelled("", ""))
	wantWeb(t, s, "http: 10.0.0.1:8080")
	feed(s, labelled(labelServiceProxyName, "other"))
	wantWeb(t, s, "http:")
	feed(s, labelled("", ""))
	wantWeb(t, s, "http: 10.0.0.1:8080")
	feed(s, labelled(labelHeadless, ""))
	wantWeb(t, s, "http:")
}

func TestEndpointMovesBetweenSlices(t *testing.T) {
	one := func(text string) any { return aSlice("web-1", "web", "http:8080", text) }
	two := func(text string) any { return aSlice("web-2", "web", "http:8080", text) }
	before := []any{aService("web", "http:80"), one("10.0.0.1\n10.0.0.2"), two("10.0.0.3")}
	const want = "http: 10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"
	t.Run("first in both", func(t *testing.T) {
		s := load(before...)
		feed(s, two("10.0.0.2\n10.0.0.3"))
		wantWeb(t, s, want)
		feed(s, one("10.0.0.1"))
		wantWeb(t, s, want)
	})
	t.Run("first in none", func(t *testing.T) {
		s := load(before...)
		feed(s, one("10.0.0.1"))
		wantWeb(t, s, "http: 10.0.0.1:8080 10.0.0.3:8080")
		feed(s, two("10.0.0.2\n10.0.0.3"))
		wantWeb(t, s, want)
	})
	t.Run("both within one flush is no change", func(t *testing.T) {
		s := load(before...)
		feed(s, one("10.0.0.1"), two("10.0.0.2\n10.0.0.3"))
		if up := s.Flush(); up != nil {
			t.Errorf("update %+v", up)
		}
	})
}

func TestRelabelledSliceLeavesItsService(t *testing.T) {
	s := load(aService("web", "http:80"), aService("api", "http:80"), aSlice("x", "web", "http:8080", "10.0.0.1"))
	feed(s, aSlice("x", "api", "http:8080", "10.0.0.1"))
	up := s.Flush()
	if len(up.Put) != 2 || show(up.Put[0]) != "http: 10.0.0.1:8080" || show(up.Put[1]) != "http:" {
		t.Fatalf("%+v", up)
	}
	bare := aSlice("x", "api", "http:8080", "10.0.0.1")
	delete(bare.Labels, discoveryv1.LabelServiceName)
	feed(s, bare)
	if up := s.Flush(); len(up.Put) != 1 || show(up.Put[0]) != "http:" {
		t.Fatalf("%+v", up)
	}
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0].String(), "EndpointSlice default/x: no label kubernetes.io/service-name") {
		t.Errorf("notes %v", notes)
	}
	s.DeleteSlice("default", "x")
	if len(s.Notes()) != 0 || s.Flush() != nil {
		t.Error("the note outlives the slice")
	}
}

func TestFQDNSlicesAreSkippedAndCounted(t *testing.T) {
	names := aSlice("web-names", "web", "http:8080", "example.com")
	names.AddressType = discoveryv1.AddressTypeFQDN
	s := load(aService("web", "http:80"), names, aSlice("web-1", "web", "http:8080", "10.0.0.1"))
	wantWeb(t, s, "http: 10.0.0.1:8080")
	wantErrors(t, web(s).Errors)
	wantErrors(t, web(s).Warnings, "addressType FQDN is skipped")
	if n := s.Stats().FQDNSlices; n != 1 {
		t.Errorf("counted %d", n)
	}
	s.DeleteSlice("default", "web-names")
	if s.Flush(); s.Stats().FQDNSlices != 0 || len(web(s).Warnings) != 0 {
		t.Error("the slice outlives itself")
	}
}

func TestBadPartsOfSlicesAreRefusedOneByOne(t *testing.T) {
	const good = "\n10.0.0.1"
	for _, test := range []struct{ name, ports, endpoint, want string }{
		{"no address", "http:8080", "nonsense", `endpoints[0].addresses[0]: Invalid value: "nonsense": must be a valid IP address`},
		{"unspecified", "http:8080", "0.0.0.0", "may not be unspecified (0.0.0.0)"},
		{"loopback", "http:8080", "127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"},
		{"link-local", "http:8080", "169.254.0.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{"link-local multicast", "http:8080", "224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"},
		{"multicast", "http:8080", "239.1.1.1", "may not be in the multicast range"},
		{"broadcast", "http:8080", "255.255.255.255", "may not be the limited broadcast address"},
		{"octet out of range", "http:8080", "10.0.0.256", `Invalid value: "10.0.0.256": must be a valid IP address`},
		{"an address with a prefix length", "http:8080", "10.0.0.1/24", `Invalid value: "10.0.0.1/24": must be a valid IP address`},
		{"port 0", "http:8080 x:0", "", "ports[1].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{"port too large", "http:8080 x:65536", "", "ports[1].port: Invalid value: 65536: must be between 1 and 65535, inclusive"},
		{"unknown protocol", "http:8080 x:1/ICMP", "", `ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`},
		{"a name twice", "http:8080 http:8081", "", `ports[1].name: Duplicate value: "http"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := load(aService("web", "http:80"), aSlice("web-1", "web", test.ports, test.endpoint+good))
			wantWeb(t, s, "http: 10.0.0.1:8080")
			wantErrors(t, web(s).Errors, test.want)
			if !strings.HasPrefix(web(s).Errors[0], "EndpointSlice default/web-1: ") {
				t.Errorf("the object is not named: %q", web(s).Errors[0])
			}
			feed(s, aSlice("web-1", "web", "http:8080", good))
			wantWeb(t, s, "http: 10.0.0.1:8080")
			wantErrors(t, web(s).Errors)
			if s.Stats().RefusedEndpoints != 0 {
				t.Errorf("stats %+v", s.Stats())
			}
		})
	}
}

func TestSliceOfTheWrongFamily(t *testing.T) {
	six := aSlice("web-6", "web", "http:8080", "fd00::1\n10.0.0.1\n::ffff:10.0.0.2\nfe80::1%eth0")
	four := aSlice("web-4", "web", "http:8080", "10.0.0.3")
	four.Endpoints = append(four.Endpoints, anEndpoint([]string{"fd00::2"}), discoveryv1.Endpoint{})
	odd := aSlice("web-9", "web", "http:8080", "10.0.0.4")
	odd.AddressType = "IPX"
	s := load(aService("web", "http:80"), six, four, odd)
	wantWeb(t, s, "http: 10.0.0.3:8080 [fd00::1]:8080")
	wantErrors(t, web(s).Errors,
		`web-4: endpoints[1].addresses[0]: Invalid value: "fd00::2": must be an IPv4 address`,
		"web-4: endpoints[2].addresses: Required value",
		`web-6: endpoints[1].addresses[0]: Invalid value: "10.0.0.1": must be an IPv6 address`,
		`web-6: endpoints[2].addresses[0]: Invalid value: "::ffff:10.0.0.2": must be an IPv6 address`,
		`web-6: endpoints[3].addresses[0]: Invalid value: "fe80::1%eth0"`,
		`web-9: addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6"`)
	if n := s.Stats().RefusedEndpoints; n != 5 {
		t.Errorf("%d refused", n)
	}
}

func TestManyBadEndpointsAreSummedUp(t *testing.T) {
	s := load(aService("web", "http:80"), aSlice("web-1", "web", "http:8080", strings.Repeat("127.0.0.1\n", 100)))
	errs := web(s).Errors
	if len(errs) != maxErrors+1 || !strings.HasSuffix(errs[maxErrors], "and 92 more") {
		t.Errorf("%q", errs)
	}
}

func TestPortWithoutNumberIsSkippedWithAWarning(t *testing.T) {
	s := load(aService("web", "http:80", "all:81"), aSlice("web-1", "web", "all: http:8080", "10.0.0.1"))
	wantWeb(t, s, "http: 10.0.0.1:8080; all:")
	wantErrors(t, web(s).Warnings, "ports[0].port: not set, which means all ports: skipped, as kube-proxy does")
}

func TestUnchangedSliceIsNoUpdate(t *testing.T) {
	text := "10.0.0.1 node=n2 zone=za hints=za,zb nodehints=n2 rack=k1"
	s := load(aService("web", "http:80"), aSlice("web-1", "web", "http:8080", text))
	feed(s, aSlice("web-1", "web", "http:8080", text), aService("web", "http:80"))
	if len(s.dirty) != 0 {
		t.Error("a resync makes work")
	}
	if up := s.Flush(); up != nil {
		t.Errorf("update %+v", up)
	}
}
