package lb

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/device"
)

// linkView is the host's interfaces at one moment, and the ports of the configured
// ones.
type linkView struct {
	links []device.Link
	ports map[string][]device.Port
	errs  map[string]error // why some or all ports of an interface are missing
}

// followLinks keeps to the configured interfaces: they may be deleted, made
// again under another index, or get another MAC address. It reports whether a
// port is between two stages, so that the next call should come soon.
func (l *LB) followLinks() (moving bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Hosts may have thousands of interfaces: they are listed only when needed.
	if l.lookAtPorts() || l.bonded {
		l.reconcile()
	}
	return slices.ContainsFunc(l.ifaces, func(i *iface) bool { return i.stage != open && i.stage != vacant })
}

// lookAtPorts asks the kernel for the interface of every port. It takes over
// changed MAC addresses, and reports whether anything else differs.
func (l *LB) lookAtPorts() (differs bool) {
	for slot, i := range l.ifaces {
		if i.stage != open {
			differs = differs || i.stage != vacant
			continue
		}
		dev, err := netlink.LinkByIndex(cmp.Or(i.as, i.index))
		if err != nil {
			gone := errors.As(err, new(netlink.LinkNotFoundError))
			if gone && i.host {
				l.setAbsent(i.name, "is gone, and is the host veth: restart Weir", true)
			}
			differs = differs || gone && !i.host
			continue
		}
		differs = differs || !i.host && i.as != 0 && dev.Attrs().Name != i.of || l.severed(i)
		if mac := dev.Attrs().HardwareAddr; len(mac) == 6 && [6]byte(mac) != i.mac && l.attached {
			l.log.Info("interface has another MAC address", "interface", i.name, "mac", mac)
			old := i.mac
			i.mac = [6]byte(mac)
			if err := l.steerTo(slot); err != nil {
				i.mac = old
				l.log.Error("steering", "err", err)
			}
		}
	}
	return differs || len(l.absent) > 0
}

// severed reports whether the kernel has taken the steering program or the sockets
// off the device of a port: the former when the device is deleted, the latter also
// when it moves to another network namespace. That tells a new device from an old one
// of the same index.
func (l *LB) severed(i *iface) bool {
	return i.attachment != nil && !i.attachment.Attached() || len(i.sockets) > 0 && i.sockets[0].Unbound()
}

// reconcile brings the ports in line with the interfaces that there are.
func (l *LB) reconcile() {
	links, err := l.links()
	if err != nil {
		l.log.Warn("follow interfaces", "err", err)
		return
	}
	v := l.viewOf(links)
	changed := false
	if l.attached && l.settled() {
		changed = l.changePorts(v)
	}
	for _, in := range l.cfg.Interfaces {
		changed = l.followActive(in.Name, v.ports[in.Name]) || changed
	}
	l.notePartial(v)
	if l.attached {
		l.noteAbsent(v)
	}
	if !changed {
		return
	}
	if err := l.router.SetInterfaces(l.routedBy(), l.hostVeth()); err != nil {
		l.log.Error("routes", "err", err)
	}
}

func (l *LB) viewOf(links []device.Link) *linkView {
	v := &linkView{links: links, ports: map[string][]device.Port{}, errs: map[string]error{}}
	for _, in := range l.cfg.Interfaces {
		ports, err := device.Resolve(l.nameNow(in.Name, links), links)
		v.ports[in.Name] = ports
		if err != nil {
			v.errs[in.Name] = err
		}
	}
	return v
}

// nameNow is the name of a configured interface in links. One that was renamed
// stays what it is as long as no other interface has its name.
func (l *LB) nameNow(name string, links []device.Link) string {
	if slices.ContainsFunc(links, func(d device.Link) bool { return d.Name == name }) {
		return name
	}
	for _, i := range l.ifaces {
		if i.of != name || i.as == 0 || i.stage != open || l.severed(i.carrier(l)) {
			continue
		}
		if d := link(links, i.as); d != nil {
			return d.Name
		}
	}
	return name
}

// has reports whether a port is one of the view's.
func (v *linkView) has(i, carrier *iface) bool {
	return slices.ContainsFunc(v.ports[i.of], func(p device.Port) bool {
		return p.Interface == i.as && p.Device == carrier.index && uint32(p.Protocol)<<16|uint32(p.VLAN) == i.tag
	})
}

// uses reports whether any configured interface has a port by the device.
func (v *linkView) uses(index int) bool {
	for _, ports := range v.ports {
		if slices.ContainsFunc(ports, func(p device.Port) bool { return p.Device == index }) {
			return true
		}
	}
	return false
}

// lost is why a port that is open is to be given up, "" when it is not.
func (l *LB) lost(slot int, v *linkView) string {
	i := l.ifaces[slot]
	d := link(v.links, i.index)
	switch {
	case d == nil || l.severed(i):
		return "interface is gone"
	case i.bond != 0 && d.Master != i.bond:
		return "bond member left"
	case i.virtual() || i.as == i.index:
		// Another interface may have the name, or the VLAN another parent.
		if len(v.ports[i.of]) > 0 && !v.has(i, i.carrier(l)) {
			return "interface was replaced"
		}
	case i.as == 0 && !v.uses(i.index):
		return "interface carries no VLAN any more"
	}
	return ""
}

// names reports whether a configured interface is the link of an index, or has a
// port by it.
func (v *linkView) names(index int) bool {
	for _, ports := range v.ports {
		if slices.ContainsFunc(ports, func(p device.Port) bool { return p.Device == index || p.Interface == index }) {
			return true
		}
	}
	return false
}

// notePartial warns of members of a bond that cannot be attached.
func (l *LB) notePartial(v *linkView) {
	for _, in := range l.cfg.Interfaces {
		if len(v.ports[in.Name]) == 0 || v.errs[in.Name] == nil {
			l.retract(WarnMember, in.Name)
			continue
		}
		l.warnOnly(WarnMember, in.Name, fmt.Sprintf("%v; its packets go to the kernel, and none are sent by it", v.errs[in.Name]))
	}
}
