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
	"github.com/weirlb/weir/lb/xsk"
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
	if in.TxChecksum == "" {
		in.TxChecksum = TxChecksumAuto
	}
	slot := l.carrierOf(p.Device)
	if slot < 0 {
		d := link(links, p.Device)
		q, err := steer.RxQueues(d.Index)
		if err != nil {
			return fmt.Errorf("interface %s: %w", d.Name, err)
		}
		features, err := xsk.DeviceFeatures(d.Index)
		slot, err = l.number(&iface{
			name: d.Name, index: d.Index, mode: in.Mode, mac: [6]byte(d.MAC), mtu: d.MTU, driver: d.Kind, queues: q.Rx, under: -1, of: in.Name,
			txChecksum: in.TxChecksum, zeroCopy: canZeroCopy(d.Kind, features, err),
		})
		if err != nil {
			return err
		}
	}
	carrier, named := l.ifaces[slot], link(links, p.Interface)
	if in.Mode != ModeAuto {
		carrier.mode = in.Mode
	}
	if in.TxChecksum != TxChecksumAuto {
		carrier.txChecksum = in.TxChecksum
	}
	if p.Member {
		l.bonded, carrier.bond = true, link(links, p.Device).Master
	}
	if p.VLAN == 0 {
		// A bond's members answer to its address.
		carrier.as, carrier.active, carrier.member, carrier.of, carrier.mac = p.Interface, p.Active || !p.Member, p.Member, in.Name, [6]byte(named.MAC)
		return nil
	}
	_, err := l.number(&iface{
		name: in.Name, index: p.Interface, as: p.Interface, active: p.Active || !p.Member, member: p.Member, mode: in.Mode, mac: [6]byte(named.MAC), mtu: named.MTU,
		driver: named.Kind, under: slot, tag: uint32(p.Protocol)<<16 | uint32(p.VLAN), of: in.Name,
	})
	return err
}

// carrierOf is the number of the port that is a device, -1 if none is.
func (l *LB) carrierOf(device int) int {
	return slices.IndexFunc(l.ifaces, func(i *iface) bool { return i.index == device && !i.virtual() && i.stage != vacant })
}

// number gives a port its number: one that a member of a bond has left, or the next.
func (l *LB) number(i *iface) (int, error) {
	if slot := slices.IndexFunc(l.ifaces, func(i *iface) bool { return i.stage == vacant }); slot >= 0 {
		l.ifaces[slot] = i
		return slot, nil
	}
	limit := steer.MaxSlots
	if l.host == nil {
		limit-- // it comes last
	}
	if len(l.ifaces) >= limit {
		return 0, fmt.Errorf("interface %s: there is room for %d devices and VLANs, a VLAN counting once per device that carries it: leave out VLAN interfaces by which no client's packet arrives (endpoints there are reached through the kernel)",
			i.name, steer.MaxSlots-1)
	}
	l.ifaces = append(l.ifaces, i)
	return len(l.ifaces) - 1, nil
}

// link is the link of an index, nil if there is none.
func link(links []device.Link, index int) *device.Link {
	i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == index })
	if i < 0 {
		return nil
	}
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

// hostVeth is the host veth as routes are to know it, nil without one.
func (l *LB) hostVeth() *route.HostVeth {
	if l.host == nil {
		return nil
	}
	hp := l.host.Route(slices.IndexFunc(l.ifaces, func(i *iface) bool { return i.host }))
	return &hp
}

// routedBy tells the routes which ports lead out of which interface now.
func (l *LB) routedBy() []route.Interface {
	var list []route.Interface
	for slot, i := range l.ifaces {
		if !i.host && i.as != 0 && i.active && i.stage == open {
			list = append(list, route.Interface{Index: i.as, Port: slot})
		}
	}
	return list
}

// vlansOf are the VLANs of a device that are attached, nil if none is.
func (l *LB) vlansOf(slot int) map[steer.VLAN]net.HardwareAddr {
	var vlans map[steer.VLAN]net.HardwareAddr
	for _, i := range l.ifaces {
		if i.virtual() && i.under == slot && i.stage <= joining {
			if vlans == nil {
				vlans = map[steer.VLAN]net.HardwareAddr{}
			}
			vlans[steer.VLAN(i.tag)] = slices.Clone(i.mac[:])
		}
	}
	switch d := l.ifaces[slot]; {
	case d.as == 0 && vlans == nil && !d.host:
		return map[steer.VLAN]net.HardwareAddr{} // it only carries VLANs, of which none is there now
	case d.as != 0 && vlans != nil:
		vlans[0] = slices.Clone(d.mac[:])
	}
	return vlans
}
