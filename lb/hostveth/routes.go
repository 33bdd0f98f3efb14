package hostveth

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// AddRoute routes a frontend's address to the host veth, for clients on the
// node. A family without a prefix has no route there, which is not an error.
func (h *Veth) AddRoute(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.routeTo(a)
	if !ok {
		return nil
	}
	if h.adopted.takeRoute(a) {
		h.routes[a] = true
		return nil
	}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s to the host veth: %w", a, err)
	}
	h.routes[a] = true
	return nil
}

// RemoveRoute removes the route. A missing route is not an error.
func (h *Veth) RemoveRoute(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.routes, a)
	h.adopted.takeRoute(a)
	r, ok := h.routeTo(a)
	if !ok {
		return nil
	}
	if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route %s to the host veth: %w", a, err)
	}
	return nil
}

// SourceFor is the SNAT source towards listeners on a, an address of the node.
// Each address has a separate source, whose route names a as the source of packets sent
// there: a UDP server on the wildcard address leaves the choice to the kernel
// and would else answer from an address that no flow has. If the prefix has no address left
// it is the source of all endpoints on this node.
func (h *Veth) SourceFor(a netip.Addr) (netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sourceFor(a)
}

func (h *Veth) sourceFor(a netip.Addr) (netip.Addr, error) {
	p := h.prefixFor(a)
	if !p.IsValid() {
		return netip.Addr{}, nil
	}
	n, known := h.sources[a]
	if !known {
		if n, adopted := h.adopted.takeSource(a); adopted {
			h.sources[a] = n
			return h.address(p, n), nil
		}
		n = h.freeSource()
	}
	src := h.address(p, n)
	if !p.Contains(src) || !p.Contains(src.Next()) { // nor IPv4's broadcast address
		return h.address(p, localHost), nil
	}
	err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: h.kernel().Attrs().Index, Dst: ipNet(src, src.BitLen()), Src: a.AsSlice(),
		Scope: netlink.SCOPE_LINK, Protocol: route.Protocol,
	})
	if err != nil {
		return h.address(p, localHost), fmt.Errorf("route to %s with source %s: %w", src, a, err)
	}
	if !known {
		if err := h.setNeighbor(src); err != nil {
			return h.address(p, localHost), err
		}
		h.sources[a] = n
	}
	return src, nil
}

// freeSource is the lowest number that no address of the node has.
func (h *Veth) freeSource() int {
	taken := map[int]bool{}
	for _, n := range h.sources {
		taken[n] = true
	}
	if h.adopted != nil {
		for _, n := range h.adopted.sources {
			taken[n] = true
		}
	}
	n := firstSource
	for taken[n] {
		n++
	}
	return n
}

// prefixFor is the prefix of an address's family.
func (h *Veth) prefixFor(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return h.cfg.Prefix6
	}
	return h.cfg.Prefix4
}

func (h *Veth) routeTo(a netip.Addr) (*netlink.Route, bool) {
	p := h.prefixFor(a)
	gw := h.address(p, localHost)
	if !gw.IsValid() {
		return nil, false
	}
	return &netlink.Route{
		LinkIndex: h.kernel().Attrs().Index, Dst: ipNet(a, a.BitLen()), Gw: gw.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK), Protocol: route.Protocol,
	}, true
}

// removeStaleRoutes removes the routes that an earlier process has left: to
// frontends that may not be there any more, and from addresses that the node
// may not have any more.
func (h *Veth) removeStaleRoutes() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := h.ownRoutes(family)
		if err != nil {
			return err
		}
		for i := range list {
			if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove the old route to %s: %w", list[i].Dst, err)
			}
		}
	}
	return nil
}

// ownRoutes lists the routes that Weir has put on the host veth.
func (h *Veth) ownRoutes(family int) ([]netlink.Route, error) {
	list, err := netlink.RouteListFiltered(family,
		&netlink.Route{LinkIndex: h.kernel().Attrs().Index, Protocol: route.Protocol},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routes of %s: %w", KernelEnd, err)
	}
	// The library's filter accepts a match of any condition.
	return slices.DeleteFunc(list, func(r netlink.Route) bool {
		return r.LinkIndex != h.kernel().Attrs().Index || r.Protocol != route.Protocol
	}), nil
}
