package lb

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
)

// links lists the host's interfaces.
func (l *LB) links() ([]device.Link, error) {
	links, err := device.Links()
	if err != nil || l.cfg.DeclaredLinks == "" {
		return links, err
	}
	declared, err := os.ReadFile(l.cfg.DeclaredLinks)
	if err != nil {
		return nil, err
	}
	return links, device.Apply(links, declared)
}

// findInterfaces looks up the interfaces of the configuration, and the devices
// that carry them.
func (l *LB) findInterfaces() error {
	if len(l.cfg.Interfaces) == 0 {
		return errors.New("no interface to attach to: give --interface or interfaces in the configuration")
	}
	links, err := l.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, in := range l.cfg.Interfaces {
		ports, err := device.Resolve(in.Name, links)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.ContainsFunc(ports, func(p device.Port) bool { return p.Active }) {
			errs = append(errs, fmt.Errorf("interface %s: it is down; bring it up first", in.Name))
			continue
		}
		for _, p := range ports {
			errs = append(errs, l.addPort(in, p, links))
		}
	}
	return errors.Join(errs...)
}

// addPort adds a port of a configured interface, and its device if no other
// port has it yet.
func (l *LB) addPort(in Interface, p device.Port, links []device.Link) error {
	if in.Mode == "" {
		in.Mode = ModeAuto
	}
	slot := slices.IndexFunc(l.ifaces, func(i *iface) bool { return i.index == p.Device && !i.virtual() })
	if slot < 0 {
		slot = len(l.ifaces)
		d := link(links, p.Device)
		q, err := steer.RxQueues(d.Index)
		if err != nil {
			return fmt.Errorf("interface %s: %w", d.Name, err)
		}
		l.ifaces = append(l.ifaces, &iface{
			name: d.Name, index: d.Index, mode: in.Mode, mac: [6]byte(d.MAC), mtu: d.MTU, driver: d.Kind, queues: q.Rx, under: -1, of: in.Name,
		})
	}
	carrier, named := l.ifaces[slot], link(links, p.Interface)
	if in.Mode != ModeAuto {
		carrier.mode = in.Mode
	}
	if p.VLAN == 0 {
		// A bond's members answer to its address.
		carrier.as, carrier.active, carrier.member, carrier.of, carrier.mac = p.Interface, p.Active || !p.Member, p.Member, in.Name, [6]byte(named.MAC)
		return nil
	}
	l.vlans = true
	l.ifaces = append(l.ifaces, &iface{
		name: in.Name, index: p.Interface, as: p.Interface, active: p.Active || !p.Member, member: p.Member, mode: in.Mode, mac: [6]byte(named.MAC), mtu: named.MTU,
		driver: named.Kind, under: slot, tag: uint32(p.Protocol)<<16 | uint32(p.VLAN), of: in.Name,
	})
	return nil
}

func link(links []device.Link, index int) *device.Link {
	i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == index })
	return &links[i]
}

// virtual says whether the port has no queues: its packets are those of the
// device under it, with a tag.
func (i *iface) virtual() bool { return i.under >= 0 }

// carrier is the port whose queues carry the packets of i.
func (i *iface) carrier(l *LB) *iface {
	if i.virtual() {
		return l.ifaces[i.under]
	}
	return i
}

// routedBy tells the routes which ports lead out of which interface now.
func (l *LB) routedBy() []route.Interface {
	var list []route.Interface
	for slot, i := range l.ifaces {
		if !i.host && i.as != 0 && i.active {
			list = append(list, route.Interface{Index: i.as, Port: slot})
		}
	}
	return list
}

// vlansOf are the VLANs of a device that are attached, nil if none is.
func (l *LB) vlansOf(slot int) map[uint16]net.HardwareAddr {
	var vlans map[uint16]net.HardwareAddr
	for _, i := range l.ifaces {
		if i.virtual() && i.under == slot {
			if vlans == nil {
				vlans = map[uint16]net.HardwareAddr{}
			}
			vlans[uint16(i.tag)] = slices.Clone(i.mac[:])
		}
	}
	if d := l.ifaces[slot]; vlans != nil && d.as != 0 {
		vlans[0] = slices.Clone(d.mac[:])
	}
	return vlans
}

// followMembers has packets leave by the members that a bond uses now. It lists
// all interfaces of the host, of which there may be thousands: not without a bond.
func (l *LB) followMembers() {
	if !slices.ContainsFunc(l.ifaces, func(i *iface) bool { return i.member }) {
		return
	}
	links, err := l.links()
	if err != nil {
		l.log.Warn("follow interfaces", "err", err)
		return
	}
	changed := false
	for _, in := range l.cfg.Interfaces {
		ports, err := device.Resolve(in.Name, links)
		if err != nil {
			l.log.Debug("follow interface", "err", err)
		}
		changed = l.followPorts(in.Name, ports) || changed
	}
	if !changed {
		return
	}
	var hp *route.HostPort
	if l.host != nil {
		h := l.host.Route(len(l.ifaces) - 1)
		hp = &h
	}
	if err := l.router.SetInterfaces(l.routedBy(), hp); err != nil {
		l.log.Error("routes", "err", err)
	}
}

// followPorts notes which ports of an interface may be sent by, and says whether
// that has changed.
func (l *LB) followPorts(name string, ports []device.Port) (changed bool) {
	for _, i := range l.ifaces {
		if !i.member || i.as == 0 || i.of != name {
			continue
		}
		carrier := i.carrier(l)
		active := slices.ContainsFunc(ports, func(p device.Port) bool { return p.Device == carrier.index && p.Active })
		if active != i.active {
			i.active, changed = active, true
			l.log.Info("bond member", "interface", name, "member", carrier.name, "active", active)
		}
	}
	for _, p := range ports {
		if !slices.ContainsFunc(l.ifaces, func(i *iface) bool { return i.index == p.Device && !i.virtual() }) && !l.joined[p.Device] {
			l.joined[p.Device] = true
			l.warn("interface %s has a new member (index %d) without sockets: its packets go to the kernel until Weir is restarted", name, p.Device)
		}
	}
	return changed
}
