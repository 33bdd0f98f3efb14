package lb

import (
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/worker"
)

// portFor is a port for a worker.
func (l *LB) portFor(id, of int) worker.Port {
	v := l.ports.View(id, of)
	p := worker.Port{
		Owner: int32(v.Owner), Interface: int32(v.RouteIndex), Metadata: v.Metadata,
		Tag: v.Tag, Under: int32(v.VLANParent),
	}
	if v.Queue != nil {
		p.Queue, p.Ring = v.Queue, framesPerPort
	}
	return p
}

// queuesOf are the descriptors of a worker's queues.
func (l *LB) queuesOf(id int) (list []int) {
	for _, s := range l.ports.Sockets(id) {
		list = append(list, s.FD())
	}
	return list
}

// quiesced reports whether every worker has carried out its last update.
func (l *LB) quiesced() bool {
	for _, w := range l.workers {
		if !w.Updated() {
			return false
		}
	}
	return true
}

// updateWorkers passes changed ports and freed frames on to the workers. Preconditions:
// quiesced.
func (l *LB) updateWorkers(u *ports.Update) {
	for _, w := range l.workers {
		id := w.ID()
		next := worker.PortUpdate{
			Queues: l.queuesOf(id), Devices: l.ports.Devices(), Frames: u.Frames[id],
		}
		for _, port := range u.Ports {
			next.Ports = append(next.Ports, worker.PortChange{ID: port, Port: l.portFor(port, id)})
		}
		w.Update(&next)
	}
}
