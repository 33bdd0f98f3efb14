package hostveth

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// routes are the routes to the host veth: of frontends, for clients on the node, and of the sources
// towards the node's own listeners.
type routes struct {
	link    *link
	routes  map[netip.Addr]bool // frontends that are routed to the host veth
	sources map[netip.Addr]int  // number in the prefix, by address of the node
	// foundRoutes and foundSources are the last process's that nobody has asked for yet.
	foundRoutes  map[netip.Addr]bool
	foundSources map[netip.Addr]int
}

// add routes a frontend's address to the host veth, for clients on the
// node. A family without a prefix has no route there, which is not an error.
func (rs *routes) add(a netip.Addr) error {
	r, ok := rs.routeTo(a)
	if !ok {
		return nil
	}
	if rs.foundRoutes[a] {
		delete(rs.foundRoutes, a)
		rs.routes[a] = true
		return nil
	}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s to the host veth: %w", a, err)
	}
	rs.routes[a] = true
	return nil
}

// remove removes the route. A missing route is not an error.
func (rs *routes) remove(a netip.Addr) error {
	delete(rs.routes, a)
	delete(rs.foundRoutes, a)
	r, ok := rs.routeTo(a)
	if !ok {
		return nil
	}
	if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route %s to the host veth: %w", a, err)
	}
	return nil
}

func (rs *routes) sourceFor(a netip.Addr) (netip.Addr, error) {
	p := rs.link.prefixes.of(a)
	if !p.IsValid() {
		return netip.Addr{}, nil
	}
	n, known := rs.sources[a]
	if !known {
		if n, found := rs.foundSources[a]; found {
			delete(rs.foundSources, a)
			rs.sources[a] = n
			return address(p, n), nil
		}
		n = rs.freeSource()
	}
	src := address(p, n)
	if !p.Contains(src) || !p.Contains(src.Next()) { // nor IPv4's broadcast address
		return address(p, localHost), nil
	}
	err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: rs.link.kernel().Attrs().Index, Dst: ipNet(src, src.BitLen()), Src: a.AsSlice(),
		Scope: netlink.SCOPE_LINK, Protocol: route.Protocol,
	})
	if err != nil {
		return address(p, localHost), fmt.Errorf("route to %s with source %s: %w", src, a, err)
	}
	if !known {
		if err := rs.link.setNeighbor(src); err != nil {
			return address(p, localHost), err
		}
		rs.sources[a] = n
	}
	return src, nil
}

// freeSource is the lowest number that no address of the node has.
func (rs *routes) freeSource() int {
	taken := map[int]bool{}
	for _, n := range rs.sources {
		taken[n] = true
	}
	for _, n := range rs.foundSources {
		taken[n] = true
	}
	n := firstSource
	for taken[n] {
		n++
	}
	return n
}

func (rs *routes) routeTo(a netip.Addr) (*netlink.Route, bool) {
	p := rs.link.prefixes.of(a)
	gw := address(p, localHost)
	if !gw.IsValid() {
		return nil, false
	}
	return &netlink.Route{
		LinkIndex: rs.link.kernel().Attrs().Index, Dst: ipNet(a, a.BitLen()), Gw: gw.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK), Protocol: route.Protocol,
	}, true
}

// removeStale removes the routes that an earlier process has left: to
// frontends that may not be there any more, and from addresses that the node
// may not have any more.
func (rs *routes) removeStale() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rs.link.ownRoutes(family)
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

// wanted are the destinations of Weir's routes to the host veth.
func (rs *routes) wanted() map[netip.Addr]bool {
	want := map[netip.Addr]bool{}
	for a := range rs.routes {
		want[a] = true
	}
	for a, n := range rs.sources {
		if p := rs.link.prefixes.of(a); p.IsValid() {
			want[address(p, n)] = true
		}
	}
	return want
}

func (rs *routes) check() (bool, error) {
	want := rs.wanted()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rs.link.ownRoutes(family)
		if err != nil {
			return true, err
		}
		for i := range list {
			a, _ := netip.AddrFromSlice(list[i].Dst.IP)
			delete(want, a.Unmap())
		}
	}
	return len(want) == 0, nil
}

func (rs *routes) ensure() error {
	var errs []error
	for a := range rs.routes {
		if r, ok := rs.routeTo(a); ok {
			errs = append(errs, netlink.RouteReplace(r))
		}
	}
	for a := range rs.sources {
		_, err := rs.sourceFor(a)
		if err != nil && rs.nodeHas(a) {
			errs = append(errs, err)
		} else if err != nil {
			delete(rs.sources, a) // the route went with it
		}
	}
	return errors.Join(errs...)
}

// nodeHas reports whether the node still has an address.
func (rs *routes) nodeHas(a netip.Addr) bool {
	list, err := netlink.AddrList(nil, familyOf(a))
	if err != nil {
		return true
	}
	for i := range list {
		if ip, _ := netip.AddrFromSlice(list[i].IP); ip.Unmap() == a {
			return true
		}
	}
	return false
}

// removeOthers removes Weir's routes to the host veth that nobody has asked for.
func (rs *routes) removeOthers() error {
	want := rs.wanted()
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rs.link.ownRoutes(family)
		errs = append(errs, err)
		for i := range list {
			if want[destination(&list[i])] {
				continue
			}
			if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the old route to %s: %w", list[i].Dst, err))
			}
		}
	}
	return errors.Join(errs...)
}

// find takes over what the last process has put there for its Services and addresses. A route that
// is not as this process would make it is left out.
func (rs *routes) find() error {
	rs.foundRoutes, rs.foundSources = map[netip.Addr]bool{}, map[netip.Addr]int{}
	for _, p := range rs.link.prefixes.list() {
		family := familyOf(p.Addr())
		near, err := rs.link.neighbors(family)
		if err != nil {
			return err
		}
		for _, host := range []int{localHost, forwardHost} {
			if !near[address(p, host)] {
				return fmt.Errorf("neighbor %s: %w", address(p, host), errDiffers)
			}
		}
		list, err := rs.link.ownRoutes(family)
		if err != nil {
			return err
		}
		for i := range list {
			r, to := &list[i], destination(&list[i])
			gateway, _ := netip.AddrFromSlice(r.Gw)
			source, _ := netip.AddrFromSlice(r.Src)
			number, isSource := sourceNumber(p, to)
			switch {
			case !to.IsValid():
			case gateway.Unmap() == address(p, localHost) && !source.IsValid():
				rs.foundRoutes[to] = true
			case isSource && !gateway.IsValid() && source.IsValid() && near[to]:
				rs.foundSources[source.Unmap()] = number
			}
		}
	}
	return nil
}
