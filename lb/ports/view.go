package ports

import (
	"slices"

	"github.com/weirlb/weir/lb/device"
)

// view is the host's interfaces at one moment, and the ports of the configured ones.
type view struct {
	links []device.Link
	ports map[string][]device.Port
	errs  map[string]error // why some or all ports of an interface are missing
}

func (ps *Ports) viewOf(links []device.Link) *view {
	v := &view{links: links, ports: map[string][]device.Port{}, errs: map[string]error{}}
	for _, in := range ps.cfg.Interfaces {
		resolved, err := device.Resolve(ps.nameNow(in.Name, links), links)
		v.ports[in.Name] = resolved
		if err != nil {
			v.errs[in.Name] = err
		}
	}
	return v
}

// nameNow is the name of a configured interface in links. An interface that was renamed
// stays the same as long as no other interface has its name.
func (ps *Ports) nameNow(name string, links []device.Link) string {
	if slices.ContainsFunc(links, func(d device.Link) bool { return d.Name == name }) {
		return name
	}
	for _, p := range ps.list {
		if p.parent != name || p.routeIndex == 0 || p.state != open || severed(ps.deviceOf(p)) {
			continue
		}
		if d := link(links, p.routeIndex); d != nil {
			return d.Name
		}
	}
	return name
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

// lost is why an open port must be removed, "" when it must not.
func (ps *Ports) lost(p *port, v *view) string {
	l := link(v.links, p.index)
	switch {
	case l == nil || severed(p):
		return "interface is gone"
	case p.bond != 0 && l.Master != p.bond:
		return "bond member left"
	case p.isVLAN() || p.routeIndex == p.index:
		// Another interface may have the name, or the VLAN another parent.
		if len(v.ports[p.parent]) > 0 && !v.has(p, ps.deviceOf(p)) {
			return "interface was replaced"
		}
	case p.routeIndex == 0 && !v.uses(p.index):
		return "interface carries no VLAN any more"
	}
	return ""
}
