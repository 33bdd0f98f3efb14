package ports

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// Update is the outcome of a Follow.
type Update struct {
	// Ports are the IDs of ports that every worker must take over, as View has them.
	Ports []int
	// Frames are, by worker, frames that are the worker's again.
	Frames [][]uint64
	// Routes reports whether Routed has changed.
	Routes bool
	// Differs reports whether an interface is not as it is to be, or may change without a notification
	// of the kernel's: Follow should run again within a second.
	Differs bool
}

// lifecycle adds and removes ports while packets are on their way: each that goes or comes advances
// by a state.
type lifecycle struct {
	list       *portList
	resolver   *resolver
	opener     *opener
	steering   *steering
	maxDevices int // for so many there is packet memory
	refused    refusals
	warnings   *warning.List
	log        *slog.Logger
}

// openQueues binds a socket to every queue of a port that a worker owns.
func (lc *lifecycle) openQueues(id int, p *port) error {
	if err := lc.steering.chooseHook(p); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	if p.hook == steer.TCX {
		if err := lc.opener.openPair(id, p); err != nil {
			return fmt.Errorf("interface %s: %w", p.name, err)
		}
	}
	if err := lc.opener.openDevice(p); err != nil {
		return err
	}
	if err := lc.opener.checkMetadata(p); err != nil {
		return err
	}
	p.openedMTU = p.mtu
	lc.opener.warnMTU(p)

	// The last step: sockets of a port that fails are not noted, see steer.Program.Hold.
	return lc.steering.steerTo(id, p)
}

// refuse notes why a device could not be attached, and logs it for a bond's member
// whenever the reason is another.
func (lc *lifecycle) refuse(index int, name string, member bool, err error) {
	if r, changed := lc.refused.add(index, name, member, err); changed && member {
		lc.log.Warn(r.warning().String())
	}
	lc.steering.unguard(index) // the kernel has its packets
}

// change takes every port to its next state, removes ports and adds new ones.
// Preconditions: the workers have carried out the last Update.
func (lc *lifecycle) change(v *view, u *Update) {
	maps.DeleteFunc(lc.refused, func(index int, _ refusal) bool { return !v.names(index) })
	lc.advance(v, u)
	u.Routes = lc.removeLost(v) || u.Routes
	if !lc.list.moving() {
		ids, removed := lc.followQueues()
		u.Ports, u.Routes = append(u.Ports, ids...), u.Routes || removed
		u.Ports = append(u.Ports, lc.addNew(v)...)
	}
}

// advance takes the ports that come or go to their next state.
func (lc *lifecycle) advance(v *view, u *Update) {
	for id, p := range lc.list.ports {
		switch p.state {
		case joining:
			p.state = open
			lc.finishJoin(id, p)
			u.Routes = u.Routes || p.active
		case leaving:
			p.state = closing
			u.Ports = append(u.Ports, id)
		case closing:
			p.state, p.closed = closed, time.Now()
			if err := p.closeSockets(); err != nil { // the kernel still uses their frames
				lc.log.Error("close sockets", "interface", p.name, "err", err)
			}
		case closed:
			if link(v.links, p.index) == nil || time.Since(p.closed) >= releaseTime {
				lc.vacate(id, p, u)
			}
		}
	}
}

// finishJoin begins to take the packets of a port whose rings are filled.
func (lc *lifecycle) finishJoin(id int, p *port) {
	p.active = !p.member && p.routeIndex != 0
	var err error
	switch {
	case !p.isVLAN():
		err = lc.steering.attach(id, p)
	case lc.list.ports[p.vlanParent].attachment != nil:
		err = lc.steering.updateAddresses(id)
	default:
		return // it comes with its device
	}
	if err != nil {
		lc.refuse(p.index, p.name, p.bond != 0, err)
		lc.remove(id, false)
		return
	}
	if p.isVLAN() {
		return
	}
	delete(lc.refused, p.index)
	delete(lc.steering.guarded, p.index)
	if p.bond != 0 {
		lc.log.Info("bond member joined", "interface", p.parent, "member", p.name, "mode", p.granted())
	}
}

// vacate gives the frames of a closed port back to the workers, and its ID to the next
// port.
func (lc *lifecycle) vacate(id int, p *port, u *Update) {
	for _, sockets := range [][]*xsk.Socket{p.sockets, p.inner} {
		for worker, s := range sockets {
			u.Frames[worker] = lc.opener.memory.ReclaimAll(s, u.Frames[worker])
		}
	}
	u.Ports = append(u.Ports, id)
	lc.list.ports[id] = &port{state: vacant, vlanParent: -1}
	lc.refused.retry()
}

// removeLost removes the ports whose interface is no longer what it was, and reports
// whether there were any.
func (lc *lifecycle) removeLost(v *view) (removed bool) {
	for id, p := range lc.list.ports {
		if p.host || p.state != open {
			continue
		}
		why := lc.list.lost(p, v)
		if why == "" {
			continue
		}
		lc.log.Info(why, "interface", p.parent, "device", lc.list.deviceOf(p).name, "index", p.index)
		lc.remove(id, link(v.links, p.index) == nil || p.severed())
		removed = true
	}
	return removed
}

// remove takes the steering program off a device, and the device and its VLANs out of
// use: from here on the kernel has their packets. Of a VLAN alone it takes the tag off
// the program. gone reports that the device no longer exists.
func (lc *lifecycle) remove(id int, gone bool) {
	p := lc.list.ports[id]
	p.state, p.active = leaving, false
	lc.retract(p)
	if p.isVLAN() {
		if err := lc.steering.updateAddresses(id); err != nil {
			lc.log.Error("steering", "interface", p.name, "err", err)
		}
		return
	}

	for vlan := range lc.list.vlansOn(id) {
		vlan.state, vlan.active = leaving, false
	}
	lc.steering.detach(p, gone)
}

// retract retracts the warnings of a port that goes.
func (lc *lifecycle) retract(p *port) {
	for _, kind := range []warning.Kind{warning.Interface, warning.MTU, warning.Queues, warning.Unreadable, warning.Offloads} {
		lc.warnings.Retract(kind, p.name)
	}
}

// followQueues takes over the numbers of receive queues of devices that stay, and returns the
// IDs of the ports that have got sockets. removed: a port has got none, and leaves.
// Preconditions: as change.
func (lc *lifecycle) followQueues() (ids []int, removed bool) {
	for id, p := range lc.list.ports {
		if p.state != open || p.host || p.isVLAN() || p.found == 0 || p.found == p.queues {
			continue
		}
		lc.log.Info("interface has another number of receive queues", "interface", p.name, "queues", p.found, "before", p.queues)
		had := len(p.sockets)
		p.queues = p.found
		lc.opener.queueCount[p.name] = p.queues
		if err := lc.useQueues(id, p); err != nil {
			lc.refuse(p.index, p.name, p.bond != 0, err)
			lc.remove(id, false)
			removed = true
			continue
		}
		lc.opener.warnQueues(p)
		if len(p.sockets) > had {
			ids = append(ids, id)
		}
	}
	return ids, removed
}

// useQueues opens sockets for queues that are new and have a worker, and puts the program on
// them. In between their packets are the kernel's, or wait for frames. With hook tcx packets
// arrive by the queues of the veth pair, and the device has no XDP program.
func (lc *lifecycle) useQueues(id int, p *port) error {
	if p.hook == steer.TCX {
		return nil
	}
	if err := lc.opener.openDevice(p); err != nil {
		return err
	}
	if err := lc.steering.steerTo(id, p); err != nil {
		return err
	}
	if p.driver != veth || p.attachment == nil {
		return nil
	}
	if err := lc.steering.program.Refresh(p.attachment); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	return nil
}

// addNew opens the queues of devices that are new, and returns the IDs of their ports.
func (lc *lifecycle) addNew(v *view) (ids []int) {
	for _, in := range v.interfaces {
		for _, r := range v.ports[in.Name] {
			index := lc.list.missing(r)
			if index == 0 || !lc.mayAdd(r, index, v) {
				continue
			}

			var added []int
			var err error
			if index == r.Device {
				added, err = lc.addDevice(index, v)
			} else {
				added, err = lc.addVLAN(in, r, v.links)
			}
			if err != nil {
				lc.refuse(index, link(v.links, index).Name, r.Member && index == r.Device, err)
				continue
			}
			ids = append(ids, added...)
		}
	}
	return ids
}

// mayAdd reports whether a resolved port is up, and its missing interface was not
// refused lately.
func (lc *lifecycle) mayAdd(r device.Port, index int, v *view) bool {
	up := r.Member || link(v.links, r.Device).Enabled
	return up && !time.Now().Before(lc.refused[index].until)
}

// addVLAN adds the port of a VLAN upon a device that is attached.
func (lc *lifecycle) addVLAN(in Interface, r device.Port, links []device.Link) ([]int, error) {
	before := slices.Clone(lc.list.ports)
	if err := lc.resolver.add(in, r, links); err != nil {
		return nil, err
	}
	delete(lc.refused, r.Interface)
	return lc.list.joinSince(before), nil
}

// addDevice adds the ports of a device: of every configured interface that it carries.
func (lc *lifecycle) addDevice(device int, v *view) (ids []int, err error) {
	if lc.list.devices() >= lc.maxDevices {
		return nil, fmt.Errorf("the packet memory made at the start is for %d devices: %w",
			lc.maxDevices, errNoRoom)
	}
	before := slices.Clone(lc.list.ports)
	defer func() {
		if err != nil {
			err = errors.Join(err, lc.undoAdd(before))
		}
	}()

	for _, in := range v.interfaces {
		for _, r := range v.ports[in.Name] {
			if r.Device != device {
				continue
			}
			if err := lc.resolver.add(in, r, v.links); err != nil {
				return nil, err
			}
		}
	}

	ids = lc.list.joinSince(before)
	for _, id := range ids {
		p := lc.list.ports[id]
		if p.isVLAN() {
			continue
		}
		lc.opener.warnQueues(p)
		if err := lc.openQueues(id, p); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// undoAdd closes the sockets that an addDevice which failed has opened.
func (lc *lifecycle) undoAdd(before []*port) error {
	var errs []error
	for id, p := range lc.list.ports {
		if id < len(before) && before[id] == p {
			continue
		}
		lc.retract(p)
		errs = append(errs, p.closeSockets())
		for _, s := range p.all() {
			lc.opener.memory.ReclaimAll(s, nil) // no frames, but its number in the owner table
		}
	}
	lc.list.ports = before
	return errors.Join(errs...)
}
