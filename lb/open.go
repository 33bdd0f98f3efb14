package lb

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb/frontends"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/localports"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
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

	if l.claim, err = newClaim(); err != nil {
		return nil, err
	}
	if l.cfg.Stale != nil {
		l.cfg.Stale()
	}
	l.cache.open(l.cfg.FlowCache, l.pinDir())
	l.cfg.Phases.End("flow cache")
	// The program is loaded, and then the pages of the packet memory are made, beside all
	// else. With a flow cache the program needs the maps of the flow table first.
	if l.cache.kernel == nil {
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
	populated := populate(l.memory, len(last) > 0)
	defer func() { <-populated }() // before Close: deferred functions run last first
	if err := l.openTables(len(cpus)); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("flow table")
	if err := l.cache.share(l.flows); err != nil {
		return nil, err
	}
	if l.steer == nil {
		if err := l.loadSteering(); err != nil {
			return nil, err
		}
	}
	if err := l.denials.open(l.cfg.Denied, l.steer); err != nil {
		return nil, err
	}
	l.ports.SetFlowCache(l.cache.off)
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
	l.makeParts()
	l.makeWorkers(cpus)
	if err := l.refreshAddresses(); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("workers")
	l.opened = true
	return l, nil
}

// newClaim makes this process the only Weir of the network namespace: another would take the veth
// pairs and the pins of this one for those of a dead process.
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
		warnings: warning.NewList(cfg.Log),
	}
	l.cache.warnings = l.warnings
	return l
}

// makeParts makes the parts that follow tables and addresses. Preconditions: l has its flow table,
// tables, router, steering program and host veth, or no host veth.
func (l *LB) makeParts() {
	l.cfg.Denied = nil // the memory of the prefixes
	l.vips = newVIPs(l.steer, l.router)
	l.clientRoutes = newClientRoutes(l.host, l.router)
	l.hostPaths = &hostPaths{host: l.host, router: l.router, warned: map[string]bool{}, warnings: l.warnings}
	l.sources = &sources{
		program: l.steer, router: l.router, host: l.host,
		ports: sharedPorts{
			configured: localports.Range{Lo: l.cfg.SNATPortLo, Hi: l.cfg.SNATPortHi},
			auto:       l.cfg.SNATPortsAuto, protected: l.cfg.ProtectedPorts, byFlow: errNotAttached,
			flows: l.flows, tables: l.tables, router: l.router, program: l.steer, cache: &l.cache, givesBack: l.host != nil,
		},
		pool:    l.cfg.SNATAddresses,
		steered: map[netip.Addr]snat.Source{}, gone: map[netip.Addr]time.Time{},
	}
	of := frontends.Config{
		Program: l.steer, Flows: l.flows, Tables: l.tables, Router: l.router,
		KeepFormer: l.host != nil, Routed: l.clientRoutes.stays, Unroute: l.clientRoutes.unroute, Log: l.log,
	}
	if l.cache.kernel != nil {
		of.ServiceRemoved = l.cache.kernel.SetServiceRemoved
	}
	l.frontends = frontends.New(of)
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
	memory, earlier, err := l.cache.memory(l.pinDir())
	if err != nil {
		return fmt.Errorf("flow table: %w", err)
	}
	l.flows, err = conntrack.Open(conntrack.Config{
		Path: l.cfg.ConntrackPath, MaxFlows: l.cfg.MaxFlows, Workers: workers, Memory: memory,
		NextHops: route.DefaultMaxAdjacencies + 1, RecordsPerSecond: l.cfg.FlowRecords,
	})
	if earlier != nil {
		err = errors.Join(err, earlier.Close())
	}
	if err != nil {
		return fmt.Errorf("flow table: %w", err)
	}
	reportFlowTable(l.flows.Restoration(), l.warnings, l.log)

	l.affinity, l.cids = worker.NewAffinity(l.flows), worker.NewCIDs(l.flows)
	seed := l.flows.Seed()
	l.prefixes = ratelimit.NewPrefixes([2]uint64{seed[0], seed[3]}) // 2 MiB, which take memory once there is a limit
	l.prefixes.Set(l.cfg.PrefixLimit)
	l.tables = table.New(table.Config{
		InUse:        func(n uint32) bool { return l.flows.EndpointFlows(n) > 0 },
		ServiceInUse: func(n uint32) bool { return l.flows.ServiceOpen(n) > 0 || l.flows.ServiceHalfOpen(n) > 0 },
		Tick:         l.flows.Tick,

		OnRemoval: l.cache.endpointRemoved,
		OnAssign:  l.cfg.Attempts.Assign,
	})
	l.reassign = reassign.New(l.flows, l.tables)
	return nil
}

// reportFlowTable warns of a file of the flow table that could not be used as it was.
func reportFlowTable(a conntrack.Restoration, warnings *warning.List, log *slog.Logger) {
	if a.SetAside != "" {
		warnings.Add(warning.PacketPath, "",
			"flow table: the old file is not usable and was set aside as %s: %s", a.SetAside, a.Reason)
	}
	if a.MemoryReason != "" {
		warnings.Add(warning.PacketPath, "",
			"flow table: the connections of the last process are not usable and were dropped: %s", a.MemoryReason)
	}
	if a.Migrated > 0 {
		log.Info("flow table: the connections are from a table of another layout",
			"connections", a.Flows, "leftOut", a.Discarded, "layout", a.Migrated, "own", conntrack.LayoutVersion())
	}
	if a.Discarded > 0 {
		log.Warn("flow table: connections of the last process were left out", "connections", a.Discarded, "by", a.DiscardedBy)
	}
}

// openRouter begins to follow the kernel's routes and neighbors.
func (l *LB) openRouter(workers int) (err error) {
	l.router, err = route.New(route.Config{
		Workers: workers, Logger: l.log,
		Interfaces: l.ports.Routed(), HostVeth: l.routedHost(),
		MaxAdjacencies: route.DefaultMaxAdjacencies, Adjacencies: l.cache.adjacencies(),
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
	if l.cfg.wantsHostVeth() {
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
func populate(memory *xsk.Umem, ready bool) chan struct{} {
	populated := make(chan struct{})
	if ready {
		close(populated)
		return populated
	}
	go func() {
		defer close(populated)
		memory.Populate()
	}()
	return populated
}

// pinDir is where pins are.
func (l *LB) pinDir() string { return cmp.Or(l.cfg.PinDir, steer.DefaultPinDir) }

// loadSteering begins to load the steering program.
func (l *LB) loadSteering() (err error) {
	l.steer, err = steer.Load(steer.Config{
		Flows: l.cache.maps(), PinDir: l.pinDir(),
		TCX: slices.ContainsFunc(l.cfg.Interfaces, func(i ports.Interface) bool { return i.Hook == ports.HookTCX }),
	})
	return err
}

// wantsHostVeth reports whether there is to be a host veth.
func (c *Config) wantsHostVeth() bool { return c.HostVeth4.IsValid() || c.HostVeth6.IsValid() }

// openHostVeth makes the host veth, which is the last port.
func (l *LB) openHostVeth(workers int) error {
	if !l.cfg.wantsHostVeth() {
		l.warnings.Add(warning.PacketPath, "",
			"no host veth (hostVeth.prefixes is empty): endpoints behind the kernel cannot be reached")
		return nil
	}
	h, err := hostveth.Open(hostveth.Config{
		Prefix4: l.cfg.HostVeth4, Prefix6: l.cfg.HostVeth6,
		Queues: workers, MTU: l.ports.MTU(), Redirects: l.cache.kernel != nil,
		Mark: l.cfg.HostVethMark, Table: l.cfg.HostVethTable,
		StateDir: l.cfg.StateDir, ProcSys: l.cfg.ProcSys, Log: l.log,
	})
	if err != nil {
		return err
	}
	l.host = h
	if !h.Masquerades() {
		l.warnings.Add(warning.PacketPath, "", "nftables could not be programmed: "+
			"endpoints on other nodes that are reached through the kernel get no traffic")
	}
	if err := h.ReturnPathErr(); err != nil {
		l.warnings.Add(warning.PacketPath, "", "connection marks cannot bring answers back: "+
			"nat in place of dnat, so that endpoints do not see clients' addresses: %v", err)
	}
	l.ports.AddHost(ports.Host{
		Name: h.Name(), Index: h.Index(), MAC: h.MAC(), MTU: h.MTU(), Queues: workers, Fault: h.Fault,
	})
	return nil
}

// routedHost is the host veth for the routes, nil without it.
func (l *LB) routedHost() *route.HostVeth {
	if l.host == nil {
		return nil
	}
	hp := l.host.Route(l.ports.HostID())
	return &hp
}

// makeWorkers builds a worker for each CPU, with the opened sockets. They do not run yet.
func (l *LB) makeWorkers(cpus []int) {
	ws := &l.workers
	ws.ports, ws.memory, ws.tick, ws.log, ws.logged = l.ports, l.memory, l.flows.Tick, l.log, map[netip.AddrPort]time.Time{}
	l.taps.workers, l.taps.cache = ws, &l.cache
	free := l.memory.FreeFrames()
	l.counts.open(len(cpus))
	for id, cpu := range cpus {
		w := worker.New(l.workerConfig(id, cpu))
		if host := l.ports.HostID(); host >= 0 {
			w.SetHostVeth(host, l.host.PeerMAC(), l.host.MAC())
		}
		free = ws.add(w, len(cpus), free)
	}
	worker.Connect(ws.list)
}

// workerConfig is the configuration of a worker. Preconditions: l has its flow table,
// tables, router and memory.
func (l *LB) workerConfig(id, cpu int) worker.Config {
	return worker.Config{
		ID: id, CPU: cpu, Ports: l.ports.Len(), MaxPorts: steer.MaxSlots,
		Flows: l.flows, Frontends: l.tables, Affinity: l.affinity, CIDs: l.cids,
		Router: l.router, Memory: l.memory, Node: &l.node, VIPs: &l.vips.published,
		Takeover: l.cfg.Takeover, Silence: l.cfg.Silence, EndpointRemovalGrace: l.cfg.EndpointRemovalGrace,
		GUEZeroChecksum: l.cfg.GUEZeroChecksum, MinPathMTU: l.cfg.MinPathMTU,
		ReversePathFilter: l.cfg.ReversePathFilter,
		Services:          l.counts.workers, Attempts: l.cfg.Attempts, Prefixes: l.prefixes, Denied: l.denials.denied,
	}
}
