package ports

import (
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
)

// portList is the ports by ID. A port keeps the ID until it is vacant.
type portList struct{ ports []*port }

// deviceID is the ID of a device's port, -1 without one. device is an interface index.
func (pl *portList) deviceID(device int) int {
	return slices.IndexFunc(pl.ports, func(p *port) bool {
		return p.index == device && !p.isVLAN() && p.state != vacant
	})
}

// assign gives a port an ID: that of a port that is gone, or the next.
func (pl *portList) assign(p *port) (id int, err error) {
	if id := slices.IndexFunc(pl.ports, func(p *port) bool { return p.state == vacant }); id >= 0 {
		pl.ports[id] = p
		return id, nil
	}
	limit := steer.MaxSlots
	if pl.hostID() < 0 {
		limit-- // the host veth comes last
	}
	if len(pl.ports) >= limit {
		return 0, fmt.Errorf("interface %s: there is room for %d devices and VLANs, "+
			"a VLAN counting once per device that carries it: "+
			"leave out VLAN interfaces by which no client's packet arrives "+
			"(endpoints there are reached through the kernel)",
			p.name, steer.MaxSlots-1)
	}
	pl.ports = append(pl.ports, p)
	return len(pl.ports) - 1, nil
}

// deviceOf is the port whose queues carry the packets of p.
func (pl *portList) deviceOf(p *port) *port {
	if p.isVLAN() {
		return pl.ports[p.vlanParent]
	}
	return p
}

// vlansOn yields the VLANs upon a device that are not about to go.
func (pl *portList) vlansOn(id int) func(yield func(*port) bool) {
	return func(yield func(*port) bool) {
		for _, p := range pl.ports {
			if p.isVLAN() && p.vlanParent == id && p.state <= joining && !yield(p) {
				return
			}
		}
	}
}

// vlans are the VLANs of a device whose packets the program takes, with the MAC address
// of each. VLAN 0 is the device itself. nil: the device itself and no VLAN.
func (pl *portList) vlans(id int) map[steer.VLAN]net.HardwareAddr {
	vlans := map[steer.VLAN]net.HardwareAddr{}
	for p := range pl.vlansOn(id) {
		vlans[steer.VLAN(p.tag)] = slices.Clone(p.mac[:])
	}
	d := pl.ports[id]
	switch onlyVLANs := d.routeIndex == 0 && !d.host; {
	case onlyVLANs:
		return vlans // maybe none is there now
	case len(vlans) == 0:
		return nil
	}
	if d.routeIndex != 0 {
		vlans[0] = slices.Clone(d.mac[:])
	}
	return vlans
}

// carries reports whether a device has the port of a VLAN.
func (pl *portList) carries(id int, r device.Port) bool {
	return slices.ContainsFunc(pl.ports, func(p *port) bool {
		return p.state != vacant && p.vlanParent == id &&
			p.routeIndex == r.Interface && uint16(p.tag) == r.VLAN
	})
}

// missing is the index of the interface that a resolved port wants: its device, or the
// VLAN if the device is there; 0 if neither is missing.
func (pl *portList) missing(r device.Port) (index int) {
	id := pl.deviceID(r.Device)
	switch {
	case id < 0:
		return r.Device
	case r.VLAN != 0 && !pl.carries(id, r):
		return r.Interface
	}
	return 0
}

// joinSince marks the ports that before does not have as joining, and returns their IDs.
func (pl *portList) joinSince(before []*port) (ids []int) {
	for id, p := range pl.ports {
		if id < len(before) && before[id] == p {
			continue
		}
		p.state, p.active = joining, false
		ids = append(ids, id)
	}
	return ids
}

// anyTCX reports whether a device has hook TCX.
func (pl *portList) anyTCX() bool {
	return slices.ContainsFunc(pl.ports, func(p *port) bool {
		return !p.host && !p.isVLAN() && p.state <= joining && p.hook == steer.TCX
	})
}

// attachedBy is the device of a port of a configured interface, nil when none is
// attached.
func (pl *portList) attachedBy(name string) *port {
	for _, p := range pl.ports {
		if p.parent != name || p.routeIndex == 0 || p.state != open {
			continue
		}
		if d := pl.deviceOf(p); d.attachment != nil && !d.severed() {
			return d
		}
	}
	return nil
}

// followActive notes which members of a bond may be sent by, and reports whether that
// has changed.
func (pl *portList) followActive(name string, resolved []device.Port, log *slog.Logger) (changed bool) {
	for _, p := range pl.ports {
		if !p.member || p.routeIndex == 0 || p.parent != name || p.state != open {
			continue
		}
		d := pl.deviceOf(p)
		active := slices.ContainsFunc(resolved, func(r device.Port) bool {
			return r.Device == d.index && r.Active
		})
		if active != p.active {
			p.active, changed = active, true
			log.Info("bond member", "interface", name, "member", d.name, "active", active)
		}
	}
	return changed
}

// lost is why an open port must be removed, "" when it must not.
func (pl *portList) lost(p *port, v *view) string {
	l := link(v.links, p.index)
	switch {
	case l == nil || p.severed():
		return "interface is gone"
	case p.bond != 0 && l.Master != p.bond:
		return "bond member left"
	case p.isVLAN() || p.routeIndex == p.index:
		// Another interface may have the name, or the VLAN another parent.
		if len(v.ports[p.parent]) > 0 && !v.has(p, pl.deviceOf(p)) {
			return "interface was replaced"
		}
	case p.routeIndex == 0 && !v.uses(p.index):
		return "interface carries no VLAN any more"
	}
	return ""
}

// hostID is the ID of the host veth, -1 without one.
func (pl *portList) hostID() int {
	return slices.IndexFunc(pl.ports, func(p *port) bool { return p.host })
}

// devices is the number of ports with queues of their own: VLANs have none.
func (pl *portList) devices() (n int) {
	for _, p := range pl.ports {
		if !p.isVLAN() && p.state != vacant {
			n++
		}
	}
	return n
}

// moving reports whether a port is between two states.
func (pl *portList) moving() bool {
	for _, p := range pl.ports {
		if p.state != open && p.state != vacant {
			return true
		}
	}
	return false
}

// linkDown reports whether a configured interface is there and has no carrier.
func (pl *portList) linkDown(name string) bool {
	return slices.ContainsFunc(pl.ports, func(p *port) bool {
		return p.parent == name && p.routeIndex != 0 && p.state == open && p.down && !pl.deviceOf(p).severed()
	})
}

// faultOf is the fault of a device of a configured interface, "" if there is none.
func (pl *portList) faultOf(name string) string {
	for _, p := range pl.ports {
		if p.parent == name && p.routeIndex != 0 && p.state == open && p.fault != "" {
			return p.fault
		}
	}
	return ""
}
