package hostcheck

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/config"
)

// nodePortAddresses are the addresses on which weir run would serve node ports, by the addresses of the Node
// object, those of this machine, and the source of the default route of a family. Of a family of which nothing
// else is known it is the lowest address of the machine.
func nodePortAddresses(cfg *config.Configuration, node, machine []netip.Addr, source func(family int) netip.Addr) (out []netip.Addr) {
	machine = slices.DeleteFunc(slices.Clone(machine), func(a netip.Addr) bool { return a.IsLoopback() || a.IsLinkLocalUnicast() })
	slices.SortFunc(machine, netip.Addr.Compare)
	prefixes, primary := cfg.NodePortPrefixes()
	if !primary {
		return slices.DeleteFunc(machine, func(a netip.Addr) bool {
			return len(prefixes) > 0 && !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		})
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		of := func(a netip.Addr) bool { return a.Is4() == (family == netlink.FAMILY_V4) }
		held := func(a netip.Addr) bool { return of(a) && slices.Contains(machine, a) }
		if i := slices.IndexFunc(node, held); i >= 0 {
			out = append(out, node[i])
		} else if i := slices.IndexFunc(node, of); i >= 0 { // the manifests of another node are checked
			out = append(out, node[i])
		} else if a := source(family); held(a) {
			out = append(out, a)
		} else if i := slices.IndexFunc(machine, of); i >= 0 {
			out = append(out, machine[i])
		}
	}
	return out
}

// defaultSource is the source address of the default route of a family, not valid if there is none.
func defaultSource(family int) netip.Addr {
	routes, _ := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST) // without them addresses alone tell
	for i := range routes {
		src := routes[i].Src
		if src == nil && routes[i].Gw != nil {
			if to, err := netlink.RouteGet(routes[i].Gw); err == nil && len(to) > 0 {
				src = to[0].Src
			}
		}
		if a, ok := netip.AddrFromSlice(src); ok {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}
