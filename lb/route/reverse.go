package route

import (
	"net/netip"
	"slices"
)

// Reverse is the route back to a packet's source, for the reverse path check
// (RFC 3704). The zero value is that of a source without a route.
type Reverse struct{ e *entry }

// Kind is the kind of the source as a destination.
func (r Reverse) Kind() Kind {
	if r.e == nil {
		return NoRoute
	}
	return r.e.kind
}

// Local reports whether the source is an address of this host.
func (r Reverse) Local() bool { return r.e != nil && r.e.local }

// Default reports whether the route leads where the default route does.
func (r Reverse) Default() bool { return r.e != nil && r.e.reverse.leadsToDefault }

// Inside reports whether the route leads into the node's own networks alone: pods behind
// bridges and veths, overlays. Their packets arrive on no attached interface.
func (r Reverse) Inside() bool { return r.e != nil && r.e.reverse.inside }

// By reports whether the route leads out of the interface with this kernel index.
// In a route with several next hops any of them counts.
func (r Reverse) By(index int) bool {
	return r.e != nil && (r.e.reverse.everyLink || slices.Contains(r.e.reverse.interfaces, index))
}

// reverse is the part of an entry that only Reverse shows.
type reverse struct {
	leadsToDefault, inside bool
	// everyLink: the source is link-local, and has a route on each interface.
	everyLink  bool
	interfaces []int
}

func (r *reverse) equal(o *reverse) bool {
	return r.leadsToDefault == o.leadsToDefault && r.inside == o.inside && r.everyLink == o.everyLink &&
		slices.Equal(r.interfaces, o.interfaces)
}

// insideKinds are the kinds of links that CNI plugins and container runtimes
// make for the pods of a cluster. Other kinds may be uplinks.
var insideKinds = map[string]bool{
	"bridge": true, "veth": true, "netkit": true, "dummy": true, "tun": true, "tuntap": true,
	"vxlan": true, "geneve": true, "ipip": true, "ip6tnl": true, "wireguard": true,
}

// reverse is the reverse path of a route out of the interfaces given.
func (b *builder) reverse(interfaces ...int) reverse {
	r := reverse{inside: len(interfaces) > 0}
	for _, index := range interfaces {
		r.inside = r.inside && b.inside(index)
		if slices.Contains(r.interfaces, index) {
			continue
		}
		r.interfaces = append(append(r.interfaces, index), b.enslaved(index)...)
	}
	return r
}

// enslaved are the attached interfaces with this master: the packets of a bridge
// arrive at its ports.
func (b *builder) enslaved(master int) (list []int) {
	for index := range b.ports {
		if l := b.k.links[index]; l != nil && l.master == master {
			list = append(list, index)
		}
	}
	slices.Sort(list)
	return list
}

// inside reports whether an interface leads into a network of the node's own.
func (b *builder) inside(index int) bool {
	l := b.k.links[index]
	if l == nil || !insideKinds[l.kind] || len(b.ports[index]) > 0 || len(b.enslaved(index)) > 0 {
		return false
	}
	if l.kind != "bridge" {
		return true
	}
	for _, port := range b.k.links {
		if port.master == index && !insideKinds[port.kind] {
			return false
		}
	}
	return true
}

// isDefault reports whether a route to the prefix stands for a default route: halves
// of the address space (OpenVPN) and IPv6's global unicast addresses do.
func isDefault(p netip.Prefix) bool {
	return p.Bits() <= 1 || p.Bits() == 3 && p.Addr() == globalUnicast
}

var globalUnicast = netip.MustParseAddr("2000::")

// markDefaults marks the entries of default routes, and those that lead where a
// default route does: they do not tell where a source is.
func markDefaults(entries map[netip.Prefix]*entry) {
	var defaults []*entry
	for p, e := range entries {
		if isDefault(p) {
			defaults = append(defaults, e)
		}
	}
	var same []*entry
	for _, e := range entries {
		if slices.ContainsFunc(defaults, func(d *entry) bool { return len(d.paths) > 0 && e.equal(d) }) {
			same = append(same, e)
		}
	}
	for _, e := range append(defaults, same...) {
		e.reverse.leadsToDefault, e.reverse.inside = true, false
	}
}

// indexes are the interfaces of next hops.
func indexes(hops []hop) []int {
	list := make([]int, len(hops))
	for i := range hops {
		list[i] = hops[i].index
	}
	return list
}
