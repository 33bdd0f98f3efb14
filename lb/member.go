package lb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/device"
)

// stage is where a port is in its life. Members of a bond come and go while
// packets are on their way; followMembers takes each by one stage per tick, so
// that nothing waits for a worker and no worker for anything.
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

// refusal is why a device could not join a bond, and when to try again.
type refusal struct {
	name, err string
	until     time.Time
}

func (r refusal) warning() Warning {
	return Warning{WarnMember, r.name, fmt.Sprintf("bond member %s: its packets go to the kernel, and none are sent by it: %s", r.name, r.err)}
}

// followMembers keeps to the members that a bond has and uses now. It lists all
// interfaces of the host, of which there may be thousands: not without a bond.
func (l *LB) followMembers() {
	if !l.bonded {
		return
	}
	links, err := l.links()
	if err != nil {
		l.log.Warn("follow interfaces", "err", err)
		return
	}
	ports := map[string][]device.Port{}
	for _, in := range l.cfg.Interfaces {
		ports[in.Name], err = device.Resolve(in.Name, links)
		switch {
		case err != nil && len(ports[in.Name]) > 0: // the other members go on
			l.warnAbout(WarnMember, in.Name, "%v; its packets go to the kernel, and none are sent by it", err)
		case err != nil:
			l.log.Debug("follow interface", "err", err)
		default:
			l.retract(WarnMember, in.Name)
		}
	}
	changed := false
	if l.attached && l.settled() {
		changed = l.changeMembers(links, ports)
	}
	for _, in := range l.cfg.Interfaces {
		changed = l.followPorts(in.Name, ports[in.Name]) || changed
	}
	if !changed {
		return
	}
	if err := l.router.SetInterfaces(l.routedBy(), l.hostPort()); err != nil {
		l.log.Error("routes", "err", err)
	}
}

// followPorts notes which ports of an interface may be sent by, and says whether
// that has changed.
func (l *LB) followPorts(name string, ports []device.Port) (changed bool) {
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

// changeMembers takes every port by a stage, and says whether routes have to be
// told. Preconditions: settled.
func (l *LB) changeMembers(links []device.Link, ports map[string][]device.Port) (changed bool) {
	maps.DeleteFunc(l.refused, func(index int, _ refusal) bool {
		return !slices.ContainsFunc(links, func(d device.Link) bool { return d.Index == index })
	})
	slots, frames := l.moveOn()
	changed = l.dismissMembers(links)
	if !slices.ContainsFunc(l.ifaces, func(i *iface) bool { return i.stage != open && i.stage != vacant }) {
		slots = append(slots, l.welcomeMembers(links, ports)...)
	}
	if len(slots) > 0 {
		l.rewire(slots, frames)
	}
	return changed
}

// moveOn takes the ports that are coming or going by one stage. It returns
// those of which the workers are to be told, and by worker the frames that are
// free again.
func (l *LB) moveOn() (slots []int, frames [][]uint64) {
	frames = make([][]uint64, len(l.workers))
	for slot, i := range l.ifaces {
		switch i.stage {
		case joining:
			i.stage = open
			if !i.virtual() {
				l.attachMember(slot, i)
			}
		case leaving:
			i.stage = closing
			slots = append(slots, slot)
		case closing:
			i.stage = closed
			l.closeQueues(i)
		case closed:
			for worker, s := range i.sockets {
				frames[worker] = l.memory.Reclaim(s, frames[worker])
			}
			slots = append(slots, slot)
			l.ifaces[slot] = &iface{stage: vacant, under: -1}
			l.haveRoom()
		}
	}
	return slots, frames
}

// haveRoom has devices that could not join try again at once.
func (l *LB) haveRoom() {
	for device, r := range l.refused {
		l.refused[device] = refusal{name: r.name, err: r.err}
	}
}

func (l *LB) attachMember(slot int, i *iface) {
	if err := l.attachTo(slot, i); err != nil {
		l.refuse(i.index, i.name, err)
		l.dismiss(slot)
		return
	}
	delete(l.refused, i.index)
	l.log.Info("bond member joined", "interface", i.of, "member", i.name, "mode", l.granted(i))
}

func (l *LB) closeQueues(i *iface) {
	for _, s := range i.sockets {
		if err := s.Close(); err != nil {
			l.log.Error("close socket", "interface", i.name, "err", err)
		}
	}
}

// dismissMembers lets go of devices that have left their bond or are deleted.
func (l *LB) dismissMembers(links []device.Link) (changed bool) {
	for slot, i := range l.ifaces {
		if i.bond == 0 || i.stage != open {
			continue
		}
		if slices.ContainsFunc(links, func(d device.Link) bool { return d.Index == i.index && d.Master == i.bond }) {
			continue
		}
		l.log.Info("bond member left", "interface", i.of, "member", i.name)
		l.dismiss(slot)
		changed = true
	}
	return changed
}

// dismiss takes the steering program off a device, and it and its VLANs out of
// use: the kernel has its packets from here on.
func (l *LB) dismiss(slot int) {
	i := l.ifaces[slot]
	for _, on := range l.ifaces {
		if on == i || on.virtual() && on.under == slot && on.stage <= joining {
			on.stage, on.active = leaving, false
		}
	}
	if i.attachment != nil {
		if err := l.steer.Detach(i.attachment); err != nil {
			l.log.Error("detach", "interface", i.name, "err", err)
		}
		i.attachment = nil
	}
	if err := l.offloads.restoreOf(i.name); err != nil {
		l.log.Error("offloads", "interface", i.name, "err", err)
	}
}

// welcomeMembers opens the queues of devices that are new in a bond, and
// returns their ports.
func (l *LB) welcomeMembers(links []device.Link, ports map[string][]device.Port) (slots []int) {
	for _, in := range l.cfg.Interfaces {
		for _, p := range ports[in.Name] {
			if !p.Member || l.carrierOf(p.Device) >= 0 || time.Now().Before(l.refused[p.Device].until) {
				continue
			}
			joined, err := l.join(p.Device, links, ports)
			if err != nil {
				l.refuse(p.Device, link(links, p.Device).Name, err)
				continue
			}
			slots = append(slots, joined...)
		}
	}
	return slots
}

// join makes the ports of a device: for every interface of the configuration
// that it carries.
func (l *LB) join(device int, links []device.Link, ports map[string][]device.Port) (slots []int, err error) {
	if l.devices() >= l.maxDevices {
		return nil, fmt.Errorf("the packet memory made at the start is for %d devices: restart Weir to have one for more", l.maxDevices)
	}
	before := slices.Clone(l.ifaces)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.unjoin(before))
		}
	}()
	for _, in := range l.cfg.Interfaces {
		for _, p := range ports[in.Name] {
			if p.Device != device {
				continue
			}
			if err := l.addPort(in, p, links); err != nil {
				return nil, err
			}
		}
	}
	for slot, i := range l.ifaces {
		if slot < len(before) && before[slot] == i {
			continue
		}
		i.stage, i.active = joining, false
		slots = append(slots, slot)
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
		for _, s := range i.sockets {
			errs = append(errs, s.Close())
			l.memory.Reclaim(s, nil) // no frames, but its number in the ledger
		}
	}
	l.ifaces = before
	return errors.Join(errs...)
}

// refuse says why a device could not join, once for as long as it is so.
func (l *LB) refuse(device int, name string, err error) {
	r := refusal{name, err.Error(), time.Now().Add(replanEvery)}
	if l.refused[device].err != r.err {
		l.log.Warn(r.warning().String())
	}
	l.refused[device] = r
}
