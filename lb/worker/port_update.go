package worker

import (
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// PortUpdate describes ports of a running worker that have come, changed or gone. The
// worker carries it out between two rounds. The worker has room for the greatest number of
// ports from the start, so that none ever moves.
type PortUpdate struct {
	Ports []PortChange
	// Queues are the descriptors of all queues that the worker then has, to be polled.
	Queues []int
	// Devices is the number of interfaces with queues.
	Devices int
	// Frames return to the worker: the kernel had them in queues that were closed earlier.
	Frames []uint64
}

// PortChange is a port as it becomes.
type PortChange struct {
	ID   int
	Port Port
}

// Update hands the worker an update. Preconditions: Updated.
func (w *Worker) Update(u *PortUpdate) {
	w.change.Store(&portUpdate{PortUpdate: *u, pollFD: w.sleeper.polled(u.Queues), sendMax: sendShare(u.Devices)})
	w.sleeper.wakeUp()
}

// Updated reports whether the worker has carried out the last update.
func (w *Worker) Updated() bool { return w.change.Load() == nil }

// SetPort sets a port. Preconditions: the worker has not started.
func (w *portIO) SetPort(id int, p Port) { w.ports[id].Port = p }

// SetHeld says how many frames the kernel has already through the queue of a port, to receive
// into and to send. Preconditions: the worker has not started.
func (w *portIO) SetHeld(id, receiving, sending int) {
	w.ports[id].filled, w.ports[id].sending = receiving, sending
}

// SetHostVeth says which port is the host veth, with the MAC addresses of the packets
// that leave by it: the kernel's end first. Preconditions: the worker has not started.
func (w *portIO) SetHostVeth(id int, kernel, own [6]byte) {
	w.hostVeth = int32(id)
	w.hostVethMACs = [2]uint64{route.MACWord(kernel), route.MACWord(own)}
}

// SetDevices says how many interfaces have queues. Preconditions: the worker has not
// started.
func (w *portIO) SetDevices(n int) { w.sendMax = sendShare(n) }

// AddFrame gives the worker a frame. Preconditions: the worker has not started.
func (w *portIO) AddFrame(addr uint64) { w.free.push(addr) }

// portUpdate is a PortUpdate with the worker's state of it.
type portUpdate struct {
	PortUpdate
	pollFD  []unix.PollFd
	sendMax int
}

// sendShare is the number of frames in transmission that a port with queues may have: as
// many as leave the fill rings whole when all ports but one are stuck.
func sendShare(ports int) int {
	return (SpareFrames - neighQueueLen*maxBuffers - fragQueueFrames) / max(1, ports-1)
}

// updatePorts carries out a change of the ports. Preconditions: no packet is in a
// batch, or gathered at a port.
func (w *Worker) updatePorts(u *portUpdate) {
	for i := range u.Ports {
		c := &u.Ports[i]
		w.ports = w.ports[:max(len(w.ports), c.ID+1)]
		if p := &w.ports[c.ID]; p.Queue != nil && p.Queue == c.Port.Queue {
			p.Port = c.Port // the kernel has frames through its queue
			continue
		}
		w.ports[c.ID] = port{Port: c.Port}
	}
	w.settling.head = w.settling.tail // the flows ask again
	w.sleeper.pollFD, w.sendMax = u.pollFD, u.sendMax
	copy(w.free.grow(len(u.Frames)), u.Frames)
	w.change.Store(nil)
}
