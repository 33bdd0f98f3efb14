package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// network is the lab's network around the edge node, with the faults of it.
type network struct {
	lab   *netlab.Edge
	hook  string // of Config
	admin *admin
	links []int // indexes that eth1 has had
}

// asFromWire are the settings of a host whose packets have whole checksums, as if they came by
// a wire.
var asFromWire = map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false}

// arrange prepares the peers of the attached interfaces: XDP programs can send to a veth only
// if its peer polls, and leave packets with partial checksums to the packet loop.
func (n *network) arrange() error {
	if n.hook != "xdp" {
		return nil
	}
	var errs []error
	for _, host := range []*netlab.Namespace{n.lab.Client, n.lab.ZoneA, n.lab.ZoneB} {
		errs = append(errs, host.SetOffloads("eth0", asFromWire))
	}
	return errors.Join(append(errs, n.arrangeFabric())...)
}

// arrangeFabric is arrange for the peer of eth1.
func (n *network) arrangeFabric() error {
	if n.hook != "xdp" {
		return nil
	}
	return n.lab.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true})
}

// keepRouterMAC keeps the MAC address of the router to zone b, which is a bridge: by default it
// is the least of its ports'. A port that is made anew would change it, and hosts would send to
// the old one until their neighbor entries expire.
func (n *network) keepRouterMAC() error {
	bridge, err := n.lab.Fabric.Interface("br0")
	if err != nil {
		return err
	}
	return n.lab.Fabric.Netlink().LinkSetHardwareAddr(bridge, bridge.Attrs().HardwareAddr)
}

// flapLink takes the carrier from eth1.
func (n *network) flapLink(_ context.Context, hold func()) error {
	peer, err := n.lab.Fabric.Interface("edge")
	if err != nil {
		return err
	}
	if err := n.lab.Fabric.Netlink().LinkSetDown(peer); err != nil {
		return err
	}
	hold()
	return n.lab.Fabric.Netlink().LinkSetUp(peer)
}

// edgeAddrs are the addresses of eth1.
var edgeAddrs = []netip.Prefix{
	netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 1), 24), netip.PrefixFrom(netlab.Host6(netlab.FabricNet, 1), 64),
}

// recreateLink deletes eth1 and makes it again, with the same MAC address, as a driver that
// is loaded anew does. The fault lasts until Weir is attached to it: while no process runs,
// nobody guards the new interface.
func (n *network) recreateLink(ctx context.Context, hold func()) error {
	edge := n.lab.Edge
	old, err := edge.Interface("eth1")
	if err != nil {
		return err
	}
	if err := edge.Delete("eth1"); err != nil {
		return err
	}
	hold()
	err = netlab.Connect(
		netlab.End{Namespace: edge, Name: "eth1", MAC: old.Attrs().HardwareAddr, Addrs: edgeAddrs},
		netlab.End{Namespace: n.lab.Fabric, Name: "edge"}, netlab.LinkConfig{Queues: 2})
	if err != nil {
		return err
	}
	port, err := n.lab.Fabric.Interface("edge")
	if err != nil {
		return err
	}
	bridge, err := n.lab.Fabric.Interface("br0")
	if err != nil {
		return err
	}
	made, err := edge.Interface("eth1")
	if err != nil {
		return err
	}
	n.links = append(n.links, old.Attrs().Index, made.Attrs().Index)
	return errors.Join(n.arrangeFabric(),
		n.lab.Fabric.Netlink().LinkSetMasterByIndex(port, bridge.Attrs().Index),
		edge.SetSysctl("net/ipv4/conf/eth1/forwarding", "0"),
		edge.SetSysctl("net/ipv4/conf/eth1/rp_filter", "1"),
		n.zoneBRoutes(edge.Netlink().RouteReplace),
		n.untilAttached(ctx, made.Attrs().Index))
}

// untilAttached waits until Weir is attached to an interface. A fault of the process may be
// active meanwhile.
func (n *network) untilAttached(ctx context.Context, index int) error {
	for deadline := time.Now().Add(patience.For(10 * time.Second)); time.Now().Before(deadline); {
		if s, err := n.admin.status(ctx); err == nil {
			for _, i := range s.Interfaces {
				if i.IfIndex == index {
					return nil
				}
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return errors.New("the interface that was made anew is not attached")
}

// changeMTU makes the MTU of eth1 smaller in place. Until it is undone the interface does not
// take longer packets either, of which nobody tells the sender.
func (n *network) changeMTU(_ context.Context, hold func()) error {
	return n.withMTU("eth1", 1400, hold)
}

func (n *network) withMTU(name string, mtu int, hold func()) error {
	link, err := n.lab.Edge.Interface(name)
	if err != nil {
		return err
	}
	nl := n.lab.Edge.Netlink()
	if err := nl.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	hold()
	return nl.LinkSetMTU(link, link.Attrs().MTU)
}

// reroute sends packets to zone b by another router.
func (n *network) reroute(_ context.Context, hold func()) error {
	link, err := n.lab.Edge.Interface("eth1")
	if err != nil {
		return err
	}
	nl := n.lab.Edge.Netlink()
	var routes []*netlink.Route
	for _, six := range []bool{false, true} {
		to, by := hosts[1].addr(six), hosts[0].addr(six)
		routes = append(routes, &netlink.Route{LinkIndex: link.Attrs().Index, Gw: by.AsSlice(),
			Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}})
	}
	for _, r := range routes {
		if err := nl.RouteAdd(r); err != nil {
			return fmt.Errorf("route by zone a: %w", err)
		}
	}
	hold()
	for _, r := range routes {
		if err := nl.RouteDel(r); err != nil {
			return fmt.Errorf("remove the route by zone a: %w", err)
		}
	}
	return nil
}

// loseRoute removes the routes to zone b.
func (n *network) loseRoute(_ context.Context, hold func()) error {
	nl := n.lab.Edge.Netlink()
	if err := n.zoneBRoutes(nl.RouteDel); err != nil {
		return err
	}
	hold()
	return n.zoneBRoutes(nl.RouteReplace)
}

func (n *network) zoneBRoutes(change func(*netlink.Route) error) error {
	link, err := n.lab.Edge.Interface("eth1")
	if err != nil {
		return err
	}
	for _, p := range []struct {
		dst  net.IP
		bits int
		via  net.IP
	}{
		{netlab.Host4(netlab.ZoneBNet, 0).AsSlice(), 24, netlab.Host4(netlab.FabricNet, 254).AsSlice()},
		{netlab.Host6(netlab.ZoneBNet, 0).AsSlice(), 64, netlab.Host6(netlab.FabricNet, 254).AsSlice()},
	} {
		err := change(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: p.via,
			Dst: &net.IPNet{IP: p.dst, Mask: net.CIDRMask(p.bits, len(p.dst)*8)}})
		if err != nil {
			return fmt.Errorf("route to zone b: %w", err)
		}
	}
	return nil
}

// loseNeighbors has the kernel forget every MAC address that it has learnt, as
// "ip neigh flush all" does.
func (n *network) loseNeighbors(_ context.Context, hold func()) error {
	nl := n.lab.Edge.Netlink()
	list, err := nl.NeighList(0, 0)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
			_ = nl.NeighDel(&list[i]) // some go by themselves
		}
	}
	hold()
	return nil
}

// madeAnew reports whether a difference of two states of the node is that of an interface
// which a fault made anew: routes have the number of the interface.
func (n *network) madeAnew(line string) bool {
	for _, index := range n.links {
		if strings.Contains(line, fmt.Sprintf(" interface %d ", index)) {
			return true
		}
	}
	return false
}
