package ports

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/steer"
)

// isDown reports whether an interface is down or has no carrier, if its driver says so.
func isDown(a *netlink.LinkAttrs) bool {
	switch a.OperState {
	case netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent:
		return true
	}
	return a.Flags&net.FlagUp == 0
}

// followMTU takes over the MTU of a port's interface. Routes and next hops follow by
// themselves.
func (ps *Ports) followMTU(p *port, mtu int) {
	if mtu == p.mtu || mtu <= 0 {
		return
	}
	ps.log.Info("interface has another MTU", "interface", p.name, "mtu", mtu, "before", p.mtu)
	p.mtu = mtu
	ps.warnMTU(p)
}

// queuesNow is the number of receive queues of a device, as it is if the kernel does not say.
func queuesNow(p *port) int {
	q, err := steer.RxQueues(p.index)
	if err != nil || q.Source == "rtnetlink" {
		return p.queues
	}
	return q.Rx
}

// followQueues takes over the numbers of receive queues of devices that stay, and returns the
// IDs of the ports that have got sockets. removed: a port has got none, and leaves.
// Preconditions: as change.
func (ps *Ports) followQueues() (ids []int, removed bool) {
	for id, p := range ps.list {
		if p.state != open || p.host || p.isVLAN() || p.found == 0 || p.found == p.queues {
			continue
		}
		ps.log.Info("interface has another number of receive queues", "interface", p.name, "queues", p.found, "before", p.queues)
		had := len(p.sockets)
		p.queues = p.found
		ps.queueCount[p.name] = p.queues
		if err := ps.useQueues(id, p); err != nil {
			ps.refuse(p.index, p.name, p.bond != 0, err)
			ps.remove(id, false)
			removed = true
			continue
		}
		ps.warnQueues(p)
		if len(p.sockets) > had {
			ids = append(ids, id)
		}
	}
	return ids, removed
}

// useQueues opens sockets for queues that are new and have a worker, and puts the program on
// them. In between their packets are the kernel's, or wait for frames. With hook tcx packets
// arrive by the queues of the veth pair, and the device has no XDP program.
func (ps *Ports) useQueues(id int, p *port) error {
	if p.hook == steer.TCX {
		return nil
	}
	if err := ps.openDevice(p); err != nil {
		return err
	}
	if err := ps.steerTo(id, p); err != nil {
		return err
	}
	if p.driver != veth || p.attachment == nil {
		return nil
	}
	if err := ps.program.Refresh(p.attachment); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	return nil
}
