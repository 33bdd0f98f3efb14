package lb

import (
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	// framesPerPort are the frames that a port may hold for receiving. With
	// half of it a worker that was kept from running lost packets.
	framesPerPort = 4096
)

// findPorts finds the ports of the configured interfaces.
func (l *LB) findPorts() (err error) {
	l.ports, err = ports.New(ports.Config{
		Interfaces: l.cfg.Interfaces, FrameSize: l.cfg.FrameSize,
		PinDir: l.cfg.PinDir, StateDir: l.cfg.StateDir,
		SoftwareChecksums: l.cfg.SoftwareChecksums,
		DeclaredLinks:     l.cfg.DeclaredLinks,
		OwnHostUmem:       l.cfg.OwnHostUmem,
		Warnings:          l.warnings, Log: l.log,
	})
	return err
}

// openSockets maps the umem and binds a socket to every queue with a worker.
func (l *LB) openSockets(workers int) error {
	frames := workers * (l.ports.MaxDevices()*framesPerPort + worker.SpareFrames)
	size, why := l.ports.FrameSize()
	if why != "" {
		l.log.Info("packet memory", "frameSize", size, "because", why)
	}
	var err error
	if l.memory, err = xsk.NewUmem(frames, size); err != nil {
		return fmt.Errorf("packet memory: %w", err)
	}
	return l.ports.Open(l.steer, l.memory)
}

// makeWorkers builds a worker for each CPU around what was opened. They do not run yet.
func (l *LB) makeWorkers(cpus []int) {
	perWorker := l.memory.Frames() / len(cpus)
	for id, cpu := range cpus {
		w := worker.New(l.workerConfig(id, cpu))
		w.SetDevices(l.ports.Devices())
		for port := range l.ports.Len() {
			w.SetPort(port, l.portFor(port, id))
		}
		if host := l.ports.HostID(); host >= 0 {
			w.SetHostVeth(host, l.host.PeerMAC(), l.host.MAC())
		}
		for f := range perWorker {
			w.AddFrame(l.memory.Addr(id*perWorker + f))
		}
		l.workers = append(l.workers, w)
	}
	worker.Connect(l.workers)
}

// workerConfig is the configuration of a worker. Preconditions: l has its flow table,
// tables, router and memory.
func (l *LB) workerConfig(id, cpu int) worker.Config {
	return worker.Config{
		ID: id, CPU: cpu, Ports: l.ports.Len(), MaxPorts: steer.MaxSlots,
		Flows: l.flows, Frontends: l.tables, Affinity: l.affinity, CIDs: l.servers,
		Router: l.router, Memory: l.memory, Node: &l.node, VIPs: &l.vips.Pointer,
		Takeover: l.cfg.Takeover, EndpointRemovalGrace: l.cfg.EndpointRemovalGrace,
		GUEZeroChecksum: l.cfg.GUEZeroChecksum, MinPathMTU: l.cfg.MinPathMTU,
		ReversePathFilter: l.cfg.ReversePathFilter,
	}
}

// openRouter starts to follow the kernel's routes and neighbors.
func (l *LB) openRouter(workers int) error {
	cfg := route.Config{Workers: workers, Logger: l.log, Interfaces: l.ports.Routed(), HostVeth: l.routedHost()}
	var err error
	if l.router, err = route.New(cfg); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	return nil
}

// sayAdoption tells what became of the flow table's file.
func (l *LB) sayAdoption() {
	a := l.flows.Adoption()
	if a.SetAside != "" {
		l.warnings.Add(warning.PacketPath, "", "flow table: the old file is not usable and was set aside as %s: %s", a.SetAside, a.Reason)
	}
	if a.Discarded > 0 {
		l.log.Warn("flow table: half-made or damaged connections were left out", "connections", a.Discarded)
	}
}

// sourceAt is the SNAT source at a configured address: of the ports of an address
// that the host holds too Weir has a part.
func (l *LB) sourceAt(a netip.Addr) snat.Source {
	if l.router.Load().Local(a) {
		return snat.Source{Addr: a, Lo: l.cfg.SNATPortLo, Hi: l.cfg.SNATPortHi}
	}
	return snat.Exclusive(a)
}
