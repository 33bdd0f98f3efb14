// Package lb is the load balancer as its owner sees it. New opens everything, Apply
// publishes Services and begins to take traffic, Run serves until its context ends, Close
// takes everything off the host. It decides nothing about endpoints: it carries out the
// tables that it is given.
//
//	workers.go       a worker per CPU, and its ports (placement.go chooses the CPUs)
//	cache.go         the kernel forwards packets of established flows
//	observe.go       captures and traces
//	services.go      counters per Service
//	deny.go          clients that may begin no flow
//	vip.go           addresses that Weir alone has
//	sources.go       SNAT sources; sharedports.go: their ports on addresses of the node
//	clientroutes.go  routes of the node's own clients; hostpaths.go: paths of endpoints behind the kernel
//	lb.go            all of that, and Close
//	open.go          New
//	apply.go         tables and steering, in order; flows of the last process
//	run.go           what runs beside the workers; the node's addresses and interfaces, followed
//	leave.go         drain and restart
//	status.go        the state of everything; trace.go: what would become of a packet
//
// The packages below:
//
//	ports      attached interfaces          worker     the packet loop of a core
//	steer      the XDP program              table      frontends and pools
//	xsk        AF_XDP sockets               route      the kernel's routes and neighbors
//	hostveth   the veth into the kernel     snat       source addresses
//	frontends  those of the XDP program
//
// The control object and the workers meet at atomic pointers and flat memory only: no
// method of LB waits for a worker, and no worker for a method.
package lb

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/frontends"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
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
	SNATAddresses []netip.Addr
	// SNATPortLo to SNATPortHi are the ports on addresses of the host, inclusive. With SNATPortsAuto
	// flows get others too, where a program in the kernel can tell them from the host's own.
	SNATPortLo, SNATPortHi uint16
	SNATPortsAuto          bool
	// ProtectedPorts are the host's own on its addresses.
	ProtectedPorts []uint16
	// ConntrackPath is the file of the flow table, "" for none.
	ConntrackPath string
	MaxFlows      int // 0: at most 5 % of memory
	// Takeover is how long after start TCP packets of unknown flows are given
	// to the kernel; EndpointRemovalGrace how long a Service port must be without an
	// endpoint before that endpoint counts as gone for its flows.
	Takeover, EndpointRemovalGrace time.Duration
	// Silence is how long packets in the middle of a TCP connection or SCTP association without
	// an entry get no answer, to addresses that several nodes may serve.
	Silence time.Duration
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
	// Attempts counts how attempts to connect to endpoints fare; nil: nothing does.
	Attempts *attempts.Table
	// PrefixLimit limits the new connections of each source prefix.
	PrefixLimit ratelimit.PrefixLimit
	// Denied are the lists of clients that may begin no flow.
	Denied []DenyList
	// FlowRecords is how many connections per second the flow table records, 0 for none: see
	// conntrack.Config.
	FlowRecords int
	// FlowCache has the kernel forward packets of established flows, where it can.
	FlowCache bool
	// FrameSize is the size of the frames of the packet memory in bytes, 0: chosen.
	FrameSize int
	Log       *slog.Logger
	// Sockets are those that the last process has left by Leave, nil for none. New takes them over
	// or closes them.
	Sockets *xsk.Transfer
	// Stale removes what a killed process has left that is not of this package, nil: nothing. New calls it
	// once no other process runs in the network namespace, and before it takes over anything: the host
	// veth is kept only where nobody else's routes are in its table.
	Stale func()
	// Phases measures the start; nil: nothing does.
	Phases *phase.Phases
	// Testing is for tests alone.
	Testing ports.Testing
}

// LB is a running load balancer.
type LB struct {
	cfg      Config
	log      *slog.Logger
	started  time.Time
	warnings *warning.List

	// Workers read the following. It is set by New, and synchronizes by itself.

	affinity *affinity.Store
	cids     *affinity.Store // endpoints by QUIC connection ID
	prefixes *ratelimit.Prefixes
	flows    *conntrack.Table
	tables   *table.Table
	router   *route.Watcher
	memory   *xsk.Umem
	node     atomic.Pointer[worker.Node]

	denials Denials
	cache   cache
	workers workers
	taps    taps
	counts  serviceCounts
	serves  atomic.Bool // the program is attached

	mu           sync.Mutex   // guards all that follows, and every publication
	ports        *ports.Ports // Absent may be called without mu
	steer        *steer.Program
	host         *hostveth.Veth // nil without it
	reassign     *reassign.Flows
	frontends    *frontends.Set // Run may be called without mu
	vips         *vips
	clientRoutes *clientRoutes
	hostPaths    *hostPaths
	sources      *sources

	claim    *statefile.Claim // nil while this process is not the only Weir
	opened   bool             // New has got every socket: no other process takes traffic
	attached bool             // Apply was called
	yielded  bool             // the packets of the last process were given to the kernel before Apply
	draining bool             // Drain was called
	restored int              // flows of the last process
}

// Close stops the workers and takes everything off the host that New and
// Apply put there: the steering program, the host veth with its routes and
// rules, and changed settings; also the program of a process before it, which
// Apply would have replaced. Flows stay in the flow table's file. With ErrStalled a worker has
// kept sockets, memory and flow table, which end with the process.
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

	if !l.workers.stop() {
		return errors.Join(append(errs, ErrStalled, l.restoreHost(), l.cache.save(l.flows, l.opened), l.giveUpClaim())...)
	}
	for _, w := range l.workers.list {
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
		errs = append(errs, l.cache.save(l.flows, l.opened), l.flows.Close())
	}
	if l.cache.kernel != nil {
		errs = append(errs, l.cache.kernel.Close())
	}
	return errors.Join(append(errs, l.giveUpClaim())...)
}

// restoreHost is the rest of Close for the host, beside a worker that does not end.
func (l *LB) restoreHost() error {
	var errs []error
	if l.ports != nil {
		errs = append(errs, l.ports.RestoreHost())
	}
	if l.router != nil {
		errs = append(errs, l.router.Close())
	}
	if l.host != nil {
		errs = append(errs, l.host.Close())
	}
	return errors.Join(errs...)
}
