package lb

import (
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/worker"
)

// framesPerPort is the number of frames that a port may hold for receiving. With half of
// it a worker that was kept from running lost packets.
const framesPerPort = 4096

// makeWorkers builds a worker for each CPU, with the opened sockets. They do not run yet.
func (l *LB) makeWorkers(cpus []int) {
	free := l.memory.FreeFrames()
	perWorker := l.memory.Frames() / len(cpus)
	l.counts.open(len(cpus))
	for id, cpu := range cpus {
		w := worker.New(l.workerConfig(id, cpu))
		w.SetDevices(l.ports.Devices())
		share := perWorker
		for port := range l.ports.Len() {
			w.SetPort(port, l.portFor(port, id))
			receiving, sending := l.held(port, id)
			w.SetHeld(port, receiving, sending)
			share -= receiving + sending
		}
		if host := l.ports.HostID(); host >= 0 {
			w.SetHostVeth(host, l.host.PeerMAC(), l.host.MAC())
		}
		if share = min(max(share, 0), len(free)); id == len(cpus)-1 {
			share = len(free) // frames may have passed from worker to worker
		}
		for _, f := range free[:share] {
			w.AddFrame(f)
		}
		free = free[share:]
		w.Refill() // here: a thread may first run after traffic is taken
		l.workers = append(l.workers, w)
	}
	worker.Connect(l.workers)
}

// workerConfig is the configuration of a worker. Preconditions: l has its flow table,
// tables, router and memory.
func (l *LB) workerConfig(id, cpu int) worker.Config {
	return worker.Config{
		ID: id, CPU: cpu, Ports: l.ports.Len(), MaxPorts: steer.MaxSlots,
		Flows: l.flows, Frontends: l.tables, Affinity: l.affinity, CIDs: l.cids,
		Router: l.router, Memory: l.memory, Node: &l.node, VIPs: &l.vips.Pointer,
		Takeover: l.cfg.Takeover, Silence: l.cfg.Silence, EndpointRemovalGrace: l.cfg.EndpointRemovalGrace,
		GUEZeroChecksum: l.cfg.GUEZeroChecksum, MinPathMTU: l.cfg.MinPathMTU,
		ReversePathFilter: l.cfg.ReversePathFilter,
		Services:          l.counts.workers, Attempts: l.cfg.Attempts, Prefixes: l.prefixes,
	}
}

// portFor is a port for a worker.
func (l *LB) portFor(id, of int) worker.Port {
	v := l.ports.View(id, of)
	p := worker.Port{
		Owner: int32(v.Owner), Interface: int32(v.RouteIndex), Metadata: v.Metadata,
		FullChecksums: v.ZeroCopy, Tag: v.Tag, Under: int32(v.VLANParent),
	}
	switch {
	case v.Receive != nil:
		p.Queue, p.Ring = split{Socket: v.Queue, receive: v.Receive}, framesPerPort
	case v.Queue != nil:
		p.Queue, p.Ring = v.Queue, framesPerPort
	}
	return p
}

// held is the number of frames that the kernel has through a worker's sockets of a port, which
// may be those of the last process.
func (l *LB) held(id, of int) (receiving, sending int) {
	v := l.ports.View(id, of)
	if v.Queue == nil {
		return 0, 0
	}
	receiving, sending = l.memory.Held(v.Queue)
	if v.Receive != nil {
		receiving, _ = l.memory.Held(v.Receive)
	}
	return receiving, sending
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
