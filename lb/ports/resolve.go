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

// resolver finds the ports of the configured interfaces.
type resolver struct {
	interfaces    []Interface
	declaredLinks string // see Testing
	list          *portList
	bonded        bool // some interface is a bond
}

// links lists the host's interfaces.
func (rs *resolver) links() ([]device.Link, error) {
	links, err := device.Links()
	if err != nil || rs.declaredLinks == "" {
		return links, err
	}
	declared, err := os.ReadFile(rs.declaredLinks)
	if err != nil {
		return nil, err
	}
	return links, device.Apply(links, declared)
}

// resolveAll finds the ports of all configured interfaces.
func (rs *resolver) resolveAll() error {
	if len(rs.interfaces) == 0 {
		return errors.New("no interface to attach to: " +
			"give --interface or interfaces in the configuration")
	}
	links, err := rs.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, in := range rs.interfaces {
		errs = append(errs, rs.resolve(in, links))
	}
	return errors.Join(errs...)
}

// resolve adds the ports of a configured interface.
func (rs *resolver) resolve(in Interface, links []device.Link) error {
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
		errs = append(errs, rs.add(in, r, links))
	}
	return errors.Join(errs...)
}

// add adds a port of a configured interface, and its device's port if there is none yet.
func (rs *resolver) add(in Interface, r device.Port, links []device.Link) error {
	id := rs.list.deviceID(r.Device)
	if id < 0 {
		var err error
		if id, err = rs.addDevicePort(in, link(links, r.Device)); err != nil {
			return err
		}
	}

	d, named := rs.list.ports[id], link(links, r.Interface)
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
		rs.bonded, d.bond = true, link(links, r.Device).Master
	}

	active := r.Active || !r.Member
	if r.VLAN == 0 {
		d.parent, d.routeIndex, d.active, d.member = in.Name, r.Interface, active, r.Member
		d.mac = [6]byte(named.MAC) // a bond's members answer to its address
		return nil
	}
	_, err := rs.list.assign(&port{
		name: in.Name, index: r.Interface, mac: [6]byte(named.MAC), mtu: named.MTU, driver: driverOf(named),
		mode:   orAuto(in.Mode),
		parent: in.Name, routeIndex: r.Interface, active: active, member: r.Member,
		vlanParent: id, tag: tagOf(r),
	})
	return err
}

// addDevicePort adds the port of a device, by which no route leads yet.
func (rs *resolver) addDevicePort(in Interface, d *device.Link) (id int, err error) {
	q, err := steer.RxQueues(d.Index)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", d.Name, err)
	}
	features, err := xsk.DeviceFeatures(d.Index)
	return rs.list.assign(&port{
		name: d.Name, index: d.Index, mac: [6]byte(d.MAC), mtu: d.MTU, driver: driverOf(d), queues: q.Rx,
		mode: orAuto(in.Mode), txChecksum: orAuto(in.TxChecksum), hookAsked: in.Hook,
		zeroCopy: canZeroCopy(d.Kind, features, err),
		parent:   in.Name, vlanParent: -1,
	})
}

// viewOf is the view of links.
func (rs *resolver) viewOf(links []device.Link) *view {
	v := &view{interfaces: rs.interfaces, links: links, ports: map[string][]device.Port{}, errs: map[string]error{}}
	for _, in := range rs.interfaces {
		resolved, err := device.Resolve(rs.nameNow(in.Name, links), links)
		v.ports[in.Name] = resolved
		if err != nil {
			v.errs[in.Name] = err
		}
	}
	return v
}

// nameNow is the name of a configured interface in links. An interface that was renamed
// stays the same as long as no other interface has its name.
func (rs *resolver) nameNow(name string, links []device.Link) string {
	if slices.ContainsFunc(links, func(d device.Link) bool { return d.Name == name }) {
		return name
	}
	for _, p := range rs.list.ports {
		if p.parent != name || p.routeIndex == 0 || p.state != open || rs.list.deviceOf(p).severed() {
			continue
		}
		if d := link(links, p.routeIndex); d != nil {
			return d.Name
		}
	}
	return name
}
