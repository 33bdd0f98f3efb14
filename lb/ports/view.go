package ports

import (
	"slices"

	"github.com/weirlb/weir/lb/device"
)

// view is the host's interfaces at one moment, and the ports of the configured ones.
type view struct {
	interfaces []Interface // the configured ones
	links      []device.Link
	ports      map[string][]device.Port
	errs       map[string]error // why some or all ports of an interface are missing
}

// has reports whether a port, with its device, is in the view.
func (v *view) has(p, d *port) bool {
	return slices.ContainsFunc(v.ports[p.parent], func(r device.Port) bool {
		return r.Interface == p.routeIndex && r.Device == d.index && tagOf(r) == p.tag
	})
}

// uses reports whether any configured interface has a port by the device.
func (v *view) uses(index int) bool {
	return v.contains(func(r device.Port) bool { return r.Device == index })
}

// names reports whether a configured interface is the link of an index, or has a
// port by it.
func (v *view) names(index int) bool {
	return v.contains(func(r device.Port) bool { return r.Device == index || r.Interface == index })
}

func (v *view) contains(f func(r device.Port) bool) bool {
	for _, resolved := range v.ports {
		if slices.ContainsFunc(resolved, f) {
			return true
		}
	}
	return false
}

// link is the link of an index, nil without one.
func link(links []device.Link, index int) *device.Link {
	i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == index })
	if i < 0 {
		return nil
	}
	return &links[i]
}

// tagOf is the VLAN tag of a resolved port, 0 without one.
func tagOf(r device.Port) uint32 { return uint32(r.Protocol)<<16 | uint32(r.VLAN) }
