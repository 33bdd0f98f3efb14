// Package lb is the packet path: workers that receive packets of frontends
// and their answers over AF_XDP, look up or make their flow entries, rewrite
// them and send them on. It decides nothing about which endpoints may serve:
// it is given tables (lb/table) and carries them out.
//
//	steering program (lb/steer, in the kernel)
//	   |  frontends and SNAT ports
//	AF_XDP rings (lb/xsk)
//	   |
//	worker ---- flow table (conntrack)     one, shared by all workers
//	   |  \---- tables (lb/table)          atomic pointer, once per round
//	   |   \--- routes, neighbors (lb/route)
//	   v
//	attached interface, or the host veth (lb/hostveth) into the kernel
//
// Control and workers meet at atomic pointers and flat memory only: no method
// of LB ever waits for a worker, and no worker for a method.
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
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
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
	// PinDir holds the pinned links of the steering program, StateDir the
	// notes of what was changed on the host, to be put back.
	PinDir, StateDir string
	// ProcSys is where the host's sysctls can be written, "" for /proc/sys.
	ProcSys string
	// GUEZeroChecksum leaves the UDP checksum of GUE over IPv6 zero (RFC 6936).
	GUEZeroChecksum bool
	// MinPathMTU is the least path MTU, in bytes, that an endpoint is told in mode nat;
	// in IPv6 never less than 1,280.
	MinPathMTU uint16
	// ReversePathFilter is which sources may begin flows.
	ReversePathFilter worker.ReversePathFilter
	// FrameSize is the size of the frames of the packet memory in bytes, 0: chosen.
	FrameSize int
	// SoftwareChecksums completes all partial checksums without TX metadata, towards
	// the host veth too: for tests of what kernels without it need.
	SoftwareChecksums bool
	// DeclaredLinks is a file with device.Overrides: for tests on kernels that
	// have no bonds or VLAN interfaces.
	DeclaredLinks string
	// OwnHostUmem gives the host veth a umem of its own, as it has beside
	// NICs with zero copy: for tests where no NIC has that.
	OwnHostUmem bool
	Log         *slog.Logger
}

// LB is a running load balancer.
type LB struct {
	cfg      Config
	log      *slog.Logger
	affinity *affinity.Store
	servers  *affinity.Store // by what QUIC connection IDs call them
	flows    *conntrack.Table
	tables   *table.Table
	router   *route.Watcher
	host     *hostveth.Veth
	ports    *ports.Ports // guarded by mu, but for Absent
	steer    *steer.Program
	memory   *xsk.Umem
	node     atomic.Pointer[worker.Node]
	vips     vips

	workers []*worker.Worker
	running sync.WaitGroup

	mu       sync.Mutex                 // guards ports, the following fields and all publication
	attached bool                       // Apply was called
	draining bool                       // see Drain
	owned    map[netip.Addr]snat.Source // in the steering program
	claims   map[netip.Addr]int         // frontends per address that may need a route to the host veth
	claimed  map[table.Key]bool         // the frontends that are counted there
	routed   map[netip.Addr]bool        // addresses that have one
	reassign *reassign.Flows
	// unsteered are published frontends that the steering program could not
	// take: the kernel gets their packets until it can.
	unsteered map[table.Key]*table.FrontendEntry
	warnings  *warning.List
	adopted   int // flows of the last process

	toldNAT map[string]bool // Services of which it was said that they get nat in place of dnat

	exhausted map[netip.AddrPort]time.Time // Run's: when it was last said
	started   time.Time
}

// New makes ready everything but the attachment to the interfaces: no packet
// is taken before the first Apply. On error nothing is left behind.
func New(cfg Config) (_ *LB, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	l := &LB{cfg: cfg, log: cfg.Log, warnings: warning.NewList(cfg.Log), owned: map[netip.Addr]snat.Source{}, claims: map[netip.Addr]int{}, claimed: map[table.Key]bool{}, unsteered: map[table.Key]*table.FrontendEntry{}, routed: map[netip.Addr]bool{}, toldNAT: map[string]bool{},
		exhausted: map[netip.AddrPort]time.Time{}, started: time.Now()}
	l.vips.init()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.findPorts(); err != nil {
		return nil, err
	}
	cpus, err := placeWorkers(&l.cfg, l.ports.Queues())
	if err != nil {
		return nil, err
	}
	workers := len(cpus)
	l.ports.SetWorkers(workers)
	if err := l.openHostVeth(workers); err != nil {
		return nil, err
	}
	if l.flows, err = conntrack.Open(conntrack.Config{Path: cfg.ConntrackPath, MaxFlows: cfg.MaxFlows, Workers: workers}); err != nil {
		return nil, fmt.Errorf("flow table: %w", err)
	}
	l.affinity, l.servers = worker.NewAffinity(l.flows), worker.NewCIDs(l.flows)
	l.sayAdoption()
	l.tables = table.New(table.Config{
		InUse: func(n uint32) bool { return l.flows.EndpointFlows(n) > 0 },
		Tick:  l.flows.Tick,
	})
	l.reassign = reassign.New(l.flows, l.tables)
	if err := l.openRouter(workers); err != nil {
		return nil, err
	}
	if l.steer, err = steer.Load(steer.Config{}); err != nil {
		return nil, err
	}
	if err := l.openSockets(workers); err != nil {
		return nil, err
	}
	l.makeWorkers(cpus)
	if err := l.replan(); err != nil {
		return nil, err
	}
	return l, nil
}
