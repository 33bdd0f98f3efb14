package source

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// resolver answers A questions with two addresses until the function that is returned is called.
func resolver(t *testing.T) (at string, end func()) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	s := &dns.Server{PacketConn: c, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for _, a := range []string{"10.77.0.1", "10.77.0.2"} {
			if h := (dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}); q.Question[0].Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{Hdr: h, A: net.ParseIP(a)})
			}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = s.Shutdown() })
	return c.LocalAddr().String(), func() { _ = s.Shutdown() }
}

// In a cluster names are resolved where the configuration says so. The address of a Node is refused. A process that
// starts while neither API server nor resolver answer serves the last endpoints.
func TestKubeNamesInCluster(t *testing.T) {
	cluster := kubetest.Require(t, kubetest.Options{NoControllers: true})
	site := kubetest.NewSite(t, cluster.Client(t))
	site.Node("node-a", "a", netip.MustParseAddr("10.77.0.2"))
	site.Service("web", nil)
	name, port := "http", int32(8080)
	site.Slice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-names", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeFQDN, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"web.lab.example"}}},
	})
	at, end := resolver(t)
	cfg := config.Default()
	cfg.NodeName, cfg.StateDir = "edge-1", t.TempDir()
	cfg.Discovery.Kubernetes = &config.Kubernetes{Kubeconfig: cluster.Kubeconfig}
	expect := func(when string, endpoints string, warnings ...string) {
		t.Helper()
		c, err := start(t, cfg)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, func(*discovery.Update) {}) }()
		site.Eventually(when, func(context.Context) error {
			svc := c.Merged(discovery.ServiceName{Namespace: site.Namespace, Name: "web"})
			if svc == nil {
				return fmt.Errorf("no Service; %s", reasonsOf(c))
			}
			var got []string
			for _, e := range svc.Ports[0].Endpoints {
				got = append(got, e.AddrPort.String())
			}
			for _, w := range warnings {
				if !slices.ContainsFunc(svc.Warnings, func(s string) bool { return strings.Contains(s, w) }) {
					return fmt.Errorf("warnings %q, want %q", svc.Warnings, warnings)
				}
			}
			if s := strings.Join(got, " "); s != endpoints {
				return fmt.Errorf("endpoints %s, want %s", s, endpoints)
			}
			return nil
		})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	cfg.Discovery.Names = &config.Names{Resolver: at}
	expect("not configured", "", "EndpointSlice "+site.Namespace+"/web-names: addressType FQDN is skipped (discovery.names)")
	cfg.Discovery.Names.InCluster = true
	expect("configured", "10.77.0.1:8080", "a name leads to 10.77.0.2, which is refused: it is the address of a Node")
	end()
	cluster.Stop()
	expect("neither answers", "10.77.0.1:8080", "the last answer before the start is kept, of 20")
}
