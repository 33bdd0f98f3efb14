package lb

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	// framesPerPort are the frames that a port may hold for receiving. With
	// half of it a worker that was kept from running lost packets.
	framesPerPort = 4096
	// SpareMembers is for how many more members that bonds may get there are
	// frames: two devices' worth, however many bonds there are.
	SpareMembers = 2
)

// placeWorkers decides on the number of workers and their CPUs.
func (l *LB) placeWorkers() (int, []int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, nil, fmt.Errorf("ask for the CPUs that may be used: %w", err)
	}
	var allowed []int
	for c := range 1024 {
		if set.IsSet(c) {
			allowed = append(allowed, c)
		}
	}
	for _, c := range l.cfg.CPUs {
		if c < 0 || c >= 1024 || !set.IsSet(c) {
			return 0, nil, fmt.Errorf("workers.cpus: CPU %d may not be used by this process (allowed: %v)", c, allowed)
		}
	}
	n := l.cfg.Workers
	if n == 0 {
		n = l.automaticWorkers(len(allowed))
	}
	if n > steer.MaxQueues {
		return 0, nil, fmt.Errorf("%d workers: at most %d", n, steer.MaxQueues)
	}
	cpus := l.cfg.CPUs
	if len(cpus) == 0 {
		sys, near := os.DirFS("/sys"), map[int]int{}
		for _, i := range l.ifaces {
			near[device.Node(sys, i.name)] += i.queues
		}
		cpus = device.Place(n, device.CPUs(sys, allowed), device.NearestNode(near))
	}
	if n > len(cpus) {
		return 0, nil, fmt.Errorf("%d workers on %d CPUs: a worker takes a whole CPU; lower workers.count", n, len(cpus))
	}
	for _, i := range l.ifaces {
		l.warnQueues(i, n)
	}
	return n, cpus[:n], nil
}

// warnQueues says which receive queues no worker has, and that a device came back
// with another number of them.
func (l *LB) warnQueues(i *iface, workers int) {
	if i.virtual() {
		return
	}
	if had, ok := l.queueCount[i.name]; ok && had != i.queues {
		l.warnInterface(i.name, "it came back with %d receive queues and had %d: workers without one of their own take no packets from it", i.queues, had)
	}
	l.queueCount[i.name] = i.queues
	if i.queues > workers {
		l.warnInterface(i.name, "%d of its %d receive queues have no worker, their packets go to the kernel: run `ethtool -L %s combined %d`",
			i.queues-workers, i.queues, i.name, workers)
	}
}

// automaticWorkers is one per receive queue, as far as there are CPUs and the
// steering program has room for sockets.
func (l *LB) automaticWorkers(cpus int) int {
	n := 0
	for _, i := range l.ifaces {
		n = max(n, i.queues)
	}
	if len(l.cfg.CPUs) > 0 {
		cpus = len(l.cfg.CPUs)
	}
	return min(n, cpus, steer.MaxQueues)
}

// devices is how many interfaces have queues: VLANs have none of their own.
func (l *LB) devices() (n int) {
	for _, i := range l.ifaces {
		if !i.virtual() && i.stage != vacant {
			n++
		}
	}
	return n
}

// openSockets maps the umem and binds a socket to every queue with a worker.
func (l *LB) openSockets(workers int) error {
	l.maxDevices = l.devices()
	if l.bonded {
		l.maxDevices += SpareMembers
	}
	frames := workers * (l.maxDevices*framesPerPort + worker.SpareFrames)
	size, why := l.frameSize()
	if why != "" {
		l.log.Info("packet memory", "frameSize", size, "because", why)
	}
	var err error
	if l.memory, err = xsk.NewUmem(frames, size); err != nil {
		return fmt.Errorf("packet memory: %w", err)
	}
	for slot, i := range l.ifaces {
		if i.virtual() {
			continue
		}
		if err := l.openQueues(slot, i, workers); err != nil {
			return err
		}
	}
	return nil
}

// openQueues binds a socket to every queue of a port with a worker.
func (l *LB) openQueues(slot int, i *iface, workers int) error {
	mode, err := l.socketModeOf(i)
	if err != nil {
		return fmt.Errorf("interface %s: %w", i.name, err)
	}
	metadata, zeroCopyOnly := metadataFor(i.txChecksum, i.driver)
	for q := range min(i.queues, workers) {
		s, err := xsk.Open(l.memory, xsk.Config{
			IfIndex: i.index, Queue: q, Mode: mode,
			Umem:                 l.umem(i),
			TxMetadata:           metadata && !l.cfg.SoftwareChecksums,
			MetadataZeroCopyOnly: zeroCopyOnly,
			MultiBuffer:          i.mtu > largestMTU(l.memory.FrameSize()) && l.steer.Frags(),
		})
		if err != nil {
			return fmt.Errorf("interface %s queue %d: %w", i.name, q, err)
		}
		i.sockets = append(i.sockets, s)
		if err := l.steer.SetSocket(slot, q, s.FD()); err != nil {
			return fmt.Errorf("interface %s: %w", i.name, err)
		}
	}
	return l.checkMetadata(i)
}

// largestMTU is that of packets which fit into a frame, with room for tags and to spare.
func largestMTU(frameSize int) int { return frameSize - xsk.Headroom - 256 }

// umem tells apart what could share one.
func (l *LB) umem(i *iface) int {
	if i.host && l.cfg.OwnHostUmem {
		return 1
	}
	return 0
}

func (i *iface) socketMode() xsk.Mode {
	switch i.mode {
	case ModeZeroCopy:
		return xsk.ZeroCopy
	case ModeNative, ModeGeneric:
		return xsk.Copy
	}
	if i.host {
		return xsk.Copy
	}
	return xsk.Auto
}

func (i *iface) steerMode() steer.Mode {
	switch i.mode {
	case ModeZeroCopy, ModeNative:
		return steer.Native
	case ModeGeneric:
		return steer.Generic
	}
	return steer.Auto
}

// makeWorkers builds the workers around what was opened; they do not run yet.
func (l *LB) makeWorkers(n int, cpus []int) {
	perWorker := l.memory.Frames() / n
	for id := range n {
		w := worker.New(l.workerConfig(id, cpus[id]))
		w.SetDevices(l.devices())
		for slot, i := range l.ifaces {
			w.SetPort(slot, l.portFor(id, slot))
			if i.host {
				w.SetHostVeth(slot, l.host.PeerMAC(), i.mac)
			}
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
		ID: id, CPU: cpu, Ports: len(l.ifaces), MaxPorts: l.mostPorts(),
		Flows: l.flows, Frontends: l.tables, Affinity: l.affinity, CIDs: l.servers,
		Router: l.router, Memory: l.memory, Node: &l.node, VIPs: &l.vips.Pointer,
		Takeover: l.cfg.Takeover, EndpointRemovalGrace: l.cfg.EndpointRemovalGrace,
		GUEZeroChecksum: l.cfg.GUEZeroChecksum, MinPathMTU: l.cfg.MinPathMTU,
		ReversePathFilter: l.cfg.ReversePathFilter,
	}
}

// openRouter starts to follow the kernel's routes and neighbors.
func (l *LB) openRouter(workers int) error {
	cfg := route.Config{Workers: workers, Logger: l.log, Interfaces: l.routedBy(), HostVeth: l.hostVeth()}
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
		l.warn("flow table: the old file is not usable and was set aside as %s: %s", a.SetAside, a.Reason)
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
