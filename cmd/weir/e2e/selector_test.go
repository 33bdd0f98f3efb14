package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/doctor"
	"github.com/weirlb/weir/perf/netlab"
)

// attachedNames are the interfaces that Weir is attached to, beside its own.
func (f *fixture) attachedNames(t *testing.T) (names []string) {
	t.Helper()
	s, err := f.admin.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range s.Interfaces {
		if !i.HostVeth {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}

// restartNeeded waits for a reload after which these fields need a restart.
func (f *fixture) restartNeeded(t *testing.T, reloads int, want ...string) {
	t.Helper()
	if err := f.weir.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := f.poll(func(ctx context.Context) error {
		log, err := os.ReadFile(f.weir.LogFile())
		if n := strings.Count(string(log), "msg=reloaded"); err != nil || n < reloads {
			return fmt.Errorf("%d reloads, want %d (%v)", n, reloads, err)
		}
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		var got []string
		for _, p := range s.Problems {
			if p.Kind == "restart-needed" {
				got = append(got, p.Field)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("fields that need a restart, -want +got:\n%s", diff)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Weir attaches to the interfaces that a prefix and the default routes find. Addresses
// of Services on lo and kube-ipvs0, and the gateway's address on the node's end of a pod, find
// none.
func TestWireInterfacesAreSelected(t *testing.T) {
	byPrefix := fmt.Sprintf("{cidr: %s/24}", netlab.Host4(netlab.FabricNet, 0))
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true, interfaces: "[{defaultRoute: true}, " + byPrefix + "]"})
	must(t, f.Edge.Edge.AddAddr("lo", netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 200), 32)))
	err := f.Edge.Edge.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "kube-ipvs0"
		return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		t.Log("the kernel has no dummy interfaces: lo stands for them")
	default:
		must(t, err)
		must(t, f.Edge.Edge.AddAddr("kube-ipvs0", netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 201), 32)))
	}

	f.ip(t, "link", "add", "pod7", "type", "veth", "peer", "name", "pod7-in")
	f.ip(t, "link", "set", "pod7", "up")
	must(t, f.Edge.Edge.AddAddr("pod7", netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 202), 32)))

	// Each path of a default route leads to an interface.
	client, fabric := netlab.Host4(netlab.ClientNet, 2).String(), netlab.Host4(netlab.FabricNet, 254).String()
	f.ip(t, "route", "replace", "default", "nexthop", "via", client, "dev", "eth0", "nexthop", "via", fabric, "dev", "eth1")
	stdout, stderr, exit := f.check(t)
	if exit != 0 || !strings.Contains(stdout, "defaultRoute: eth0, eth1\n") {
		t.Errorf("weir check with two paths: exit status %d\n%s%s", exit, stdout, stderr)
	}
	f.ip(t, "route", "replace", "default", "via", client)

	stdout, stderr, exit = f.check(t)
	if exit != 0 || !strings.Contains(stdout, "defaultRoute: eth0\n") || !strings.Contains(stdout, "/24: eth1\n") {
		t.Errorf("weir check: exit status %d\n%s%s", exit, stdout, stderr)
	}
	must(t, f.start())
	if diff := cmp.Diff([]string{"eth0", "eth1"}, f.attachedNames(t)); diff != "" {
		t.Errorf("attached interfaces, -want +got:\n%s", diff)
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		checkSays(t, f.dialed(t, toAttached.at(echoPort, six)))
	})

	// The default route leads elsewhere: the next start would follow it.
	f.ip(t, "-6", "route", "del", "default")
	f.ip(t, "route", "replace", "default", "via", fabric)
	if r, _ := f.doctor(t, f.command("doctor", "-o", "json", "--config", f.path("config.yaml"))); !slices.ContainsFunc(r.Findings, func(x doctor.Finding) bool {
		return x.Verdict == doctor.Warning && x.Fact == "attached: eth0, eth1; the next start attaches eth1"
	}) {
		t.Errorf("weir doctor does not say that another interface would be attached: %+v", r.Findings)
	}

	// The default route goes, and with it nothing of what is attached. The file is the same.
	must(t, f.removeDefaultRoutes())
	f.restartNeeded(t, 1)
	if diff := cmp.Diff([]string{"eth0", "eth1"}, f.attachedNames(t)); diff != "" {
		t.Errorf("attached interfaces after a reload, -want +got:\n%s", diff)
	}
	replace(t, f.path("config.yaml"), []byte(strings.Replace(f.config(), byPrefix, "{name: eth1}", 1)))
	f.restartNeeded(t, 2, "interfaces")

	// Without the route no next process starts, and the last one can still be removed.
	must(t, f.weir.Signal(syscall.SIGKILL))
	<-f.weir.Done()
	out, exit := f.run(t, nil, "run", "--config", f.path("config.yaml"))
	if exit != 1 || errorLines(out) != 1 || !strings.Contains(out, "interfaces[0].defaultRoute: no default route") {
		t.Errorf("weir run without a default route: exit status %d\n%s", exit, out)
	}
	if out, exit := f.run(t, nil, "cleanup", "--config", f.path("config.yaml")); exit != 0 {
		t.Errorf("weir cleanup without a default route: exit status %d\n%s", exit, out)
	}
	if _, err := os.Lstat(f.path("weir.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("weir cleanup has left the socket: %v", err)
	}
}

// removeDefaultRoutes removes those of the edge node.
func (f *fixture) removeDefaultRoutes() error {
	return f.Edge.Edge.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.RouteList(nil, family)
			if err != nil {
				return err
			}
			for i := range list {
				if bits, _ := list[i].Dst.Mask.Size(); bits == 0 {
					if err := netlink.RouteDel(&list[i]); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}
