package ports

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// links lists the host's interfaces.
func (ps *Ports) links() ([]device.Link, error) {
	links, err := device.Links()
	if err != nil || ps.cfg.Testing.DeclaredLinks == "" {
		return links, err
	}
	declared, err := os.ReadFile(ps.cfg.Testing.DeclaredLinks)
	if err != nil {
		return nil, err
	}
	return links, device.Apply(links, declared)
}

// resolveAll finds the ports of all configured interfaces.
func (ps *Ports) resolveAll() error {
	if len(ps.cfg.Interfaces) == 0 {
		return errors.New("no interface to attach to: " +
			"give --interface or interfaces in the configuration")
	}
	links, err := ps.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, in := range ps.cfg.Interfaces {
		errs = append(errs, ps.resolve(in, links))
	}
	return errors.Join(errs...)
}

// resolve adds the ports of a configured interface.
func (ps *Ports) resolve(in Interface, links []device.Link) error {
	resolved, err := device.Resolve(in.Name, links)
	if err != nil {
		return err
	}
	// An interface without a carrier is attached, as it stays attached when it loses the carrier.
	enabled := func(r device.Port) bool { return link(links, r.Interface).Enabled && link(links, r.Device).Enabled }
	if !slices.ContainsFunc(resolved, enabled) {
		return fmt.Errorf("interface %s: it is down; bring it up first", in.Name)
	}
	var errs []error
	for _, r := range resolved {
		errs = append(errs, ps.add(in, r, links))
	}
	return errors.Join(errs...)
}

// add adds a port of a configured interface, and its device's port if there is none yet.
func (ps *Ports) add(in Interface, r device.Port, links []device.Link) error {
	id := ps.deviceID(r.Device)
	if id < 0 {
		var err error
		if id, err = ps.addDevicePort(in, link(links, r.Device)); err != nil {
			return err
		}
	}

	d, named := ps.list[id], link(links, r.Interface)
	if in.Mode != "" && in.Mode != ModeAuto {
		d.mode = in.Mode
	}
	if in.TxChecksum != "" && in.TxChecksum != TxChecksumAuto {
		d.txChecksum = in.TxChecksum
	}
	if in.Hook != "" {
		d.hookAsked = in.Hook
	}
	if r.Member {
		ps.bonded, d.bond = true, link(links, r.Device).Master
	}

	active := r.Active || !r.Member
	if r.VLAN == 0 {
		d.parent, d.routeIndex, d.active, d.member = in.Name, r.Interface, active, r.Member
		d.mac = [6]byte(named.MAC) // a bond's members answer to its address
		return nil
	}
	_, err := ps.assign(&port{
		name: in.Name, index: r.Interface, mac: [6]byte(named.MAC), mtu: named.MTU, driver: driverOf(named),
		mode:   orAuto(in.Mode),
		parent: in.Name, routeIndex: r.Interface, active: active, member: r.Member,
		vlanParent: id, tag: tagOf(r),
	})
	return err
}

// addDevicePort adds the port of a device, by which no route leads yet.
func (ps *Ports) addDevicePort(in Interface, d *device.Link) (id int, err error) {
	q, err := steer.RxQueues(d.Index)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", d.Name, err)
	}
	features, err := xsk.DeviceFeatures(d.Index)
	return ps.assign(&port{
		name: d.Name, index: d.Index, mac: [6]byte(d.MAC), mtu: d.MTU, driver: driverOf(d), queues: q.Rx,
		mode: orAuto(in.Mode), txChecksum: orAuto(in.TxChecksum), hookAsked: in.Hook,
		zeroCopy: canZeroCopy(d.Kind, features, err),
		parent:   in.Name, vlanParent: -1,
	})
}

// orAuto is a mode, or TxChecksum, of a configuration that may leave it out.
func orAuto(s string) string {
	if s == "" {
		return ModeAuto // and TxChecksumAuto
	}
	return s
}

// tagOf is the VLAN tag of a resolved port, 0 without one.
func tagOf(r device.Port) uint32 { return uint32(r.Protocol)<<16 | uint32(r.VLAN) }

// deviceID is the ID of a device's port, -1 without one. device is an interface index.
func (ps *Ports) deviceID(device int) int {
	return slices.IndexFunc(ps.list, func(p *port) bool {
		return p.index == device && !p.isVLAN() && p.state != vacant
	})
}

// assign gives a port an ID: that of a port that is gone, or the next.
func (ps *Ports) assign(p *port) (id int, err error) {
	if id := slices.IndexFunc(ps.list, func(p *port) bool { return p.state == vacant }); id >= 0 {
		ps.list[id] = p
		return id, nil
	}
	limit := steer.MaxSlots
	if ps.HostID() < 0 {
		limit-- // the host veth comes last
	}
	if len(ps.list) >= limit {
		return 0, fmt.Errorf("interface %s: there is room for %d devices and VLANs, "+
			"a VLAN counting once per device that carries it: "+
			"leave out VLAN interfaces by which no client's packet arrives "+
			"(endpoints there are reached through the kernel)",
			p.name, steer.MaxSlots-1)
	}
	ps.list = append(ps.list, p)
	return len(ps.list) - 1, nil
}

// link is the link of an index, nil without one.
func link(links []device.Link, index int) *device.Link {
	i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == index })
	if i < 0 {
		return nil
	}
	return &links[i]
}

// isVLAN reports whether the port has no queues: its packets are packets of its
// device, with a tag.
func (p *port) isVLAN() bool { return p.vlanParent >= 0 }

// deviceOf is the port whose queues carry the packets of p.
func (ps *Ports) deviceOf(p *port) *port {
	if p.isVLAN() {
		return ps.list[p.vlanParent]
	}
	return p
}

// vlansOn yields the VLANs upon a device that are not about to go.
func (ps *Ports) vlansOn(id int) func(yield func(*port) bool) {
	return func(yield func(*port) bool) {
		for _, p := range ps.list {
			if p.isVLAN() && p.vlanParent == id && p.state <= joining && !yield(p) {
				return
			}
		}
	}
}
