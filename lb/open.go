package lb

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// New makes ready everything but the attachment to the interfaces: no packet is taken
// before the first Apply. Packets that the program of an earlier process still takes wait
// in the rings. On error nothing is left behind.
func New(cfg Config) (_ *LB, err error) {
	l := newLB(cfg)
	var last []*xsk.Socket // of the last process, as nobody has them yet
	defer func() {
		if err == nil {
			return
		}
		for _, s := range last {
			err = errors.Join(err, s.Close())
		}
		err = errors.Join(err, l.Close())
	}()

	if err := l.claimNode(); err != nil {
		return nil, err
	}
	l.openCache()
	l.cfg.Phases.End("flow cache")
	// The program is loaded, and then the pages of the packet memory are made, beside all
	// else. With a flow cache the program needs the maps of the flow table first.
	if l.cache == nil {
		if err := l.loadSteering(); err != nil {
			return nil, err
		}
	}
	cpus, err := l.openPorts()
	if err != nil {
		return nil, err
	}
	if last, err = l.openMemory(len(cpus)); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("packet memory")
	populated := l.populate(len(last) > 0)
	defer func() { <-populated }() // before Close: deferred functions run last first
	if err := l.openTables(len(cpus)); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("flow table")
	if err := l.shareTable(); err != nil {
		return nil, err
	}
	if l.steer == nil {
		if err := l.loadSteering(); err != nil {
			return nil, err
		}
	}
	l.ports.SetFlowCache(l.noCache)
	l.cfg.Phases.End("maps")
	if err := l.openHostVeth(len(cpus)); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("host veth")
	if err := l.openRouter(len(cpus)); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("routes")
	<-populated
	received := last
	last = nil // Open closes those that no port has
	// A socket per queue that a worker owns.
	if err := l.ports.Open(l.steer, l.memory, received); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("sockets")
	l.makeWorkers(cpus)
	if err := l.refreshAddresses(); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("workers")
	l.opened = true
	return l, nil
}

// claimNode makes this process the only Weir of the network namespace: another would take the veth
// pairs and the pins of this one for those of a dead process.
func (l *LB) claimNode() (err error) {
	l.claim, err = newClaim()
	return err
}

func newClaim() (*statefile.Claim, error) {
	c, err := statefile.NewClaim("weir-packet-path")
	if errors.Is(err, statefile.ErrClaimed) {
		return nil, fmt.Errorf("another Weir is running in this network namespace: %w", err)
	}
	return c, err
}

// newLB makes a load balancer that has opened nothing yet.
func newLB(cfg Config) *LB {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	l := &LB{
		cfg: cfg, log: cfg.Log, started: time.Now(),
		warnings:  warning.NewList(cfg.Log),
		unsteered: map[table.Key]*table.FrontendEntry{},
		sources:   map[netip.Addr]snat.Source{}, sourcesGone: map[netip.Addr]time.Time{},
		claims:    map[netip.Addr]int{},
		claimed:   map[table.Key]bool{},
		routed:    map[netip.Addr]bool{},
		warnedNAT: map[string]bool{},
		logged:    map[netip.AddrPort]time.Time{},
	}
	l.vips.init()
	l.former.init()
	l.withdrawn.services = map[uint32]bool{}
	return l
}

// openPorts finds the configured interfaces, and chooses the CPUs of the workers. No socket
// is open yet.
func (l *LB) openPorts() (cpus []int, err error) {
	l.ports, err = ports.New(ports.Config{
		Interfaces: l.cfg.Interfaces, FrameSize: l.cfg.FrameSize,
		PinDir: l.cfg.PinDir, StateDir: l.cfg.StateDir,
		Warnings: l.warnings, Log: l.log,
		Testing: l.cfg.Testing,
	})
	if err != nil {
		return nil, err
	}
	if cpus, err = placeWorkers(&l.cfg, l.ports.Queues()); err != nil {
		return nil, err
	}
	l.ports.SetWorkers(len(cpus))
	l.cfg.Phases.End("interfaces")
	return cpus, nil
}

// openTables opens the flow table, and makes the tables that belong to it.
func (l *LB) openTables(workers int) (err error) {
	memory, earlier, err := l.conntrackMemory()
	if err != nil {
		return fmt.Errorf("flow table: %w", err)
	}
	l.flows, err = conntrack.Open(conntrack.Config{
		Path: l.cfg.ConntrackPath, MaxFlows: l.cfg.MaxFlows, Workers: workers, Memory: memory,
		NextHops: route.DefaultMaxAdjacencies + 1,
	})
	if earlier != nil {
		err = errors.Join(err, earlier.Close())
	}
	if err != nil {
		return fmt.Errorf("flow table: %w", err)
	}
	l.reportFlowTable()

	l.affinity, l.cids = worker.NewAffinity(l.flows), worker.NewCIDs(l.flows)
	l.openPrefixes()
	l.tables = table.New(table.Config{
		InUse:        func(n uint32) bool { return l.flows.EndpointFlows(n) > 0 },
		ServiceInUse: func(n uint32) bool { return l.flows.ServiceOpen(n) > 0 || l.flows.ServiceHalfOpen(n) > 0 },
		Tick:         l.flows.Tick,

		OnRemoval: l.endpointRemoved,
		OnAssign:  l.cfg.Attempts.Assign,
	})
	l.reassign = reassign.New(l.flows, l.tables)
	return nil
}

// reportFlowTable warns of a file of the flow table that could not be used as it was.
func (l *LB) reportFlowTable() {
	a := l.flows.Restoration()
	if a.SetAside != "" {
		l.warnings.Add(warning.PacketPath, "",
			"flow table: the old file is not usable and was set aside as %s: %s", a.SetAside, a.Reason)
	}
	if a.MemoryReason != "" {
		l.warnings.Add(warning.PacketPath, "",
			"flow table: the connections of the last process are not usable and were dropped: %s", a.MemoryReason)
	}
	if a.Migrated > 0 {
		l.log.Info("flow table: the connections are from a table of another layout",
			"connections", a.Flows, "leftOut", a.Discarded, "layout", a.Migrated, "own", conntrack.LayoutVersion())
	}
	if a.Discarded > 0 {
		l.log.Warn("flow table: connections of the last process were left out", "connections", a.Discarded, "by", a.DiscardedBy)
	}
}

// openRouter begins to follow the kernel's routes and neighbors.
func (l *LB) openRouter(workers int) (err error) {
	l.router, err = route.New(route.Config{
		Workers: workers, Logger: l.log,
		Interfaces: l.ports.Routed(), HostVeth: l.routedHost(),
		MaxAdjacencies: route.DefaultMaxAdjacencies, Adjacencies: l.adjacencies(),
	})
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	l.router.SetReroute(func(affected []bool) { worker.Reroute(l.flows, l.router, affected) })
	return nil
}

// openMemory maps the packet memory: that of the last process with its sockets, if there are
// as many frames as this process needs, else memory of its own.
func (l *LB) openMemory(workers int) (last []*xsk.Socket, err error) {
	devices := l.ports.MaxDevices()
	if l.wantsHostVeth() {
		devices++
	}
	frames := workers * (devices*framesPerPort + worker.SpareFrames)
	size, why := l.ports.FrameSize()
	if why != "" {
		l.log.Info("packet memory", "frameSize", size, "because", why)
	}
	sockets := l.cfg.Sockets
	if sockets != nil && sockets.Frames == frames && sockets.FrameSize == size {
		if l.memory, last, err = sockets.Receive(); err == nil {
			l.log.Info("carrying on with the sockets of the last process", "sockets", len(last))
			return last, nil
		}
		l.log.Warn("sockets of the last process: packets are lost until others are open", "err", err)
	}
	if sockets != nil {
		if err := sockets.Close(); err != nil {
			l.log.Warn("sockets of the last process", "err", err)
		}
	}
	if l.memory, err = xsk.NewUmem(frames, size); err != nil {
		return nil, fmt.Errorf("packet memory: %w", err)
	}
	return nil, nil
}

// populate makes the pages of the packet memory, which a registration with the kernel waits for.
// The channel is closed when they are made. Pages of the last process are there.
func (l *LB) populate(ready bool) chan struct{} {
	populated := make(chan struct{})
	if ready {
		close(populated)
		return populated
	}
	go func() {
		defer close(populated)
		l.memory.Populate()
	}()
	return populated
}
