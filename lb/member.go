package lb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/device"
)

// stage is where a port is in its life. Interfaces come and go while packets are
// on their way; changePorts takes each port by one stage at a time, so that
// nothing waits for a worker and no worker for anything.
type stage uint8

const (
	// open: the steering program is attached, routes may lead out of it.
	open stage = iota
	// joining: its sockets are open, the workers are being told of them. They
	// fill its rings before the first packet comes.
	joining
	// leaving: neither is so any more. What is on its rings is dealt with.
	leaving
	// closing: the workers are being told to let go of its queues.
	closing
	// closed: its sockets are; the kernel lets go of their frames.
	closed
	// vacant: its frames are the workers' again, its number the next port's.
	vacant
)

// lettingGo is how long the kernel may still use the frames of a socket that is
// closed: it takes zero copy off a queue in the background.
const lettingGo = time.Second

// refusal is why a device could not be attached, and when to try again.
type refusal struct {
	name, err string
	until     time.Time
	noRoom    bool
	member    bool // of a bond
}

func (r refusal) warning() Warning {
	return Warning{WarnMember, r.name, fmt.Sprintf("bond member %s: its packets go to the kernel, and none are sent by it: %s", r.name, r.err)}
}

// followActive notes which members of a bond may be sent by, and says whether
// that has changed.
func (l *LB) followActive(name string, ports []device.Port) (changed bool) {
	for _, i := range l.ifaces {
		if !i.member || i.as == 0 || i.of != name || i.stage != open {
			continue
		}
		carrier := i.carrier(l)
		active := slices.ContainsFunc(ports, func(p device.Port) bool { return p.Device == carrier.index && p.Active })
		if active != i.active {
			i.active, changed = active, true
			l.log.Info("bond member", "interface", name, "member", carrier.name, "active", active)
		}
	}
	return changed
}

// changePorts takes every port by a stage, and says whether routes have to be
// told. Preconditions: settled.
func (l *LB) changePorts(v *linkView) (changed bool) {
	maps.DeleteFunc(l.refused, func(index int, _ refusal) bool { return !v.names(index) })
	slots, frames, changed := l.moveOn(v)
	changed = l.dismissLost(v) || changed
	if !slices.ContainsFunc(l.ifaces, func(i *iface) bool { return i.stage != open && i.stage != vacant }) {
		slots = append(slots, l.welcome(v)...)
	}
	if len(slots) > 0 {
		l.rewire(slots, frames)
	}
	return changed
}

// moveOn takes the ports that are coming or going by one stage. It returns
// those of which the workers are to be told, by worker the frames that are
// free again, and whether routes may lead out of a port that they did not.
func (l *LB) moveOn(v *linkView) (slots []int, frames [][]uint64, changed bool) {
	frames = make([][]uint64, len(l.workers))
	for slot, i := range l.ifaces {
		switch i.stage {
		case joining:
			i.stage = open
			l.takeIn(slot, i)
			changed = changed || i.active
		case leaving:
			i.stage = closing
			slots = append(slots, slot)
		case closing:
			i.stage, i.closed = closed, time.Now()
			l.closeQueues(i)
		case closed:
			if link(v.links, i.index) != nil && time.Since(i.closed) < lettingGo {
				continue
			}
			for worker, s := range i.sockets {
				frames[worker] = l.memory.ReclaimAll(s, frames[worker])
			}
			slots = append(slots, slot)
			l.ifaces[slot] = &iface{stage: vacant, under: -1}
			l.haveRoom()
		}
	}
	return slots, frames, changed
}

// takeIn begins to take the packets of a port whose queues are filled.
func (l *LB) takeIn(slot int, i *iface) {
	i.active = !i.member && i.as != 0
	if !i.virtual() {
		l.attachJoined(slot, i)
		return
	}
	if l.ifaces[i.under].attachment == nil {
		return // it comes with its device
	}
	if err := l.steerTo(slot); err != nil {
		l.refuse(i.index, i.name, i.bond != 0, err)
		l.dismiss(slot, false)
	}
}

// errNoRoom is why a device cannot join that would, if another left.
var errNoRoom = errors.New("restart Weir to have packet memory for more")

// haveRoom has devices that found no room try again at once.
func (l *LB) haveRoom() {
	for device, r := range l.refused {
		if r.noRoom {
			r.until = time.Time{}
			l.refused[device] = r
		}
	}
}

func (l *LB) attachJoined(slot int, i *iface) {
	if err := l.attachTo(slot, i); err != nil {
		l.refuse(i.index, i.name, i.bond != 0, err)
		l.dismiss(slot, false)
		return
	}
	delete(l.refused, i.index)
	if i.bond != 0 {
		l.log.Info("bond member joined", "interface", i.of, "member", i.name, "mode", l.granted(i))
	}
}

func (l *LB) closeQueues(i *iface) {
	for _, s := range i.sockets {
		if err := s.Close(); err != nil {
			l.log.Error("close socket", "interface", i.name, "err", err)
		}
	}
}

// dismissLost gives up the ports whose interface is not what it was.
func (l *LB) dismissLost(v *linkView) (changed bool) {
	for slot, i := range l.ifaces {
		if i.host || i.stage != open {
			continue
		}
		why := l.lost(slot, v)
		if why == "" {
			continue
		}
		l.log.Info(why, "interface", i.of, "device", i.carrier(l).name, "index", i.index)
		l.dismiss(slot, link(v.links, i.index) == nil || l.severed(i))
		changed = true
	}
	return changed
}

// dismiss takes the steering program off a device, and it and its VLANs out of
// use: the kernel has its packets from here on. Of a VLAN alone it takes the tag
// off the program. gone is true of a device that no longer exists.
func (l *LB) dismiss(slot int, gone bool) {
	i := l.ifaces[slot]
	i.stage, i.active = leaving, false
	l.retract(WarnInterface, i.name)
	if i.virtual() {
		if err := l.steerTo(slot); err != nil {
			l.log.Error("steering", "interface", i.name, "err", err)
		}
		return
	}
	for _, on := range l.ifaces {
		if on.virtual() && on.under == slot && on.stage <= joining {
			on.stage, on.active = leaving, false
		}
	}
	if i.attachment != nil {
		if err := l.steer.Detach(i.attachment); err != nil {
			l.log.Error("detach", "interface", i.name, "err", err)
		}
		i.attachment = nil
	}
	restore := l.offloads.restoreOf
	if gone {
		restore = l.offloads.forget // another device may have the name
	}
	if err := restore(i.name); err != nil {
		l.log.Error("offloads", "interface", i.name, "err", err)
	}
}

// welcome opens the queues of devices that are new, and returns their ports.
func (l *LB) welcome(v *linkView) (slots []int) {
	for _, in := range l.cfg.Interfaces {
		for _, p := range v.ports[in.Name] {
			key, join := p.Device, func() ([]int, error) { return l.join(p.Device, v) }
			carrier := l.carrierOf(p.Device)
			if carrier >= 0 {
				if p.VLAN == 0 || l.carries(carrier, p) {
					continue
				}
				key, join = p.Interface, func() ([]int, error) { return l.joinVLAN(in, p, v.links) }
			}
			if !p.Member && !link(v.links, p.Device).Enabled || time.Now().Before(l.refused[key].until) {
				continue
			}
			joined, err := join()
			if err != nil {
				l.refuse(key, link(v.links, key).Name, p.Member && key == p.Device, err)
				continue
			}
			slots = append(slots, joined...)
		}
	}
	return slots
}

// carries reports whether a device has the port of a VLAN.
func (l *LB) carries(carrier int, p device.Port) bool {
	return slices.ContainsFunc(l.ifaces, func(i *iface) bool {
		return i.stage != vacant && i.under == carrier && i.as == p.Interface && uint16(i.tag) == p.VLAN
	})
}

// joinVLAN makes the port of a VLAN upon a device that is attached already.
func (l *LB) joinVLAN(in Interface, p device.Port, links []device.Link) ([]int, error) {
	before := slices.Clone(l.ifaces)
	if err := l.addPort(in, p, links); err != nil {
		return nil, err
	}
	delete(l.refused, p.Interface)
	return l.added(before), nil
}

// added are the ports that before does not have, which are joining now.
func (l *LB) added(before []*iface) (slots []int) {
	for slot, i := range l.ifaces {
		if slot < len(before) && before[slot] == i {
			continue
		}
		i.stage, i.active = joining, false
		slots = append(slots, slot)
	}
	return slots
}

// join makes the ports of a device: for every interface of the configuration
// that it carries.
func (l *LB) join(device int, v *linkView) (slots []int, err error) {
	if l.devices() >= l.maxDevices {
		return nil, fmt.Errorf("the packet memory made at the start is for %d devices: %w", l.maxDevices, errNoRoom)
	}
	before := slices.Clone(l.ifaces)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.unjoin(before))
		}
	}()
	for _, in := range l.cfg.Interfaces {
		for _, p := range v.ports[in.Name] {
			if p.Device != device {
				continue
			}
			if err := l.addPort(in, p, v.links); err != nil {
				return nil, err
			}
		}
	}
	slots = l.added(before)
	for _, slot := range slots {
		i := l.ifaces[slot]
		if i.virtual() {
			continue
		}
		l.warnQueues(i, len(l.workers))
		if err := l.openQueues(slot, i, len(l.workers)); err != nil {
			return nil, err
		}
	}
	return slots, nil
}

// unjoin closes what a join that failed has opened.
func (l *LB) unjoin(before []*iface) error {
	var errs []error
	for slot, i := range l.ifaces {
		if slot < len(before) && before[slot] == i {
			continue
		}
		l.retract(WarnInterface, i.name)
		for _, s := range i.sockets {
			errs = append(errs, s.Close())
			l.memory.ReclaimAll(s, nil) // no frames, but its number in the owner table
		}
	}
	l.ifaces = before
	return errors.Join(errs...)
}

// refuse notes why a device could not be attached, and logs it once for as long
// as it is so.
func (l *LB) refuse(index int, name string, member bool, err error) {
	r := refusal{name, err.Error(), time.Now().Add(replanEvery), errors.Is(err, errNoRoom), member}
	if l.refused[index].err != r.err && member {
		l.log.Warn(r.warning().String())
	}
	l.refused[index] = r
}
