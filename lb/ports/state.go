package ports

import (
	"time"

	"github.com/weirlb/weir/lb/xsk"
)

// state is a port's stage of life. Interfaces come and go while packets are on their
// way: a port advances by one state at a time, and only after the workers have taken
// over the last update.
type state uint8

const (
	// open: the steering program is attached, and routes may lead to the port.
	open state = iota
	// joining: the sockets are open, and the workers get the port. They fill its rings
	// before the first packet comes.
	joining
	// leaving: the program is off, and no route leads to the port. The workers send
	// and receive the packets on its rings.
	leaving
	// closing: the workers give up the queues.
	closing
	// closed: the sockets are closed. The kernel gives up their frames.
	closed
	// vacant: the frames are the workers' again, and the ID is the next port's.
	vacant
)

// releaseTime is the time for which the kernel may still use the frames of a closed
// socket: it takes zero copy off a queue in the background.
const releaseTime = time.Second

// Moving reports whether a port is between two states, so that Follow should run again
// soon.
func (ps *Ports) Moving() bool {
	for _, p := range ps.list {
		if p.state != open && p.state != vacant {
			return true
		}
	}
	return false
}

// advance takes the ports that come or go to their next state.
func (ps *Ports) advance(v *view, u *Update) {
	for id, p := range ps.list {
		switch p.state {
		case joining:
			p.state = open
			ps.finishJoin(id, p)
			u.Routes = u.Routes || p.active
		case leaving:
			p.state = closing
			u.Ports = append(u.Ports, id)
		case closing:
			p.state, p.closed = closed, time.Now()
			ps.closeSockets(p)
		case closed:
			if link(v.links, p.index) == nil || time.Since(p.closed) >= releaseTime {
				ps.vacate(id, p, u)
			}
		}
	}
}

// finishJoin begins to take the packets of a port whose rings are filled.
func (ps *Ports) finishJoin(id int, p *port) {
	p.active = !p.member && p.routeIndex != 0
	var err error
	switch {
	case !p.isVLAN():
		err = ps.attach(id, p)
	case ps.list[p.vlanParent].attachment != nil:
		err = ps.updateAddresses(id)
	default:
		return // it comes with its device
	}
	if err != nil {
		ps.refuse(p.index, p.name, p.bond != 0, err)
		ps.remove(id, false)
		return
	}
	if p.isVLAN() {
		return
	}
	delete(ps.refused, p.index)
	delete(ps.guarded, p.index)
	if p.bond != 0 {
		ps.log.Info("bond member joined", "interface", p.parent, "member", p.name, "mode", p.granted())
	}
}

// vacate gives the frames of a closed port back to the workers, and its ID to the next
// port.
func (ps *Ports) vacate(id int, p *port, u *Update) {
	for _, sockets := range [][]*xsk.Socket{p.sockets, p.inner} {
		for worker, s := range sockets {
			u.Frames[worker] = ps.memory.ReclaimAll(s, u.Frames[worker])
		}
	}
	u.Ports = append(u.Ports, id)
	ps.list[id] = &port{state: vacant, vlanParent: -1}
	ps.retryRefused()
}
