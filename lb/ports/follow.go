package ports

import (
	"cmp"
	"errors"
	"fmt"
	"net"

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
	u := Update{Frames: make([][]uint64, ps.opener.workers)}
	// Hosts may have thousands of interfaces: they are listed only when needed.
	if u.Differs = ps.probe() || ps.resolver.bonded; !u.Differs {
		return u
	}
	links, err := ps.resolver.links()
	if err != nil {
		ps.log.Warn("follow interfaces", "err", err)
		return u
	}

	v := ps.resolver.viewOf(links)
	if ps.attached {
		ps.steering.guard(v, ps.life.refused)
	}
	if ps.attached && quiesced {
		ps.life.change(v, &u)
	}
	for _, in := range v.interfaces {
		u.Routes = ps.list.followActive(in.Name, v.ports[in.Name], ps.log) || u.Routes
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
	for id, p := range ps.list.ports {
		if p.state != open {
			differs = differs || p.state != vacant
			continue
		}
		found, err := netlink.LinkByIndex(cmp.Or(p.routeIndex, p.index))
		if err != nil {
			gone := errors.As(err, new(netlink.LinkNotFoundError))
			if gone && p.host {
				ps.absent.Set(p.name, "is gone, and is the host veth: restart Weir", true)
			}
			differs = differs || gone && !p.host
			continue
		}
		renamed := !p.host && p.routeIndex != 0 && found.Attrs().Name != p.parent
		differs = differs || renamed || p.severed()
		if mac := found.Attrs().HardwareAddr; len(mac) == 6 {
			ps.followMAC(id, [6]byte(mac))
		}
		ps.opener.followMTU(p, found.Attrs().MTU)
		p.fault = p.keepPath(found.Attrs().MTU, ps.log)
		if !p.isVLAN() { // its device has the count
			p.lost.look(p.index, p.pair, found)
		}
		ps.steering.keepProgram(p, device.CarrierChanges, ps.steering.program.Refresh)
		p.down = !p.host && isDown(found.Attrs())
		if ps.attached && !p.host && !p.isVLAN() && !p.down {
			p.found = p.queuesNow()
			differs = differs || p.found != p.queues
		}
		differs = differs || (p.down || p.fault != "") && ps.attached
		if p.hook == steer.TCX {
			ps.noteGeneric(p.name, found.Attrs().Xdp)
		}
	}
	return differs || ps.absent.Any()
}

// followMAC takes over the MAC address of a port's interface.
func (ps *Ports) followMAC(id int, mac [6]byte) {
	p := ps.list.ports[id]
	if mac == p.mac || !ps.attached {
		return
	}
	ps.log.Info("interface has another MAC address", "interface", p.name, "mac", net.HardwareAddr(mac[:]))
	old := p.mac
	p.mac = mac
	if err := ps.steering.updateAddresses(id); err != nil {
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

// notePartial warns of members of a bond that cannot be attached.
func (ps *Ports) notePartial(v *view) {
	for _, in := range v.interfaces {
		if len(v.ports[in.Name]) == 0 || v.errs[in.Name] == nil {
			ps.warnings.Retract(warning.Member, in.Name)
			continue
		}
		ps.warnings.Replace(warning.Member, in.Name,
			fmt.Sprintf("%v; its packets go to the kernel, and none are sent by it", v.errs[in.Name]))
	}
}
