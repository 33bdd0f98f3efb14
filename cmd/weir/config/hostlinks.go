package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HostInterface is a network interface of the machine.
type HostInterface struct {
	Name      string
	Kind      string // rtnetlink's name of it, such as "dummy"; "device" for hardware
	Loopback  bool
	Up        bool // administratively: a carrier may be missing
	Addresses []netip.Prefix
}

// hostInterfaces lists the interfaces of the calling thread's network namespace.
func hostInterfaces() ([]HostInterface, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	addresses := map[int][]netip.Prefix{}
	for _, a := range addrs {
		if p, ok := prefixOf(&a); ok {
			addresses[a.LinkIndex] = append(addresses[a.LinkIndex], p)
		}
	}
	out := make([]HostInterface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		out = append(out, HostInterface{
			Name: a.Name, Kind: l.Type(), Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0, Up: a.RawFlags&unix.IFF_UP != 0,
			Addresses: addresses[a.Index],
		})
	}
	return out, nil
}

func prefixOf(a *netlink.Addr) (netip.Prefix, bool) {
	if a.IPNet == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(a.IP)
	bits, _ := a.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), ok
}

// defaultRoutes are the interfaces that default routes of the main table lead to. The table
// of a router may have a million routes: none is kept.
func defaultRoutes() ([]string, error) {
	var to []int
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		indexes, err := whole(func() ([]int, error) { return defaultRouteLinks(family) })
		if err != nil {
			return nil, err
		}
		to = append(to, indexes...)
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, l := range links {
		if slices.Contains(to, l.Attrs().Index) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// defaultRouteLinks are the indexes of interfaces that default routes of a family lead to.
func defaultRouteLinks(family int) (to []int, err error) {
	err = netlink.RouteListFilteredIter(family, &netlink.Route{}, 0, func(r netlink.Route) bool {
		if r.Type == unix.RTN_UNICAST && isDefault(r.Dst) {
			to = append(to, r.LinkIndex) // 0 of a route with several paths
			for _, hop := range r.MultiPath {
				to = append(to, hop.LinkIndex)
			}
		}
		return true
	})
	return to, err
}

func isDefault(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	bits, _ := to.Mask.Size()
	return bits == 0
}

// whole repeats a dump that a change has interrupted, and takes the last as it is.
func whole[T any](dump func() ([]T, error)) (list []T, err error) {
	for range 5 {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return list, nil
}
