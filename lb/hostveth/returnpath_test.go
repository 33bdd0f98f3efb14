package hostveth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/perf/netlab"
)

// sendAsClient puts a packet on the wire as the packet loop does when it keeps
// the client's address.
func (r *rig) sendAsClient(src, dst netip.AddrPort, payload string) {
	r.Helper()
	r.sendFrom(r.veth.link.returnPathMAC(), src, dst, payload)
}

// connectDirectly is a connection of the client's that does not come through Weir.
func (r *rig) connectDirectly(dst netip.AddrPort) func() {
	r.Helper()
	c, err := r.Client.ListenPacket("udp", "[::]:0")
	must(r, err)
	r.Cleanup(func() { c.Close() })
	return func() {
		r.Helper()
		_, err := c.WriteTo([]byte("direct"), net.UDPAddrFromAddrPort(dst))
		must(r, err)
		must(r, c.SetReadDeadline(time.Now().Add(answerWithin)))
		buf := make([]byte, 64)
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			r.Fatalf("%s asked directly: %v", dst, err)
		}
		got := from.(*net.UDPAddr).AddrPort()
		if netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != dst || string(buf[:n]) != "DIRECT" {
			r.Errorf("%s asked directly: %q from %s", dst, buf[:n], got)
		}
	}
}

// Answers of connections that came through Weir go back through it, all others
// of the same endpoint their own way, at the same time.
func TestWireReturnPathIsChosenPerConnection(t *testing.T) {
	r := newRig(t)
	// The client may reach pods by itself, and the checks are as strict as
	// they come: reverse paths are looked up by mark too.
	for key, v := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/conf/all/src_valid_mark": "1", "net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/cni0/rp_filter": "1",
	} {
		must(t, r.Edge.Edge.SetSysctl(key, v))
	}
	must(t, r.Client.AddRoute("eth0", netip.PrefixFrom(netlab.Host4(netlab.PodNet, 0), 24), netlab.Host4(netlab.ClientNet, 1)))
	must(t, r.Client.AddRoute("eth0", netip.PrefixFrom(netlab.Host6(netlab.PodNet, 0), 64), netlab.Host6(netlab.ClientNet, 1)))
	var err error
	r.before, err = netlab.StateOf(r.Edge.Edge)
	must(t, err)
	r.open()
	if r.veth.ReturnPathErr() != nil {
		t.Fatal(r.veth.ReturnPathErr())
	}
	echo(t, r.Edge.Edge, netip.MustParseAddrPort("[::]:8081"))
	for _, e := range []struct {
		name string
		on   *netlab.Namespace // nil: the listener on the wildcard address
		dst  netip.Addr
	}{
		{"pod, IPv4", r.Pod, netlab.Host4(netlab.PodNet, 2)},
		{"pod, IPv6", r.Pod, netlab.Host6(netlab.PodNet, 2)},
		{"listener on the node's address, IPv4", r.Edge.Edge, netlab.Host4(netlab.ClientNet, 1)},
		{"listener on the node's address, IPv6", r.Edge.Edge, netlab.Host6(netlab.ClientNet, 1)},
		{"listener on the wildcard address, IPv4", nil, netlab.Host4(netlab.ClientNet, 1)},
		{"listener on the wildcard address, IPv6", nil, netlab.Host6(netlab.ClientNet, 1)},
	} {
		t.Run(e.name, func(t *testing.T) {
			r.TB = t
			dst, client := netip.AddrPortFrom(e.dst, 8080), netlab.Host4(netlab.ClientNet, 2)
			if e.dst.Is6() {
				client = netlab.Host6(netlab.ClientNet, 2)
			}
			var asked <-chan netip.Addr
			if e.on != nil {
				asked = echo(t, e.on, dst)
			} else {
				dst = netip.AddrPortFrom(e.dst, 8081)
			}
			r.do(func() error { return r.veth.AddEndpoint(e.dst) })
			direct := r.connectDirectly(dst)
			for i := range 3 {
				direct()
				src := netip.AddrPortFrom(client, uint16(40000+i%2))
				r.sendAsClient(src, dst, "hello")
				if from, payload, ok := r.receive(src, answerWithin); !ok || from != dst || payload != "HELLO" {
					t.Fatalf("%s asked from %s: answer %q from %s", dst, src, payload, from)
				}
			}
			if asked != nil {
				for range 6 {
					if a := <-asked; a != client {
						t.Errorf("the endpoint was asked by %s, want the client's %s", a, client)
					}
				}
			}
		})
	}
	r.TB = t
	r.close()
}

// What is given back to the kernel enters by the host veth as well: it may be
// of a connection that has another way.
func TestWirePuntedPacketsAreNotMarked(t *testing.T) {
	r := newRig(t)
	r.open()
	dst := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), 8080)
	echo(t, r.Edge.Edge, dst)
	c, err := r.Client.ListenPacket("udp", "0.0.0.0:40000")
	must(t, err)
	defer c.Close()
	r.send(netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 2), 40000), dst, "hello")
	must(t, c.SetReadDeadline(time.Now().Add(answerWithin)))
	buf := make([]byte, 64)
	n, _, err := c.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "HELLO" {
		t.Errorf("the kernel's answer: %q %v", buf[:n], err)
	}
	r.close()
}

func TestWireStaleThrowRoutesArePrunedBeyondALimit(t *testing.T) {
	r := newRig(t)
	r.open()
	first := netip.MustParseAddr("10.50.0.0")
	r.do(func() error {
		a := first
		for range maxStaleThrowRoutes + 1 {
			if err := r.veth.AddEndpoint(a); err != nil {
				return err
			}
			a = a.Next()
		}
		used := func(a netip.Addr) bool { return a == first }
		r.veth.PruneEndpoints(used, 2)
		if len(r.veth.returnPath.throwRoutes) != maxStaleThrowRoutes+1 {
			return fmt.Errorf("%d left before the limit", len(r.veth.returnPath.throwRoutes))
		}
		r.veth.PruneEndpoints(used, 1)
		list, err := markrule.Routes(unix.AF_INET, 7765)
		if err != nil {
			return err
		}
		if len(list) != 2 || !slices.ContainsFunc(list, func(x netlink.Route) bool { return x.Dst.IP.Equal(first.AsSlice()) }) {
			return fmt.Errorf("%d routes left: %v", len(list), list)
		}
		ok, err := r.veth.returnPath.check()
		if !ok {
			err = errors.Join(err, errors.New("taken for damaged"))
		}
		return err
	})
	r.close()
}

func TestWireReturnPathNeedsAnUnusedTable(t *testing.T) {
	r := newRig(t)
	r.do(func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParseAddr("10.60.0.1"), 32), Type: unix.RTN_BLACKHOLE, Table: 7765})
	})
	var err error
	r.before, err = netlab.StateOf(r.Edge.Edge)
	must(t, err)
	r.open()
	if r.veth.ReturnPathErr() == nil || !strings.Contains(r.veth.ReturnPathErr().Error(), "choose another table") || !r.veth.Masquerades() {
		t.Errorf("return path: %v, masquerades %v", r.veth.ReturnPathErr(), r.veth.Masquerades())
	}
	r.do(func() error {
		if err := r.veth.AddEndpoint(netlab.Host4(netlab.PodNet, 2)); err != nil {
			return err
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := c.ListChains()
		if len(chains) != 1 {
			err = errors.Join(err, fmt.Errorf("%d chains", len(chains)))
		}
		return err
	})
	r.do(func() error { r.veth.reconcile(); return nil })
	if strings.Contains(r.log.String(), "taken away") {
		t.Errorf("repaired what was never made: %s", r.log.String())
	}
	r.close()
}

func TestWireConflictingRulesAreNamedAndKept(t *testing.T) {
	r := newRig(t)
	mask := uint32(0xf0)
	theirs := netlink.NewRule()
	theirs.Priority, theirs.Table, theirs.Mark, theirs.Mask = markrule.ReturnPath, 100, 0x30, &mask
	r.do(func() error { return netlink.RuleAdd(theirs) })
	var err error
	r.before, err = netlab.StateOf(r.Edge.Edge)
	must(t, err)
	r.open()
	if !strings.Contains(r.log.String(), "uses bits of hostVeth.mark") {
		t.Errorf("not said: %s", r.log.String())
	}
	r.close()
}
