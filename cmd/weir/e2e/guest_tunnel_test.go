package e2e

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// runIn runs a command in a namespace and returns an error with its output.
func runIn(t *testing.T, n *netlab.Namespace, args ...string) (output string, ok bool) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := n.Start(cmd)
	must(t, err)
	return strings.TrimSpace(out.String()), p.Err() == nil
}

// kernelDecap makes the kernel of a node decapsulate what the tunnel modes send. The
// devices without a remote exist as soon as their modules are there.
func kernelDecap(t *testing.T, n *netlab.Namespace) {
	t.Helper()
	must(t, n.SetSysctl("net/ipv4/conf/all/rp_filter", "0"))
	for _, device := range []string{"tunl0", "sit0", "ip6tnl0"} {
		if _, err := n.Interface(device); err != nil {
			t.Skipf("skipped: the kernel has no %s: %v", device, err)
		}
		raise(t, n, device)
		must(t, n.SetSysctl("net/ipv4/conf/"+device+"/rp_filter", "0"))
	}
	// GUE is UDP to a port, for each family (draft-ietf-intarea-gue).
	for _, args := range [][]string{{"ip", "fou", "add", "port", "6080", "gue"}, {"ip", "-6", "fou", "add", "port", "6080", "gue"}} {
		if out, ok := runIn(t, n, args...); !ok {
			t.Fatalf("%v: %s", args, out)
		}
	}
}

// The kernel's own tunnels receive ipip and gue, over IPv4 and IPv6, and endpoints answer
// clients directly.
func TestGuestKernelDecapsulates(t *testing.T) {
	services := slices.DeleteFunc(slices.Clone(directServices), func(s modeService) bool { return s.clamp || s.mode == "l2dsr" })
	f := ownFixture(t, options{stopped: true, frontends: len(services) * 4})
	must(t, f.addReturnLink())
	must(t, os.WriteFile(f.path("manifests/services.yaml"), []byte(modeManifests(services, directPorts)), 0o644))
	kernelDecap(t, f.ZoneB)
	for _, s := range services {
		for _, a := range []netip.Addr{netlab.Host4(netlab.LBNet, s.index), netlab.Host6(netlab.LBNet, s.index)} {
			must(t, f.ZoneB.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())))
			f.serveDirect(t, f.ZoneB, a)
		}
	}
	must(t, f.start())
	f.checkChecksums(t)
	for _, s := range services {
		name := s.mode
		if s.cross {
			name += " to IPv4"
		}
		t.Run(name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				addr := netlab.Host4(netlab.LBNet, s.index)
				if six {
					addr = netlab.Host6(netlab.LBNet, s.index)
				}
				f.directTransfers(t, addr)
			})
		})
	}
	if t.Failed() {
		t.Log(f.whatWasDropped())
	}
}
