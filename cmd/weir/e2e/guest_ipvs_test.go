package e2e

import (
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/doctor"
)

// likeIPVS has the edge node's kernel serve a TCP port of a Service as kube-proxy does in mode
// ipvs: the address is one of kube-ipvs0, which is down, and IPVS has virtual server and
// destination.
func (f *fixture) likeIPVS(t *testing.T, s service, port, target uint16) {
	t.Helper()
	edge := f.Edge.Edge
	dummy := &netlink.Dummy{LinkAttrs: named("kube-ipvs0")}
	needLink(t, edge, dummy)
	must(t, edge.Netlink().LinkAdd(dummy))
	must(t, edge.AddAddr("kube-ipvs0", netip.PrefixFrom(s.lbIP(false), 32)))
	// Without it IPVS keeps its connections from netfilter, which could not masquerade them.
	must(t, edge.SetSysctl("net/ipv4/vs/conntrack", "1"))
	virtual := s.at(port, false).String()
	real := netip.AddrPortFrom(s.endpoints[0].addr(false), target).String()
	for _, args := range [][]string{
		{"ipvsadm", "--add-service", "--tcp-service", virtual, "--scheduler", "rr"},
		{"ipvsadm", "--add-server", "--tcp-service", virtual, "--real-server", real, "--masquerading"},
	} {
		if out, ok := runIn(t, edge, args...); !ok {
			t.Fatalf("%v: %s", args, out)
		}
	}
	f.nat(t, func(c *nftables.Conn, table *nftables.Table, _, post *nftables.Chain) {
		c.AddRule(masqueradeTo(table, post, s.endpoints[0].addr(false)))
	})
}

// Weir takes over from the kernel's own IPVS, and gives back to it. weir doctor reads the
// kernel's list of virtual servers.
func TestGuestTakeoverFromIPVS(t *testing.T) {
	if _, err := exec.LookPath("ipvsadm"); err != nil {
		t.Skip("no ipvsadm: ", err)
	}
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	f.likeIPVS(t, toAttached, echoPort, echoTarget)
	f.takesOver(t, func() {
		r, _ := f.doctor(t, f.command("doctor", "-o", "json", "--shadow", "--config", f.path("config.yaml")))
		at := slices.IndexFunc(r.KubeProxy, func(c doctor.Comparison) bool { return c.Mode == "ipvs" })
		if at < 0 {
			t.Fatalf("weir doctor does not see IPVS: %+v", r.KubeProxy)
		}
		virtual := toAttached.at(echoPort, false).String()
		for _, c := range r.KubeProxy[at].Frontends {
			if c.Frontend == virtual && c.Protocol == "TCP" {
				if c.Agreement != doctor.Same || len(c.Same) != 1 {
					t.Errorf("weir doctor: %+v, want the endpoint in common", c)
				}
				return
			}
		}
		t.Errorf("weir doctor does not compare %s: %+v", virtual, r.KubeProxy[at].Frontends)
	})
}
