package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// A link behind the next router is narrower than what the ends announce to each
// other: only the router's ICMP errors, through Weir, tell the client. Towards
// the client Weir's own way out is narrow: Weir tells the endpoint.
func TestWirePathMTUIsLearned(t *testing.T) {
	const narrow = 1400
	f := ownFixture(t, options{services: []service{toRouted, toAttached}})
	f.checkChecksums(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		snat := netlab.Host4(netlab.FabricNet, 1)
		if six {
			snat = netlab.Host6(netlab.FabricNet, 1)
		}
		// Two Services: who knows a path MTU announces less from then on.
		narrowRoute(t, f.Fabric, "eth1", routed.addr(six), narrow)
		f.checkTransfer(t, toRouted, six, size(4<<20, 1<<20), "upload")
		if mtu := pathMTU(t, f.Client, toRouted.lbIP(six)); mtu != narrow {
			t.Errorf("the client knows a path MTU of %d to the frontend", mtu)
		}
		narrowRoute(t, f.Edge.Edge, "eth0", clientAddr(six), narrow)
		// Until Weir has heard of the route.
		for deadline := time.Now().Add(within); !t.Failed(); {
			f.checkTransfer(t, toAttached, six, size(4<<20, 1<<20), "download")
			mtu := pathMTU(t, f.ZoneA, snat)
			if mtu == narrow {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("the endpoint knows a path MTU of %d to Weir", mtu)
			}
		}
	})
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	var passed, made uint64
	for _, w := range status.Workers {
		passed, made = passed+w.Counters[counter.ICMPForwarded], made+w.Counters[counter.ICMPErrors]
	}
	if passed == 0 || made == 0 {
		t.Errorf("%d errors were passed on and %d made", passed, made)
	}
}

// narrowRoute makes a host's own route to an address narrower than its link.
func narrowRoute(t *testing.T, n *netlab.Namespace, ifname string, to netip.Addr, mtu int) {
	t.Helper()
	link, err := n.Interface(ifname)
	if err != nil {
		t.Fatal(err)
	}
	dst := &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}
	if err := n.Netlink().RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, MTU: mtu, MTULock: true, Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
}

// pathMTU is what a namespace's kernel knows of the way to an address.
func pathMTU(t *testing.T, n *netlab.Namespace, to netip.Addr) (mtu int) {
	t.Helper()
	c, err := n.DialContext(inTime(t, within), "udp", netip.AddrPortFrom(to, 9).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	control(t, c, func(fd int) error {
		var err error
		if mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU); to.Is6() {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
		}
		return err
	})
	return mtu
}

func control(t *testing.T, c net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// An address that no interface holds answers pings, from clients and from the
// node itself; the node's own addresses answer as ever.
func TestWirePing(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		node := toAttached.atNode(httpPort, six).Addr()
		for name, c := range map[string]struct {
			from *netlab.Namespace
			to   netip.Addr
		}{
			"load balancer IP": {f.Client, toAttached.lbIP(six)},
			"load balancer IP in the clients' own network": {f.Client, toAnnounced.lbIP(six)},
			"load balancer IP from the node":               {f.Edge.Edge, toAttached.lbIP(six)},
			"the node":                                     {f.Client, node},
		} {
			t.Run(name, func(t *testing.T) {
				for _, size := range []int{0, 56, 1400} {
					if err := ping(inTime(t, within), c.from, c.to, size); err != nil {
						t.Errorf("%d bytes: %v; %s; %s", size, err, neighborOf(c.from, c.to), f.whatWasDropped())
					}
				}
			})
		}
	})
}

// neighborOf is the entry of an address in a namespace's neighbor table, for failed tests.
func neighborOf(n *netlab.Namespace, a netip.Addr) string {
	list, err := n.Netlink().NeighList(0, 0)
	if err != nil {
		return err.Error()
	}
	for _, e := range list {
		if e.IP.Equal(a.AsSlice()) {
			return fmt.Sprintf("neighbor at %q, state %#x", e.HardwareAddr, e.State)
		}
	}
	return "no neighbor entry"
}

// icmpSocket is a raw socket for ICMP of one family.
func icmpSocket(n *netlab.Namespace, six bool) (net.PacketConn, error) {
	if six {
		return n.ListenPacket("ip6:ipv6-icmp", "::")
	}
	return n.ListenPacket("ip4:icmp", "0.0.0.0")
}

// ping sends an echo request and waits for its reply.
func ping(ctx context.Context, n *netlab.Namespace, to netip.Addr, size int) error {
	c, err := icmpSocket(n, to.Is6())
	if err != nil {
		return err
	}
	defer c.Close()
	body := bytes.Repeat([]byte("weir"), size/4)
	want := append([]byte{0x77, 0x65, byte(size >> 8), byte(size)}, body...)
	message := append([]byte{128, 0, 0, 0}, want...) // the kernel sums ICMPv6
	reply := byte(129)
	if to.Is4() {
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 0x7765, Seq: uint16(size)}, gopacket.Payload(body)); err != nil {
			return err
		}
		message, reply = buf.Bytes(), 0
	}
	for ctx.Err() == nil {
		if _, err := c.WriteTo(message, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		got, err := icmpFrom(c, to, patience.For(time.Second), func(m []byte) bool { return m[0] == reply })
		if err == nil && bytes.Equal(got[4:], want) {
			return nil
		}
		if err == nil {
			return fmt.Errorf("the reply is %x, want %x", got[4:], want)
		}
	}
	return fmt.Errorf("no reply: %w", ctx.Err())
}

// icmpFrom waits for an ICMP message from an address.
func icmpFrom(c net.PacketConn, from netip.Addr, within time.Duration, is func(m []byte) bool) ([]byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	for buf := make([]byte, 2048); ; {
		n, a, err := c.ReadFrom(buf)
		if err != nil {
			return nil, err
		}
		source, _ := netip.AddrFromSlice(a.(*net.IPAddr).IP)
		if source.Unmap() == from && n >= 8 && is(buf[:n]) {
			return buf[:n], nil
		}
	}
}

// A datagram to an endpoint's closed port is refused at the client, whether the
// endpoint is on the wire or behind the node's kernel.
func TestWireAClosedPortIsRefused(t *testing.T) {
	services := []service{
		{name: "closed", index: 21, endpoints: []endpoint{{network: netlab.FabricNet, host: 55, node: attached.node}}},
		{name: "closed-pod", index: 22, endpoints: []endpoint{{network: netlab.PodNet, host: 55, node: pod.node}}},
	}
	f := ownFixture(t, options{services: services})
	for i, n := range []*netlab.Namespace{f.ZoneA, f.Pod} {
		for _, six := range []bool{false, true} {
			a := services[i].endpoints[0].addr(six)
			if err := n.AddAddr("eth0", netip.PrefixFrom(a, map[bool]int{false: 24, true: 64}[six])); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range services {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				udp, err := (&workload.UDPLoad{Namespace: f.Client, Source: clientAddr(six), Targets: []netip.AddrPort{s.at(echoPort, six)},
					Requests: 5, Timeout: patience.For(5 * time.Second), FirstPort: 2000, Ports: 1000}).Run(inTime(t, within))
				if err != nil || udp.Failures()[workload.KindRefused] != 5 {
					t.Errorf("%v, %v; %s", udp.Failures(), err, f.whatWasDropped())
				}
			})
		})
	}
}

// A traceroute shows the frontend's address for Weir and for the router behind.
func TestWireTraceroute(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		to := toRouted.at(echoPort, six)
		for ttl := 1; ttl <= 2; ttl++ {
			icmp, err := icmpSocket(f.Client, six)
			if err != nil {
				t.Fatal(err)
			}
			defer icmp.Close()
			c, err := f.Client.DialContext(inTime(t, within), "udp", to.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			control(t, c, func(fd int) error {
				if six {
					return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
				}
				return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, ttl)
			})
			port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
			exceeded, quoted := byte(11), 8+20
			if six {
				exceeded, quoted = 3, 8+40
			}
			ports := []byte{byte(port >> 8), byte(port), byte(to.Port() >> 8), byte(to.Port())}
			about := func(m []byte) bool {
				return m[0] == exceeded && len(m) >= quoted+4 && bytes.Equal(m[quoted:quoted+4], ports)
			}
			err = context.DeadlineExceeded
			for tries := 0; err != nil && tries < 5; tries++ {
				_, _ = c.Write([]byte("where?")) // the error of the last one, perhaps
				_, err = icmpFrom(icmp, to.Addr(), patience.For(2*time.Second), about)
			}
			if err != nil {
				t.Errorf("TTL %d: no time exceeded from %v: %v; %s", ttl, to.Addr(), err, f.whatWasDropped())
			}
		}
	})
}
