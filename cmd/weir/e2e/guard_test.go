package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
)

// hostPrograms are listeners of the node: those that its firewall guards, and an ingress
// controller in the host's network.
const hostPrograms = `table inet guard {
	chain input {
		type filter hook input priority filter;
		iifname "eth0" tcp dport { 22, 9100 } drop
	}
}
`

// An endpoint at the node's own address does not lead past the firewall of the node to guarded
// programs, at none of the addresses, and leads to an ingress controller.
func TestWireEndpointsOnTheNodeAreNoWayPastTheFirewall(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	node := f.Edge.Edge
	must(t, node.Do(func() error { return exec.Command("nft", hostPrograms).Run() }))
	for _, port := range []int{22, 80, 9100} {
		l, err := node.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "port %d of the node", port)
				c.Close()
			}
		}()
	}
	var manifest strings.Builder
	add := func(name string, vip, endpoint netip.Addr, port int) {
		family := "IPv4"
		if endpoint.Is6() {
			family = "IPv6"
		}
		fmt.Fprintf(&manifest, `---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: %[1]s},
 spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ipFamilies: [%[5]s], ports: [{protocol: TCP, port: 8000}]},
 status: {loadBalancer: {ingress: [{ip: "%[2]s"}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: %[5]s,
 metadata: {namespace: x, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}},
 ports: [{protocol: TCP, port: %[4]d}], endpoints: [{addresses: ["%[3]s"]}]}
`, name, vip, endpoint, port, family)
	}
	vip4, vip6 := func(n byte) netip.Addr { return netlab.Host4(netlab.LBNet, n) }, func(n byte) netip.Addr { return netlab.Host6(netlab.LBNet, n) }
	guarded := map[string]netip.Addr{"ssh": vip4(101), "exporter": vip4(102), "other-interface": vip4(103), "six": vip6(104), "veth": vip6(105)}
	add("ssh", vip4(101), netlab.Host4(netlab.ClientNet, 1), 22)
	add("exporter", vip4(102), netlab.Host4(netlab.ClientNet, 1), 9100)
	add("other-interface", vip4(103), netlab.Host4(netlab.FabricNet, 1), 22)
	add("six", vip6(104), netlab.Host6(netlab.ClientNet, 1), 22)
	add("veth", vip6(105), netip.MustParseAddr("fd77:7765:6972::1"), 80)
	add("ingress", vip4(106), netlab.Host4(netlab.ClientNet, 1), 80)
	const healthPort = 32099 // of a Service that only such an endpoint serves
	fmt.Fprintf(&manifest, `---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: local},
 spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 8000, nodePort: 32098}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {namespace: x, name: local-1, labels: {kubernetes.io/service-name: local}},
 ports: [{port: 22}], endpoints: [{addresses: ["%s"], nodeName: edge-1}]}
`, healthPort, netlab.Host4(netlab.ClientNet, 1))
	replace(t, f.manifest(), append(render(t, []service{toAttached}), manifest.String()...))

	asks := func(to netip.Addr) (string, error) {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", netip.AddrPortFrom(to, 8000).String())
		if err != nil {
			return "", err
		}
		defer c.Close()
		got := make([]byte, 64)
		n, err := c.Read(got)
		return string(got[:n]), err
	}
	must(t, f.poll(func(context.Context) error {
		got, err := asks(vip4(106))
		if err == nil && got != "port 80 of the node" {
			err = errors.New(got)
		}
		return err
	}))
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	for name, to := range guarded {
		if got, err := asks(to); err == nil {
			t.Errorf("%s: answered %q", name, got)
		}
		if !slices.ContainsFunc(status.Problems, func(p problem.Problem) bool {
			return p.Object == "Service x/"+name && p.Kind == problem.ProtectedPort
		}) {
			t.Errorf("%s: no problem of it in %v", name, status.Problems)
		}
	}
	f.untilStatus(t, healthPort, "/", 503)
	out, err := f.command("explain", "--admin-socket", f.path("weir.sock"), "--service", "x/ssh").CombinedOutput()
	if !strings.Contains(string(out), "port 22 of the node's own addresses is protected") || strings.Contains(string(out), "yes") {
		t.Errorf("explain: %v\n%s", err, out)
	}
}
