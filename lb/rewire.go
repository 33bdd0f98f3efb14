package lb

import (
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// rewiring tells a running worker which of its ports have come, changed or gone.
// It is published in worker.change and carried out between two rounds; the
// pointer is nil again when that is done. A worker has room for all ports there
// can be from the start, so that none ever moves.
type rewiring struct {
	ports   []rewired
	pollFD  []unix.PollFd
	sendMax int
	frames  []uint64 // the worker's again: the kernel had them by way of queues let go earlier
}

type rewired struct {
	slot int
	port *port
}

// mostPorts is how many ports a worker may come to have.
func (l *LB) mostPorts() int { return steer.MaxSlots }

// portFor is a port as a worker is to see it. One that is being closed has
// neither queue nor owner: what still wants to leave by it is dropped.
func (l *LB) portFor(worker, slot int) *port {
	i := l.ifaces[slot]
	p := &port{host: i.host, owner: int32(worker), routed: int32(i.as)}
	switch {
	case i.stage > leaving:
	case i.virtual():
		p.tag, p.under = i.tag, int32(i.under)
		_, p.metadata, _ = l.ifaces[i.under].sockets[0].Granted()
	case worker < len(i.sockets):
		s := i.sockets[worker]
		_, p.metadata, _ = s.Granted()
		p.q, p.ring = s, framesPerPort
	default:
		p.owner = int32(worker % len(i.sockets))
	}
	return p
}

// polled is what a worker waits for: its wake-up first, then its queues.
func (l *LB) polled(w *worker) []unix.PollFd {
	list := []unix.PollFd{{Fd: int32(w.wakeFD), Events: unix.POLLIN}}
	for _, i := range l.ifaces {
		if i.stage <= leaving && w.id < len(i.sockets) {
			list = append(list, unix.PollFd{Fd: int32(i.sockets[w.id].FD()), Events: unix.POLLIN})
		}
	}
	return list
}

// settled says whether every worker has carried out what it was last told.
func (l *LB) settled() bool {
	for _, w := range l.workers {
		if w.change.Load() != nil {
			return false
		}
	}
	return true
}

// rewire tells the workers of changed ports, and gives them frames back.
// Preconditions: settled.
func (l *LB) rewire(slots []int, frames [][]uint64) {
	for _, w := range l.workers {
		r := &rewiring{pollFD: l.polled(w), sendMax: sendShare(l.devices()), frames: frames[w.id]}
		for _, slot := range slots {
			r.ports = append(r.ports, rewired{slot, l.portFor(w.id, slot)})
		}
		w.change.Store(r)
		w.wakeUp()
	}
}

// rewire carries out a change of the ports. Preconditions: no packet is in a
// batch, or gathered at a port.
func (w *worker) rewire(r *rewiring) {
	for i := range r.ports {
		c := &r.ports[i]
		w.ports = w.ports[:max(len(w.ports), c.slot+1)]
		w.ports[c.slot] = *c.port
	}
	w.pollFD, w.sendMax = r.pollFD, r.sendMax
	copy(w.free.grow(len(r.frames)), r.frames)
	w.change.Store(nil)
}

// portGone frees a buffer that was handed over to leave by a port whose queue
// the worker has let go since.
func (w *worker) portGone(d *xsk.Desc) {
	if d.Options&xsk.Continued == 0 {
		w.t.drops[DropHandoffFull]++
	}
	w.free.push(d.Addr &^ w.frameMask)
}
