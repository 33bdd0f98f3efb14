package lb

import (
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/worker"
)

// mostPorts is how many ports a worker may come to have.
func (l *LB) mostPorts() int { return steer.MaxSlots }

// portFor is a port as a worker is to see it. One that is being closed has
// neither queue nor owner: what still wants to leave by it is dropped.
func (l *LB) portFor(id, slot int) worker.Port {
	i := l.ifaces[slot]
	p := worker.Port{Owner: int32(id), Interface: int32(i.as)}
	switch {
	case i.stage > leaving:
	case i.virtual():
		p.Tag, p.Under = i.tag, int32(i.under)
		_, p.Metadata, _ = l.ifaces[i.under].sockets[0].Granted()
	case id < len(i.sockets):
		s := i.sockets[id]
		_, p.Metadata, _ = s.Granted()
		p.Queue, p.Ring = s, framesPerPort
	default:
		p.Owner = int32(id % len(i.sockets))
	}
	return p
}

// queuesOf are the descriptors of a worker's queues.
func (l *LB) queuesOf(id int) []int {
	var list []int
	for _, i := range l.ifaces {
		if i.stage <= leaving && id < len(i.sockets) {
			list = append(list, i.sockets[id].FD())
		}
	}
	return list
}

// settled reports whether every worker has carried out what it was last told.
func (l *LB) settled() bool {
	for _, w := range l.workers {
		if !w.Updated() {
			return false
		}
	}
	return true
}

// rewire tells the workers of changed ports, and gives them frames back.
// Preconditions: settled.
func (l *LB) rewire(slots []int, frames [][]uint64) {
	for _, w := range l.workers {
		id := w.ID()
		u := worker.PortUpdate{Queues: l.queuesOf(id), Devices: l.devices(), Frames: frames[id]}
		for _, slot := range slots {
			u.Ports = append(u.Ports, worker.PortChange{ID: slot, Port: l.portFor(id, slot)})
		}
		w.Update(&u)
	}
}
