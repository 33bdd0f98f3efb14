package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/doctor/kubeproxy"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/translate"
)

// endpoints of a frontend.
func endpoints(list ...string) (out []api.FrontendEndpoint) {
	for _, e := range list {
		out = append(out, api.FrontendEndpoint{Address: e})
	}
	return out
}

func TestComparison(t *testing.T) {
	at := netip.MustParseAddrPort
	target := func(list ...netip.AddrPort) kubeproxy.Target {
		return kubeproxy.Target{External: true, Endpoints: list}
	}
	a, b, c, d := at("10.1.1.1:80"), at("10.1.1.2:80"), at("10.1.1.3:80"), at("10.1.1.4:80")
	rules := &kubeproxy.Rules{Mode: kubeproxy.NFTables, Frontends: map[kubeproxy.Frontend]kubeproxy.Target{
		{Port: 30001, Protocol: "TCP"}:                                        target(a, b),
		{Port: 30002, Protocol: "TCP"}:                                        target(a, b),
		{Port: 30003, Protocol: "TCP"}:                                        target(a, d),
		{Port: 30004, Protocol: "TCP"}:                                        target(d),
		{Port: 30005, Protocol: "TCP"}:                                        target(a, d),
		{Port: 30006, Protocol: "TCP"}:                                        target(b, d),
		{Port: 30009, Protocol: "TCP"}:                                        target(c),
		{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: "TCP"}:   {Endpoints: []netip.AddrPort{a}},
		{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: "UDP"}:   target(a),
		{Addr: netip.MustParseAddr("192.0.2.2"), Port: 80, Protocol: "TCP"}:   target(c),
		{Addr: netip.MustParseAddr("192.0.2.3"), Port: 80, Protocol: "TCP"}:   {},
		{Addr: netip.MustParseAddr("192.0.2.6"), Port: 5060, Protocol: "UDP"}: target(at("10.1.1.1:5060")),
		{Addr: netip.MustParseAddr("192.0.2.7"), Port: 5001, Protocol: "UDP"}: target(at("10.1.1.2:5001")),
		{Addr: netip.MustParseAddr("192.0.2.7"), Port: 5060, Protocol: "UDP"}: target(at("10.1.1.3:5060")),
	}}
	frontends := []api.Frontend{
		{Service: "x/same", Address: "10.0.0.1:30001", Protocol: "TCP", Kind: "NodePort", Endpoints: endpoints(a.String(), b.String())},
		{Service: "x/zone", Address: "10.0.0.1:30002", Protocol: "TCP", Kind: "NodePort", Endpoints: endpoints(a.String(), c.String())},
		{Service: "x/drain", Address: "10.0.0.1:30003", Protocol: "TCP", Kind: "NodePort", Endpoints: endpoints(a.String())},
		{Service: "x/drain-tier", Address: "10.0.0.1:30004", Protocol: "TCP", Kind: "NodePort", Endpoints: endpoints(a.String(), b.String())},
		{Service: "x/drain-stale", Address: "10.0.0.1:30005", Protocol: "TCP", Kind: "NodePort", Endpoints: endpoints(a.String(), b.String())},
		{Service: "x/drain-zone", Address: "10.0.0.1:30006", Protocol: "TCP", Kind: "NodePort"},
		{Service: "x/port", Address: "192.0.2.5:30009", Protocol: "TCP", Kind: "LoadBalancer", Endpoints: endpoints(c.String())},
		{Service: "x/new", Address: "192.0.2.1:80", Protocol: "TCP", Kind: "LoadBalancer", Endpoints: endpoints(a.String())},
		{Service: "x/none", Address: "192.0.2.4:80", Protocol: "TCP", Kind: "LoadBalancer"},
		{Service: "x/range", Address: "192.0.2.6:5000-5099", Protocol: "UDP", Kind: "LoadBalancer", Endpoints: endpoints("10.1.1.1:5060")},
		{Service: "x/range-known", Address: "192.0.2.7:5000-5099", Protocol: "UDP", Kind: "LoadBalancer", Endpoints: endpoints("10.1.1.1:5060")},
		{Service: "x/in-range", Address: "192.0.2.7:5001", Protocol: "UDP", Kind: "LoadBalancer", Endpoints: endpoints("10.1.1.2:5001")},
		{Service: "x/refused", Address: "192.0.2.3:80", Protocol: "TCP", Kind: "LoadBalancer"},
	}
	asked := map[string]int{}
	drained := translate.NewDrainedSet([]translate.Drained{{Addr: d.Addr()}})
	got := compare(rules, frontends, drained, func(service string) *explain.Service {
		asked[service]++
		if service == "x/range-known" {
			return &explain.Service{Ports: []explain.Port{{Port: 5060, Protocol: "UDP", Detail: []explain.Endpoint{{Address: "10.1.1.1:5060", Reason: "ready"}}}}}
		}
		if service != "x/zone" {
			return nil
		}
		return &explain.Service{Ports: []explain.Port{{NodePort: 30002, Protocol: "TCP", Detail: []explain.Endpoint{
			{Address: b.String(), Reason: "other zone"}, {Address: c.String(), Reason: "same zone"},
		}}}}
	})
	const none, nodePort = "Weir has no such frontend: see weir explain", "Weir has no such frontend: see weir explain, and nodePortAddresses, for node ports"
	want := []Compared{
		{Frontend: "192.0.2.1:80", Protocol: "UDP", Agreement: OnlyKubeProxy, Reason: none, Same: []string{}, OnlyKubeProxy: []Choice{{a.String(), none}}},
		{Frontend: "192.0.2.2:80", Protocol: "TCP", Agreement: OnlyKubeProxy, Reason: none, Same: []string{}, OnlyKubeProxy: []Choice{{c.String(), none}}},
		{Frontend: ":30009", Protocol: "TCP", Agreement: OnlyKubeProxy, Reason: nodePort, Same: []string{}, OnlyKubeProxy: []Choice{{c.String(), nodePort}}},
		{Frontend: "10.0.0.1:30003", Protocol: "TCP", Kind: "NodePort", Service: "x/drain", Agreement: Drained, Same: []string{a.String()},
			OnlyKubeProxy: []Choice{{d.String(), byDrain}}},
		{Frontend: "10.0.0.1:30005", Protocol: "TCP", Kind: "NodePort", Service: "x/drain-stale", Agreement: Different, Same: []string{a.String()},
			OnlyKubeProxy: []Choice{{d.String(), byDrain}}, OnlyWeir: []Choice{{b.String(), ""}}},
		{Frontend: "10.0.0.1:30004", Protocol: "TCP", Kind: "NodePort", Service: "x/drain-tier", Agreement: Drained, Same: []string{},
			OnlyKubeProxy: []Choice{{d.String(), byDrain}}, OnlyWeir: []Choice{{a.String(), ""}, {b.String(), ""}}},
		{Frontend: "10.0.0.1:30006", Protocol: "TCP", Kind: "NodePort", Service: "x/drain-zone", Agreement: Different, Same: []string{},
			OnlyKubeProxy: []Choice{{b.String(), unknownEndpoint}, {d.String(), byDrain}}},
		{Frontend: "192.0.2.7:5001", Protocol: "UDP", Kind: "LoadBalancer", Service: "x/in-range", Agreement: Same, Same: []string{"10.1.1.2:5001"}},
		{Frontend: "192.0.2.1:80", Protocol: "TCP", Kind: "LoadBalancer", Service: "x/new", Agreement: OnlyWeir, Same: []string{}, OnlyWeir: []Choice{{a.String(), ""}}},
		{Frontend: "192.0.2.4:80", Protocol: "TCP", Kind: "LoadBalancer", Service: "x/none", Agreement: Same, Same: []string{}},
		// A node port is none of an address that is not the node's.
		{Frontend: "192.0.2.5:30009", Protocol: "TCP", Kind: "LoadBalancer", Service: "x/port", Agreement: OnlyWeir, Same: []string{}, OnlyWeir: []Choice{{c.String(), ""}}},
		// kube-proxy has the port of the Service alone.
		{Frontend: "192.0.2.6:5000-5099", Protocol: "UDP", Kind: "LoadBalancer", Service: "x/range", Agreement: Same, Same: []string{"10.1.1.1:5060"}},
		{Frontend: "192.0.2.7:5000-5099", Protocol: "UDP", Kind: "LoadBalancer", Service: "x/range-known", Agreement: Different, Same: []string{},
			OnlyKubeProxy: []Choice{{"10.1.1.3:5060", unknownEndpoint}}, OnlyWeir: []Choice{{"10.1.1.1:5060", "ready"}}},
		{Frontend: "192.0.2.3:80", Protocol: "TCP", Kind: "LoadBalancer", Service: "x/refused", Agreement: Same, Same: []string{}},
		{Frontend: "10.0.0.1:30001", Protocol: "TCP", Kind: "NodePort", Service: "x/same", Agreement: Same, Same: []string{a.String(), b.String()}},
		{Frontend: "10.0.0.1:30002", Protocol: "TCP", Kind: "NodePort", Service: "x/zone", Agreement: Different, Same: []string{a.String()},
			OnlyKubeProxy: []Choice{{b.String(), "other zone"}}, OnlyWeir: []Choice{{c.String(), "same zone"}}},
	}
	if diff := cmp.Diff(Comparison{kubeproxy.NFTables, want}, got); diff != "" {
		t.Error(diff)
	}
	if asked["x/same"] > 0 || asked["x/zone"] != 1 {
		t.Errorf("asked for reasons: %v", asked)
	}

	p := newPatient(nil)
	p.report.Node = "edge-1"
	p.judgeComparison(&got)
	const findings = "ok kube-proxy (nftables): frontends for clients outside that only kube-proxy has: 3 | \n" +
		"warning kube-proxy (nftables): frontends that only Weir has: 2; nobody serves them when Weir is away | kubectl -n kube-system logs -l k8s-app=kube-proxy\n" +
		"warning kube-proxy (nftables): frontends of which it would choose endpoints that weir drain drains: 2, such as TCP 10.0.0.1:30003 of Service x/drain | " +
		"weir drain shows them; when they are to get new connections: weir drain endpoint ADDRESS --undo\n" +
		"fault kube-proxy (nftables): frontends for which it would choose other endpoints: 4, such as TCP 10.0.0.1:30005 of Service x/drain-stale | " +
		"weir doctor --shadow has the reasons; a stale kube-proxy: kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=edge-1\n"
	if diff := cmp.Diff(findings, found(p)); diff != "" {
		t.Error(diff)
	}
}

func TestShadowTable(t *testing.T) {
	r := Report{
		Findings: []Finding{{OK, "kube-proxy (nftables)", "fine", ""}},
		KubeProxy: []Comparison{{kubeproxy.NFTables, []Compared{
			{Frontend: "10.0.0.1:30080", Protocol: "TCP", Service: "shop/web", Agreement: Same, Same: []string{"10.1.1.1:80"}},
			{Frontend: ":30081", Protocol: "UDP", Agreement: OnlyKubeProxy, OnlyKubeProxy: []Choice{{"10.1.1.2:53", "no \x1b frontend"}}},
		}}},
	}
	var b strings.Builder
	if err := r.shadowTable(&b); err != nil {
		t.Fatal(err)
	}
	const want = `AGREEMENT        FRONTEND            SERVICE   ENDPOINTS
same             TCP 10.0.0.1:30080  shop/web  1 the same
only-kube-proxy  UDP :30081          -         0 the same
                                               only kube-proxy: 10.1.1.2:53 no ? frontend

ok  kube-proxy (nftables)  fine
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
