package ports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
)

// Follow keeps to the configured interfaces: they may be deleted, made again under
// another index, or get another MAC address. quiesced reports whether every worker has
// carried out the last Update. The caller passes the Update on to the workers.
func (ps *Ports) Follow(quiesced bool) Update {
	u := Update{Frames: make([][]uint64, ps.workers)}
	// Hosts may have thousands of interfaces: they are listed only when needed.
	if !ps.probe() && !ps.bonded {
		return u
	}
	links, err := ps.links()
	if err != nil {
		ps.log.Warn("follow interfaces", "err", err)
		return u
	}

	v := ps.viewOf(links)
	if ps.attached {
		ps.guard(v)
	}
	if ps.attached && quiesced {
		ps.change(v, &u)
	}
	for _, in := range ps.cfg.Interfaces {
		u.Routes = ps.followActive(in.Name, v.ports[in.Name]) || u.Routes
	}
	ps.notePartial(v)
	if ps.attached {
		ps.noteAbsent(v)
	}
	return u
}

// probe asks the kernel for the interface of every port. It takes over changed MAC
// addresses, and reports whether anything else differs.
func (ps *Ports) probe() (differs bool) {
	for id, p := range ps.list {
		if p.state != open {
			differs = differs || p.state != vacant
			continue
		}
		found, err := netlink.LinkByIndex(cmp.Or(p.routeIndex, p.index))
		if err != nil {
			gone := errors.As(err, new(netlink.LinkNotFoundError))
			if gone && p.host {
				ps.setAbsent(p.name, "is gone, and is the host veth: restart Weir", true)
			}
			differs = differs || gone && !p.host
			continue
		}
		renamed := !p.host && p.routeIndex != 0 && found.Attrs().Name != p.parent
		differs = differs || renamed || severed(p)
		if mac := found.Attrs().HardwareAddr; len(mac) == 6 {
			ps.followMAC(id, [6]byte(mac))
		}
		ps.followMTU(p, found.Attrs().MTU)
		p.fault = keepPath(p, found.Attrs().MTU, ps.log)
		p.lost.look(p, found)
		ps.keepProgram(p, device.CarrierChanges, ps.program.Refresh)
		p.down = !p.host && isDown(found.Attrs())
		if ps.attached && !p.host && !p.isVLAN() && !p.down {
			p.found = queuesNow(p)
			differs = differs || p.found != p.queues
		}
		differs = differs || (p.down || p.fault != "") && ps.attached
		if p.hook == steer.TCX {
			ps.noteGeneric(p.name, found.Attrs().Xdp)
		}
	}
	return differs || len(ps.absent) > 0
}

// followMAC takes over the MAC address of a port's interface.
func (ps *Ports) followMAC(id int, mac [6]byte) {
	p := ps.list[id]
	if mac == p.mac || !ps.attached {
		return
	}
	ps.log.Info("interface has another MAC address", "interface", p.name, "mac", net.HardwareAddr(mac[:]))
	old := p.mac
	p.mac = mac
	if err := ps.updateAddresses(id); err != nil {
		p.mac = old
		ps.log.Error("steering", "err", err)
	}
}

// noteGeneric warns of an XDP program in generic mode on an interface with hook tcx, which is
// refused at the start: the packets that TCX programs get begin at their IP header.
func (ps *Ports) noteGeneric(name string, xdp *netlink.LinkXdp) {
	if xdp == nil || !xdp.Attached || xdp.AttachMode != nl.XDP_ATTACHED_SKB {
		ps.warnings.Retract(warning.Unreadable, name)
		return
	}
	ps.warnings.Replace(warning.Unreadable, name, fmt.Sprintf("XDP program %d was attached in generic mode: hook tcx cannot read "+
		"packets that have passed it, and the kernel gets them; remove the program, or use hook: xdp", xdp.ProgId))
}

// severed reports whether the kernel has taken the steering program or the sockets off the
// device of a port: the former when the device is deleted, the latter also when it moves to
// another network namespace. That distinguishes a new device from an old device of the same
// index.
func severed(p *port) bool {
	return p.attachment != nil && !p.attachment.Attached() ||
		len(p.sockets) > 0 && p.sockets[0].Unbound() ||
		len(p.inner) > 0 && p.inner[0].Unbound()
}

// change takes every port to its next state, removes ports and adds new ones.
// Preconditions: the workers have carried out the last Update.
func (ps *Ports) change(v *view, u *Update) {
	maps.DeleteFunc(ps.refused, func(index int, _ refusal) bool { return !v.names(index) })
	ps.advance(v, u)
	u.Routes = ps.removeLost(v) || u.Routes
	if !ps.Moving() {
		ids, removed := ps.followQueues()
		u.Ports, u.Routes = append(u.Ports, ids...), u.Routes || removed
		u.Ports = append(u.Ports, ps.addNew(v)...)
	}
}

// followActive notes which members of a bond may be sent by, and reports whether that
// has changed.
func (ps *Ports) followActive(name string, resolved []device.Port) (changed bool) {
	for _, p := range ps.list {
		if !p.member || p.routeIndex == 0 || p.parent != name || p.state != open {
			continue
		}
		d := ps.deviceOf(p)
		active := slices.ContainsFunc(resolved, func(r device.Port) bool {
			return r.Device == d.index && r.Active
		})
		if active != p.active {
			p.active, changed = active, true
			ps.log.Info("bond member", "interface", name, "member", d.name, "active", active)
		}
	}
	return changed
}

// notePartial warns of members of a bond that cannot be attached.
func (ps *Ports) notePartial(v *view) {
	for _, in := range ps.cfg.Interfaces {
		if len(v.ports[in.Name]) == 0 || v.errs[in.Name] == nil {
			ps.warnings.Retract(warning.Member, in.Name)
			continue
		}
		ps.warnings.Replace(warning.Member, in.Name,
			fmt.Sprintf("%v; its packets go to the kernel, and none are sent by it", v.errs[in.Name]))
	}
}
