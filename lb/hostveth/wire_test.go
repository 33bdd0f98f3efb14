package hostveth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	xdplink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
)

func TestWireEndpointsBehindTheKernelAnswer(t *testing.T) {
	r := newRig(t)
	r.open()
	hp := r.veth.Route(0)
	type place struct {
		name     string
		on       *netlab.Namespace
		dst      netip.Addr
		src      func(dst netip.Addr) netip.Addr
		seenFrom netip.Addr // invalid: the source itself
	}
	listener := func(dst netip.Addr) (src netip.Addr) {
		r.do(func() (err error) { src, err = r.veth.SourceFor(dst); return err })
		return src
	}
	fixed := func(a netip.Addr) func(netip.Addr) netip.Addr { return func(netip.Addr) netip.Addr { return a } }
	for _, p := range []place{
		{"pod behind a bridge, IPv4", r.Pod, netlab.Host4(netlab.PodNet, 2), fixed(hp.Local4), netip.Addr{}},
		{"pod behind a bridge, IPv6", r.Pod, netlab.Host6(netlab.PodNet, 2), fixed(hp.Local6), netip.Addr{}},
		{"listener on the node's address, IPv4", r.Edge.Edge, netlab.Host4(netlab.ClientNet, 1), listener, netip.Addr{}},
		{"listener on the node's address, IPv6", r.Edge.Edge, netlab.Host6(netlab.ClientNet, 1), listener, netip.Addr{}},
		{"listener on the node, local source, IPv4", r.Edge.Edge, netlab.Host4(netlab.FabricNet, 1), fixed(hp.Local4), netip.Addr{}},
		{"listener on the node, local source, IPv6", r.Edge.Edge, netlab.Host6(netlab.FabricNet, 1), fixed(hp.Local6), netip.Addr{}},
		{"endpoint behind a VXLAN, IPv4", r.Remote, netlab.Host4(netlab.RemoteNet, 2), fixed(hp.Forward4), netlab.Host4(netlab.OverlayNet, 1)},
		{"endpoint behind a VXLAN, IPv6", r.Remote, netlab.Host6(netlab.RemoteNet, 2), fixed(hp.Forward6), netlab.Host6(netlab.OverlayNet, 1)},
	} {
		t.Run(p.name, func(t *testing.T) {
			r.TB = t
			dst := netip.AddrPortFrom(p.dst, 8080)
			clients := echo(t, p.on, dst)
			src := netip.AddrPortFrom(p.src(p.dst), 1024)
			r.exchange(src, dst)
			want := src.Addr()
			if p.seenFrom.IsValid() {
				want = p.seenFrom
			}
			if got := <-clients; got != want {
				t.Errorf("the endpoint was asked from %s, want %s", got, want)
			}
		})
	}
	r.TB = t
	r.close()
}

// A UDP server on the wildcard address leaves the source of its answer to the
// kernel: it must be the address that was asked.
func TestWireWildcardListenerAnswersFromTheAddressAsked(t *testing.T) {
	r := newRig(t)
	r.open()
	echo(t, r.Edge.Edge, netip.MustParseAddrPort("[::]:8080"))
	for _, a := range []netip.Addr{
		netlab.Host4(netlab.ClientNet, 1), netlab.Host4(netlab.FabricNet, 1),
		netlab.Host6(netlab.ClientNet, 1), netlab.Host6(netlab.FabricNet, 1),
	} {
		var src netip.Addr
		r.do(func() (err error) { src, err = r.veth.SourceFor(a); return err })
		r.exchange(netip.AddrPortFrom(src, 1024), netip.AddrPortFrom(a, 8080))
	}
	r.close()
}

func TestWireClientsOnTheNodeReachFrontends(t *testing.T) {
	r := newRig(t)
	r.open()
	for _, vip := range []netip.Addr{netlab.Host4(netlab.LBNet, 9), netlab.Host6(netlab.LBNet, 9)} {
		r.do(func() error { return r.veth.AddRoute(vip) })
		c, err := r.Edge.Edge.ListenPacket("udp", "[::]:4000")
		must(t, err)
		frontend := netip.AddrPortFrom(vip, 53)
		_, err = c.WriteTo([]byte("question"), net.UDPAddrFromAddrPort(frontend))
		must(t, err)
		client, ok := r.anyTo(frontend)
		if !ok {
			t.Fatalf("nothing for %s came to the host veth", frontend)
		}
		r.send(frontend, client, "answer")
		buf := make([]byte, 64)
		must(t, c.SetReadDeadline(time.Now().Add(answerWithin)))
		n, from, err := c.ReadFrom(buf)
		must(t, err)
		if got := from.(*net.UDPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != frontend || string(buf[:n]) != "answer" {
			t.Errorf("got %q from %s", buf[:n], got)
		}
		c.Close()
		r.do(func() error { return r.veth.RemoveRoute(vip) })
		r.do(func() error { return r.veth.RemoveRoute(vip) }) // again does no harm
	}
	r.close()
}

// anyTo waits for a packet to dst and gives its source.
func (r *rig) anyTo(dst netip.AddrPort) (netip.AddrPort, bool) {
	src, _, ok := r.receive(dst, answerWithin)
	return src, ok
}

func TestWireRestartTakesOverWhatAKilledProcessLeft(t *testing.T) {
	r := newRig(t)
	r.open()
	r.do(func() error { return r.veth.AddRoute(netlab.Host4(netlab.LBNet, 9)) })
	mac, index := r.veth.MAC(), r.veth.Index()
	must(t, r.Edge.Edge.SetSysctl("net/ipv4/conf/eth1/forwarding", "0"))
	eth1, err := r.Edge.Edge.Interface("eth1")
	must(t, err)
	r.do(func() error { return r.veth.EnableForwarding(eth1.Attrs().Index) })
	r.veth.reconciler.stop() // and nothing else, as kill -9 does
	r.wire.Close()

	r.open()
	if r.veth.MAC() != mac || r.veth.Index() != index {
		t.Errorf("the pair was made anew")
	}
	r.do(func() error {
		r.veth.settle() // when all that is to be served is there
		list, err := r.veth.link.ownRoutes(unix.AF_INET)
		if len(list) > 0 {
			err = fmt.Errorf("old routes are still there: %v", list)
		}
		return err
	})
	dst := netip.AddrPortFrom(netlab.Host4(netlab.PodNet, 2), 8080)
	echo(t, r.Pod, dst)
	r.exchange(netip.AddrPortFrom(r.veth.Route(0).Local4, 1024), dst)
	// Other numbers of queues need another pair.
	r.veth.reconciler.stop()
	cfg := r.config()
	cfg.Queues, cfg.MTU, cfg.Prefix4 = 1, 1400, netip.MustParsePrefix("169.254.78.0/28")
	r.do(func() (err error) { r.veth, err = Open(cfg); return err })
	if r.veth.Index() == index || r.veth.MTU() != 1400 {
		t.Errorf("the pair was kept, MTU %d", r.veth.MTU())
	}
	r.close()
}

func TestWireCleanupStaleAfterAKill(t *testing.T) {
	r := newRig(t)
	r.open()
	r.veth.reconciler.stop()
	r.veth = nil
	r.do(func() error { return CleanupStale(r.dir, "") })
	r.unchanged()
	r.do(func() error { return CleanupStale(r.dir, "") }) // nothing there: no error
}

func TestWireForwardingIsPutBackWhenClosed(t *testing.T) {
	r := newRig(t)
	r.open()
	eth0, err := r.Edge.Edge.Interface("eth0")
	must(t, err)
	r.do(func() error { return r.veth.EnableForwarding(eth0.Attrs().Index) })
	if v, err := r.Edge.Edge.Sysctl("net/ipv4/conf/eth0/forwarding"); err != nil || v != "1" {
		t.Fatalf("forwarding is %s: %v", v, err)
	}
	if v, err := r.Edge.Edge.Sysctl("net/ipv4/conf/all/forwarding"); err != nil || v != "0" {
		t.Fatalf("forwarding of all is %s: %v", v, err)
	}
	r.close()
}

func TestWireReconcileRestoresRemovedState(t *testing.T) {
	r := newRig(t)
	r.open()
	vip := netlab.Host4(netlab.LBNet, 9)
	eth0, err := r.Edge.Edge.Interface("eth0")
	must(t, err)
	r.do(func() error { return r.veth.EnableForwarding(eth0.Attrs().Index) })
	r.do(func() error {
		_, err := r.veth.SourceFor(netlab.Host4(netlab.ClientNet, 1))
		return errors.Join(err, r.veth.AddRoute(vip))
	})
	r.do(func() error {
		// As a firewall's reload and a network manager do.
		errs := []error{removeRules(), removeReturnPath()}
		addrs, err := netlink.AddrList(r.veth.link.kernel(), netlink.FAMILY_ALL)
		errs = append(errs, err)
		for i := range addrs {
			errs = append(errs, netlink.AddrDel(r.veth.link.kernel(), &addrs[i]))
		}
		errs = append(errs, netlink.LinkSetDown(r.veth.link.kernel()), netlink.LinkSetMTU(r.veth.link.xdp(), 1280),
			vethpair.SetOffloads(KernelEnd, map[string]bool{vethpair.FragmentLists: true}))
		return errors.Join(errs...)
	})
	r.do(func() error { r.veth.reconcile(); return nil })
	must(t, r.Edge.Edge.SetSysctl("net/ipv4/conf/"+KernelEnd+"/rp_filter", "1"))
	must(t, r.Edge.Edge.SetSysctl("net/ipv4/conf/eth0/forwarding", "0"))
	r.do(func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: r.veth.link.kernel().Attrs().Index, Family: unix.AF_INET, IP: r.veth.Route(0).Forward4.AsSlice()})
	})
	r.do(func() error { r.veth.reconcile(); return nil })
	if why := r.veth.Fault(); why != "" {
		t.Errorf("a fault is left: %s", why)
	}
	r.do(func() error {
		for what, f := range map[string]func() (bool, error){
			"link": r.veth.link.checkLink, "sysctls": r.veth.link.checkPairSysctls, "forwarding": r.veth.forwarding.check,
			"addresses": r.veth.link.checkAddresses, "routes": r.veth.routes.check, "rules": r.veth.rules.check, "return path": r.veth.returnPath.check,
		} {
			if ok, err := f(); !ok || err != nil {
				t.Errorf("%s: %v %v", what, ok, err)
			}
		}
		return nil
	})
	dst := netip.AddrPortFrom(netlab.Host4(netlab.RemoteNet, 2), 8080)
	echo(t, r.Remote, dst)
	r.exchange(netip.AddrPortFrom(r.veth.Route(0).Forward4, 1024), dst)
	for _, what := range []string{"what=link", "sysctls", "what=forwarding", "nftables rules", "return path"} {
		if !strings.Contains(r.log.String(), what) {
			t.Errorf("nothing said of %s: %s", what, r.log.String())
		}
	}
	// A route that goes without a notice is found within routesAtLeast.
	k := r.veth.reconciler
	r.do(func() error {
		route, _ := r.veth.routes.routeTo(vip)
		err := netlink.RouteDel(route)
		for k.notices.Changed() {
		}
		r.veth.mu.Lock()
		k.routesAt = time.Now().Add(-routesAtLeast)
		r.veth.mu.Unlock()
		r.veth.reconcile()
		if ok, err := r.veth.routes.check(); !ok || err != nil {
			t.Errorf("a route without a notice: %v %v", ok, err)
		}
		if r.veth.reconcile(); k.notices.Changed() || k.routesDue(time.Now()) {
			t.Error("routes are read although nothing has changed")
		}
		return err
	})
	r.close()
}

// A host veth that cannot be repaired is a fault, for which the node is not ready.
func TestWireAHostVethThatIsGoneIsAFault(t *testing.T) {
	r := newRig(t)
	r.open()
	r.do(func() error { return netlink.LinkDel(r.veth.link.kernel()) })
	r.do(func() error { r.veth.reconcile(); return nil })
	if why := r.veth.Fault(); !strings.Contains(why, KernelEnd) {
		t.Errorf("the fault is %q", why)
	}
	r.do(r.veth.Close)
	r.veth = nil
}

func TestWireForeignInterfaceOfTheNameIsLeftAlone(t *testing.T) {
	r := newRig(t)
	must(t, r.Edge.Edge.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: KernelEnd}}))
	r.do(func() error {
		if _, err := Open(r.config()); err == nil || !strings.Contains(err.Error(), "not Weir's") {
			return fmt.Errorf("opened over a foreign interface: %w", err)
		}
		return CleanupStale(r.dir, "")
	})
	if _, err := r.Edge.Edge.Interface(KernelEnd); err != nil {
		t.Error(err)
	}
}

func TestWirePrefixInUseIsRefused(t *testing.T) {
	r := newRig(t)
	cfg := r.config()
	cfg.Prefix4 = netip.MustParsePrefix("10.40.0.0/16")
	r.do(func() error {
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "10.40.0.0/24") {
			return fmt.Errorf("took a prefix that is in use: %w", err)
		}
		return nil
	})
	r.unchanged()
}

func TestWireDroppingForwardPolicyIsSaid(t *testing.T) {
	r := newRig(t)
	r.do(func() error { return dropForwarded() })
	r.open()
	if !strings.Contains(r.log.String(), "docker-like") {
		t.Errorf("not said: %s", r.log.String())
	}
	r.do(r.veth.Close)
	r.veth = nil
}

// Packets that a pod hands over as one large buffer (GSO) and that the kernel
// forwards to the host veth come there as packets of at most the MTU.
func TestWireForwardedLargeBuffersAreSegmented(t *testing.T) {
	r := newRig(t)
	r.open()
	r.do(func() error {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
		})
		if err != nil {
			return err
		}
		t.Cleanup(func() { p.Close() })
		l, err := xdplink.AttachXDP(xdplink.XDPOptions{Program: p, Interface: r.veth.Index(), Flags: xdplink.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	const segment, segments = 1000, 30
	hp := r.veth.Route(0)
	for _, dst := range []netip.AddrPort{netip.AddrPortFrom(hp.Local4, 5000), netip.AddrPortFrom(hp.Local6, 5000)} {
		c, err := r.Pod.ListenPacket("udp", "[::]:4000")
		must(t, err)
		raw, err := c.(*net.UDPConn).SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, segment)
		}))
		must(t, err)
		_, err = c.WriteTo(make([]byte, segment*segments), net.UDPAddrFromAddrPort(dst))
		must(t, err)
		c.Close()
		for i := range segments {
			_, payload, ok := r.receive(dst, answerWithin)
			if !ok || len(payload) != segment {
				t.Fatalf("to %s: packet %d has %d bytes (came: %v)", dst, i, len(payload), ok)
			}
		}
	}
}
