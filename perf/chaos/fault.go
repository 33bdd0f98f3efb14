package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// part is a part of the node. Two faults of the same part are never active together.
type part int

const (
	partProcess part = iota
	partLink
	partSource
)

// fault is a kind of fault.
type fault struct {
	name string
	part part
	// ends: the process is ended.
	ends        bool
	least, most time.Duration // that it is active
	// do begins the fault, calls hold, and undoes the fault.
	do func(n *node, ctx context.Context, hold func()) error
	// holdsUp reports whether the connections of a Service may wait while the fault is active;
	// nil: none may.
	holdsUp func(*service) bool
	// explains reports whether the fault may be the cause of a failure; nil: of none.
	explains func(*failure) bool
}

// faults are those of any source. Those of the process explain nothing: neither an
// established nor a new connection may fail.
var faults = []fault{
	{"kill -9", partProcess, true, 0, time.Second, (*node).kill, everybody, nil},
	{"restart", partProcess, true, 0, 0, (*node).restart, everybody, nil},
	{"reload", partProcess, false, 0, 0, (*node).reload, nil, nil},
	{"stopped process", partProcess, false, 200 * time.Millisecond, 2 * time.Second, (*node).stall, everybody, nil},
	{"CPU hogs", partProcess, false, time.Second, 4 * time.Second, (*node).hog, nil, nil},
	{"full disk", partProcess, true, 0, time.Second, (*node).fillDisk, everybody, nil},
	{"memory pressure", partProcess, true, time.Second, 3 * time.Second, (*node).pressMemory, everybody, nil},

	{"link flap", partLink, false, 200 * time.Millisecond, 2 * time.Second, (*node).flapLink, throughFabric, unreachable},
	{"interface made anew", partLink, false, 0, time.Second, (*node).recreateLink, throughFabric, resetByKernel},
	{"smaller MTU", partLink, false, time.Second, 3 * time.Second, (*node).changeMTU, throughFabric, nil},
	{"other route", partLink, false, time.Second, 3 * time.Second, (*node).reroute, nil, nil},
	{"lost route", partLink, false, 200 * time.Millisecond, 2 * time.Second, (*node).loseRoute, throughFabric, unreachable},
	{"lost neighbors", partLink, false, 0, 0, (*node).loseNeighbors, nil, nil},
}

func everybody(*service) bool { return true }

func throughFabric(s *service) bool { return s.fabric }

// unreachable explains new connections, to Services with an endpoint behind the interface,
// that end with an ICMP error while there is no route.
func unreachable(f *failure) bool {
	return f.what == "new" && f.service.fabric && f.kind == workload.KindOther
}

// resetByKernel explains besides that a connection is reset: between the moment at which the
// new interface has the SNAT address and that at which Weir guards it, the kernel answers the
// endpoint.
func resetByKernel(f *failure) bool {
	return unreachable(f) || f.service.fabric && f.kind == workload.KindReset
}

// flapLink takes the carrier from eth1.
func (n *node) flapLink(_ context.Context, hold func()) error {
	peer, err := n.Fabric.Interface("edge")
	if err != nil {
		return err
	}
	if err := n.Fabric.Netlink().LinkSetDown(peer); err != nil {
		return err
	}
	hold()
	return n.Fabric.Netlink().LinkSetUp(peer)
}

// edgeAddrs are the addresses of eth1.
var edgeAddrs = []netip.Prefix{
	netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 1), 24), netip.PrefixFrom(netlab.Host6(netlab.FabricNet, 1), 64),
}

// recreateLink deletes eth1 and makes it again, with the same MAC address, as a driver that
// is loaded anew does. The fault lasts until Weir is attached to it: while no process runs,
// nobody guards the new interface.
func (n *node) recreateLink(ctx context.Context, hold func()) error {
	edge := n.Edge.Edge
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
		netlab.End{Namespace: n.Fabric, Name: "edge"}, netlab.LinkConfig{Queues: 2})
	if err != nil {
		return err
	}
	port, err := n.Fabric.Interface("edge")
	if err != nil {
		return err
	}
	bridge, err := n.Fabric.Interface("br0")
	if err != nil {
		return err
	}
	made, err := edge.Interface("eth1")
	if err != nil {
		return err
	}
	n.links = append(n.links, old.Attrs().Index, made.Attrs().Index)
	return errors.Join(n.arrangeFabric(),
		n.Fabric.Netlink().LinkSetMasterByIndex(port, bridge.Attrs().Index),
		edge.SetSysctl("net/ipv4/conf/eth1/forwarding", "0"),
		edge.SetSysctl("net/ipv4/conf/eth1/rp_filter", "1"),
		n.zoneBRoutes(edge.Netlink().RouteReplace),
		n.untilAttached(ctx, made.Attrs().Index))
}

// untilAttached waits until Weir is attached to an interface. A fault of the process may be
// active meanwhile.
func (n *node) untilAttached(ctx context.Context, index int) error {
	for deadline := time.Now().Add(patience.For(10 * time.Second)); time.Now().Before(deadline); {
		if s, err := n.status(ctx); err == nil {
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
func (n *node) changeMTU(_ context.Context, hold func()) error {
	return n.withMTU("eth1", 1400, hold)
}

func (n *node) withMTU(name string, mtu int, hold func()) error {
	link, err := n.Edge.Edge.Interface(name)
	if err != nil {
		return err
	}
	nl := n.Edge.Edge.Netlink()
	if err := nl.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	hold()
	return nl.LinkSetMTU(link, link.Attrs().MTU)
}

// reroute sends packets to zone b by another router.
func (n *node) reroute(_ context.Context, hold func()) error {
	link, err := n.Edge.Edge.Interface("eth1")
	if err != nil {
		return err
	}
	nl := n.Edge.Edge.Netlink()
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
func (n *node) loseRoute(_ context.Context, hold func()) error {
	nl := n.Edge.Edge.Netlink()
	if err := n.zoneBRoutes(nl.RouteDel); err != nil {
		return err
	}
	hold()
	return n.zoneBRoutes(nl.RouteReplace)
}

func (n *node) zoneBRoutes(change func(*netlink.Route) error) error {
	link, err := n.Edge.Edge.Interface("eth1")
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
func (n *node) loseNeighbors(_ context.Context, hold func()) error {
	nl := n.Edge.Edge.Netlink()
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
