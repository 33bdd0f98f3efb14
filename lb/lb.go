// Package lb is the load balancer as its owner sees it. New opens everything, Apply
// publishes Services and begins to take traffic, Run serves until its context ends, Close
// takes everything off the host. It decides nothing about endpoints: it carries out the
// tables that it is given.
//
//	lb.go         Config, New, Close
//	apply.go      tables and steering, in order; flows of the last process
//	addresses.go  the node's addresses: SNAT sources; and with them vip.go, host.go
//	run.go        what runs beside the workers
//	workers.go    a worker per CPU, and its ports (placement.go chooses the CPUs)
//	status.go     the state of everything
//	observe.go    captures and traces; dropped.go: samples of dropped packets
//
// The packages below:
//
//	ports      attached interfaces          worker     the packet loop of a core
//	steer      the XDP program              table      frontends and pools
//	xsk        AF_XDP sockets               route      the kernel's routes and neighbors
//	hostveth   the veth into the kernel     snat       source addresses
//
// The control object and the workers meet at atomic pointers and flat memory only: no
// method of LB waits for a worker, and no worker for a method.
package lb

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// Config says what a load balancer is to be.
type Config struct {
	Interfaces []ports.Interface
	// HostVeth4 and HostVeth6 are Weir's own prefixes towards endpoints
	// behind the kernel; a family without a prefix has no host veth.
	HostVeth4, HostVeth6 netip.Prefix
	// HostVethMark and HostVethTable bring back answers to clients whose
	// address is kept: see hostveth.Config.
	HostVethMark  uint32
	HostVethTable int
	// Workers is the number of workers, 0: one per receive queue, at most one per CPU.
	Workers int
	// CPUs are those to pin workers to, in worker order; nil: chosen.
	CPUs []int
	// SNATAddresses replace the addresses of the way out as SNAT sources.
	SNATAddresses          []netip.Addr
	SNATPortLo, SNATPortHi uint16 // on addresses of the host, inclusive
	// ConntrackPath is the file of the flow table, "" for none.
	ConntrackPath string
	MaxFlows      int // 0: at most 5 % of memory
	// Takeover is how long after start TCP packets of unknown flows are given
	// to the kernel; EndpointRemovalGrace how long a Service port must be without an
	// endpoint before that endpoint counts as gone for its flows.
	Takeover, EndpointRemovalGrace time.Duration
	// Hold is how long after the process was killed its packets are dropped rather than
	// given to the kernel, so that connections continue with the next process.
	Hold time.Duration
	// PinDir holds the pinned links of the steering program, StateDir the
	// notes of what was changed on the host, to be put back.
	PinDir, StateDir string
	// ProcSys is where the host's sysctls can be written, "" for /proc/sys.
	ProcSys string
	// GUEZeroChecksum leaves the UDP checksum of GUE over IPv6 zero (RFC 6936).
	GUEZeroChecksum bool
	// MinPathMTU is the least path MTU, in bytes, in errors to an endpoint in mode nat; in
	// IPv6 never less than 1,280.
	MinPathMTU uint16
	// ReversePathFilter is which sources may begin flows.
	ReversePathFilter worker.ReversePathFilter
	// FlowCache has the kernel forward packets of established flows, where it can.
	FlowCache bool
	// FrameSize is the size of the frames of the packet memory in bytes, 0: chosen.
	FrameSize int
	Log       *slog.Logger
	// Keep has a New that fails leave everything of an earlier process in place.
	Keep bool
	// Phases measures the start; nil: nothing does.
	Phases *phase.Phases
	// Testing is for tests alone.
	Testing ports.Testing
}

// LB is a running load balancer.
type LB struct {
	cfg     Config
	log     *slog.Logger
	started time.Time

	// Workers read the following. It is set by New, and synchronizes by itself.

	affinity *affinity.Store
	cids     *affinity.Store // endpoints by QUIC connection ID
	flows    *conntrack.Table
	tables   *table.Table
	router   *route.Watcher
	memory   *xsk.Umem
	cache    *flowcache.Cache // nil: the packet loop forwards every packet
	node     atomic.Pointer[worker.Node]
	vips     vips

	workers []*worker.Worker
	running sync.WaitGroup
	works   atomic.Bool // the workers run
	serves  atomic.Bool // the program is attached
	counts  serviceCounts

	tapsMu sync.Mutex // guards taps
	taps   []*tap.Tap // of captures and traces

	mu       sync.Mutex   // guards all that follows, and every publication
	ports    *ports.Ports // Absent may be called without mu
	steer    *steer.Program
	host     *hostveth.Veth // nil without it
	reassign *reassign.Flows
	warnings *warning.List

	opened   bool // New has got every socket: no other process takes traffic
	attached bool // Apply was called
	yielded  bool // the packets of the last process were given to the kernel before Apply
	draining bool // Drain was called
	restored int  // flows of the last process

	// unsteered are published frontends for which the steering program had no room: the
	// kernel gets their packets until it has.
	unsteered   map[table.Key]*table.FrontendEntry
	sources     map[netip.Addr]snat.Source // SNAT sources of the steering program
	sourcesGone map[netip.Addr]time.Time   // guarded by mu; those whose address is gone, since when

	claims  map[netip.Addr]int  // frontends per address that may need a route to the host veth
	claimed map[table.Key]bool  // the frontends that claims counts
	routed  map[netip.Addr]bool // addresses that have a route to the host veth

	noCache   error // why cache is nil
	withdrawn withdrawals

	warnedNAT map[string]bool              // Services that get nat in place of dnat
	logged    map[netip.AddrPort]time.Time // Run's: the last line about an endpoint
}

// New makes ready everything but the attachment to the interfaces: no packet is taken
// before the first Apply. Packets that the program of an earlier process still takes wait
// in the rings. On error nothing is left behind, unless cfg.Keep.
func New(cfg Config) (_ *LB, err error) {
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
	l.withdrawn.services = map[uint32]bool{}
	defer func() {
		switch {
		case err == nil:
		case cfg.Keep:
			err = errors.Join(err, l.Release())
		default:
			err = errors.Join(err, l.Close())
		}
	}()

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
	populated, err := l.openMemory(len(cpus))
	if err != nil {
		return nil, err
	}
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
	if err := l.ports.Open(l.steer, l.memory); err != nil { // a socket per queue that a worker owns
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
	l.tables = table.New(table.Config{
		InUse: func(n uint32) bool { return l.flows.EndpointFlows(n) > 0 },
		Tick:  l.flows.Tick,

		OnRemoval: l.endpointRemoved,
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
	if a.Discarded > 0 {
		l.log.Warn("flow table: half-made or damaged connections were left out",
			"connections", a.Discarded)
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

// openMemory maps the packet memory. populated is closed when the pages are made.
func (l *LB) openMemory(workers int) (populated chan struct{}, err error) {
	devices := l.ports.MaxDevices()
	if l.wantsHostVeth() {
		devices++
	}
	frames := workers * (devices*framesPerPort + worker.SpareFrames)
	size, why := l.ports.FrameSize()
	if why != "" {
		l.log.Info("packet memory", "frameSize", size, "because", why)
	}
	if l.memory, err = xsk.NewUmem(frames, size); err != nil {
		return nil, fmt.Errorf("packet memory: %w", err)
	}
	populated = make(chan struct{})
	go func() {
		defer close(populated)
		l.memory.Populate()
	}()
	return populated, nil
}

// Close stops the workers and takes everything off the host that New and
// Apply put there: the steering program, the host veth with its routes and
// rules, and changed settings; also the program of a process before it, which
// Apply would have replaced. Flows stay in the flow table's file.
func (l *LB) Close() error {
	var errs []error

	// First off the interfaces: from here on the kernel gets every packet.
	if l.steer != nil {
		errs = append(errs, l.steer.Close(true))
	}
	if l.opened {
		_, err := l.steer.DetachOthers(l.cfg.PinDir)
		errs = append(errs, err)
	}

	for _, w := range l.workers {
		w.Stop()
	}
	l.running.Wait()
	for _, w := range l.workers {
		errs = append(errs, w.Close())
	}

	if l.ports != nil {
		errs = append(errs, l.ports.Close())
	}
	if l.memory != nil {
		errs = append(errs, l.memory.Close())
	}
	if l.router != nil {
		errs = append(errs, l.router.Close())
	}
	if l.host != nil {
		errs = append(errs, l.host.Close())
	}
	if l.flows != nil {
		errs = append(errs, l.flows.Close())
	}
	if l.cache != nil {
		errs = append(errs, l.cache.Close())
	}
	return errors.Join(errs...)
}
