package ports

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/warning"
)

// retryEvery is the time after which a device that was refused is tried again.
const retryEvery = 10 * time.Second

// refusal is why a device could not be attached, and when to try again.
type refusal struct {
	name, err string
	until     time.Time
	noRoom    bool
	member    bool // of a bond
}

// Refused lists a warning for every member of a bond that could not be attached.
func (ps *Ports) Refused() (list []warning.Warning) {
	for _, r := range ps.refused {
		if r.member {
			list = append(list, r.warning())
		}
	}
	return list
}

func (r refusal) warning() warning.Warning {
	return warning.Warning{
		Kind: warning.Member, Object: r.name,
		Text: fmt.Sprintf("bond member %s: its packets go to the kernel, and none are sent by it: %s",
			r.name, r.err),
	}
}

// refuse notes why a device could not be attached, and logs it for a bond's member
// whenever the reason is another.
func (ps *Ports) refuse(index int, name string, member bool, err error) {
	r := refusal{name, err.Error(), time.Now().Add(retryEvery), errors.Is(err, errNoRoom), member}
	if ps.refused[index].err != r.err && member {
		ps.log.Warn(r.warning().String())
	}
	ps.refused[index] = r
	ps.unguard(index) // the kernel has its packets
}

// errNoRoom is why a device cannot join that would, if another left.
var errNoRoom = errors.New("restart Weir to have packet memory for more")

// retryRefused has devices that found no room try again at once.
func (ps *Ports) retryRefused() {
	for device, r := range ps.refused {
		if r.noRoom {
			r.until = time.Time{}
			ps.refused[device] = r
		}
	}
}

// removeLost removes the ports whose interface is no longer what it was, and reports
// whether there were any.
func (ps *Ports) removeLost(v *view) (removed bool) {
	for id, p := range ps.list {
		if p.host || p.state != open {
			continue
		}
		why := ps.lost(p, v)
		if why == "" {
			continue
		}
		ps.log.Info(why, "interface", p.parent, "device", ps.deviceOf(p).name, "index", p.index)
		ps.remove(id, link(v.links, p.index) == nil || severed(p))
		removed = true
	}
	return removed
}

// remove takes the steering program off a device, and the device and its VLANs out of
// use: from here on the kernel has their packets. Of a VLAN alone it takes the tag off
// the program. gone reports that the device no longer exists.
func (ps *Ports) remove(id int, gone bool) {
	p := ps.list[id]
	p.state, p.active = leaving, false
	ps.warnings.Retract(warning.Interface, p.name)
	ps.warnings.Retract(warning.MTU, p.name)
	ps.warnings.Retract(warning.Queues, p.name)
	ps.warnings.Retract(warning.Unreadable, p.name)
	if p.isVLAN() {
		if err := ps.updateAddresses(id); err != nil {
			ps.log.Error("steering", "interface", p.name, "err", err)
		}
		return
	}

	for vlan := range ps.vlansOn(id) {
		vlan.state, vlan.active = leaving, false
	}
	if p.attachment != nil {
		if err := ps.program.Detach(p.attachment); err != nil {
			ps.log.Error("detach", "interface", p.name, "err", err)
		}
		p.attachment = nil
	}

	restore := func() error { return ps.restoreOffloads(p) }
	if gone {
		restore = func() error { return ps.offloads.forget(p.name) } // another device may have the name
	}
	if err := restore(); err != nil {
		ps.log.Error("offloads", "interface", p.name, "err", err)
	}
}

// addNew opens the queues of devices that are new, and returns the IDs of their ports.
func (ps *Ports) addNew(v *view) (ids []int) {
	for _, in := range ps.cfg.Interfaces {
		for _, r := range v.ports[in.Name] {
			index := ps.missing(r)
			if index == 0 || !ps.mayAdd(r, index, v) {
				continue
			}

			var added []int
			var err error
			if index == r.Device {
				added, err = ps.addDevice(index, v)
			} else {
				added, err = ps.addVLAN(in, r, v.links)
			}
			if err != nil {
				ps.refuse(index, link(v.links, index).Name, r.Member && index == r.Device, err)
				continue
			}
			ids = append(ids, added...)
		}
	}
	return ids
}

// mayAdd reports whether a resolved port is up, and its missing interface was not
// refused lately.
func (ps *Ports) mayAdd(r device.Port, index int, v *view) bool {
	up := r.Member || link(v.links, r.Device).Enabled
	return up && !time.Now().Before(ps.refused[index].until)
}

// missing is the index of the interface that a resolved port wants: its device, or the
// VLAN if the device is there; 0 if neither is missing.
func (ps *Ports) missing(r device.Port) (index int) {
	id := ps.deviceID(r.Device)
	switch {
	case id < 0:
		return r.Device
	case r.VLAN != 0 && !ps.carries(id, r):
		return r.Interface
	}
	return 0
}

// carries reports whether a device has the port of a VLAN.
func (ps *Ports) carries(id int, r device.Port) bool {
	return slices.ContainsFunc(ps.list, func(p *port) bool {
		return p.state != vacant && p.vlanParent == id &&
			p.routeIndex == r.Interface && uint16(p.tag) == r.VLAN
	})
}

// addVLAN adds the port of a VLAN upon a device that is attached.
func (ps *Ports) addVLAN(in Interface, r device.Port, links []device.Link) ([]int, error) {
	before := slices.Clone(ps.list)
	if err := ps.add(in, r, links); err != nil {
		return nil, err
	}
	delete(ps.refused, r.Interface)
	return ps.joinSince(before), nil
}

// addDevice adds the ports of a device: of every configured interface that it carries.
func (ps *Ports) addDevice(device int, v *view) (ids []int, err error) {
	if ps.Devices() >= ps.maxDevices {
		return nil, fmt.Errorf("the packet memory made at the start is for %d devices: %w",
			ps.maxDevices, errNoRoom)
	}
	before := slices.Clone(ps.list)
	defer func() {
		if err != nil {
			err = errors.Join(err, ps.undoAdd(before))
		}
	}()

	for _, in := range ps.cfg.Interfaces {
		for _, r := range v.ports[in.Name] {
			if r.Device != device {
				continue
			}
			if err := ps.add(in, r, v.links); err != nil {
				return nil, err
			}
		}
	}

	ids = ps.joinSince(before)
	for _, id := range ids {
		p := ps.list[id]
		if p.isVLAN() {
			continue
		}
		ps.warnQueues(p)
		if err := ps.openQueues(id, p); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// joinSince marks the ports that before does not have as joining, and returns their IDs.
func (ps *Ports) joinSince(before []*port) (ids []int) {
	for id, p := range ps.list {
		if id < len(before) && before[id] == p {
			continue
		}
		p.state, p.active = joining, false
		ids = append(ids, id)
	}
	return ids
}

// undoAdd closes the sockets that an addDevice which failed has opened.
func (ps *Ports) undoAdd(before []*port) error {
	var errs []error
	for id, p := range ps.list {
		if id < len(before) && before[id] == p {
			continue
		}
		ps.warnings.Retract(warning.Interface, p.name)
		ps.warnings.Retract(warning.MTU, p.name)
		ps.warnings.Retract(warning.Queues, p.name)
		errs = append(errs, p.closeSockets())
		for _, s := range p.all() {
			ps.memory.ReclaimAll(s, nil) // no frames, but its number in the owner table
		}
	}
	ps.list = before
	return errors.Join(errs...)
}
