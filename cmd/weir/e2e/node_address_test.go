package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
)

// nodeObject is the Node of the edge node with addresses given as TYPE=ADDRESS.
func nodeObject(addresses ...string) []byte {
	var list []string
	for _, a := range addresses {
		kind, address, _ := strings.Cut(a, "=")
		list = append(list, fmt.Sprintf("{type: %s, address: %q}", kind, address))
	}
	return fmt.Appendf(nil, "---\napiVersion: v1\nkind: Node\nmetadata: {name: edge-1}\nstatus: {addresses: [%s]}\n", strings.Join(list, ", "))
}

// The primary addresses are those of the Node object where this host holds
// them, as for kube-proxy: not those by which the default route leaves. They
// follow the Node object and the host's addresses.
func TestWireNodePortsOnTheNodesAddress(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	config := f.config()
	primary := strings.Replace(config, fmt.Sprintf("[\"%s/24\", \"%s/64\"]", netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0)), "[primary]", 1)
	if primary == config {
		t.Fatal("the configuration is not what the test expects")
	}
	if err := os.WriteFile(f.path("config.yaml"), []byte(primary), 0o644); err != nil {
		t.Fatal(err)
	}
	services := render(t, f.services)
	node := func(addresses ...string) { replace(t, f.manifest(), append(nodeObject(addresses...), services...)) }
	outer4, outer6 := netlab.Host4(netlab.ClientNet, 1), netlab.Host6(netlab.ClientNet, 1)
	inner4, inner6 := netlab.Host4(netlab.FabricNet, 1), netlab.Host6(netlab.FabricNet, 1)

	node("ExternalIP="+outer4.String(), "InternalIP="+inner4.String(), "InternalIP="+inner6.String())
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	f.awaitNodePorts(t, map[netip.Addr]string{inner4: "address of Node edge-1", inner6: "address of Node edge-1"})
	f.checkLoad(t, f.ZoneB, netip.AddrPortFrom(inner4, toAttached.nodePort(httpPort)), 3)
	f.checkLoad(t, f.ZoneB, netip.AddrPortFrom(inner6, toAttached.nodePort(httpPort)), 3)

	node("ExternalIP="+outer4.String(), "ExternalIP="+outer6.String())
	f.awaitNodePorts(t, map[netip.Addr]string{outer4: "address of Node edge-1", outer6: "address of Node edge-1"})
	f.checkLoad(t, f.Client, netip.AddrPortFrom(outer4, toAttached.nodePort(httpPort)), 3)

	// An address that comes to the host later, and goes.
	late := netlab.Host4(netlab.FabricNet, 77)
	node("InternalIP="+late.String(), "InternalIP="+inner6.String())
	f.awaitNodePorts(t, map[netip.Addr]string{outer4: "this host does not hold " + late.String(), inner6: "address of Node edge-1"})
	prefix := netip.PrefixFrom(late, 32)
	if err := f.Edge.Edge.AddAddr("eth1", prefix); err != nil {
		t.Fatal(err)
	}
	f.awaitNodePorts(t, map[netip.Addr]string{late: "address of Node edge-1", inner6: "address of Node edge-1"})
	f.checkLoad(t, f.ZoneB, netip.AddrPortFrom(late, toAttached.nodePort(httpPort)), 3)
	link, err := f.Edge.Edge.Interface("eth1")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Edge.Edge.Netlink().AddrDel(link, addr); err != nil {
		t.Fatal(err)
	}
	f.awaitNodePorts(t, map[netip.Addr]string{outer4: "this host does not hold " + late.String(), inner6: "address of Node edge-1"})

	// Without the Node object it is the host that decides.
	replace(t, f.manifest(), services)
	f.awaitNodePorts(t, map[netip.Addr]string{outer4: "no address of Node edge-1 is known", outer6: "no address of Node edge-1 is known"})
}

// awaitNodePorts waits until node ports are served on exactly these addresses,
// for reasons that hold these words.
func (f *fixture) awaitNodePorts(t *testing.T, want map[netip.Addr]string) {
	t.Helper()
	if err := f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		got := map[netip.Addr]bool{}
		for _, fe := range list.Frontends {
			if fe.Kind == "NodePort" {
				got[netip.MustParseAddrPort(fe.Address).Addr()] = true
			}
		}
		status, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		reasons := map[netip.Addr]string{}
		for _, a := range status.NodePorts {
			reasons[a.Address] = a.Reason
		}
		for a, why := range want {
			if !got[a] || !strings.Contains(reasons[a], why) {
				return fmt.Errorf("node ports on %v for %v, want %v", got, reasons, want)
			}
		}
		if len(got) != len(want) || len(reasons) != len(want) {
			return fmt.Errorf("node ports on %v for %v, want %v", got, reasons, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
