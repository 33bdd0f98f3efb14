package worker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// SpareFrames is the number of frames that a worker needs beside those of the fill rings:
// for packets in transmission or queued.
const SpareFrames = 4096

// Config has the parts of a worker. The workers of a load balancer share all but ID and
// CPU.
type Config struct {
	ID  int
	CPU int // to be pinned to; -1: none
	// Ports is the number of ports at the start, MaxPorts the number that there can be.
	Ports, MaxPorts int

	Flows     *conntrack.Table
	Frontends *table.Table
	Affinity  *affinity.Store // the endpoints of clients with session affinity
	CIDs      *affinity.Store // the endpoints of QUIC connection IDs
	Router    *route.Watcher
	Memory    *xsk.Umem
	Services  *ServiceCounts // nil: nothing is counted per Service
	Attempts  *attempts.Table
	// Prefixes limits the new connections of source prefixes; nil: nothing does.
	Prefixes *ratelimit.Prefixes

	// Node and VIPs are snapshots that the owner publishes. VIPs has the addresses that
	// serve frontends and that the node does not hold.
	Node *atomic.Pointer[Node]
	VIPs *atomic.Pointer[bart.Lite]

	// Takeover, Silence, EndpointRemovalGrace, GUEZeroChecksum, MinPathMTU and
	// ReversePathFilter are as in lb.Config.
	Takeover, Silence, EndpointRemovalGrace time.Duration
	GUEZeroChecksum                         bool
	MinPathMTU                              uint16
	ReversePathFilter                       ReversePathFilter
}

// Node is the workers' view of the node, immutable: the owner publishes another when
// the node's addresses change, and when Weir drains.
type Node struct {
	snat.Addresses
	// ReturnPath reports whether answers to clients' own addresses come back to the
	// host veth.
	ReturnPath bool
	// Draining leaves new connections to the kernel.
	Draining bool
}

// New makes a worker without queues or frames.
func New(cfg Config) *Worker {
	w := &Worker{spinBudget: initialSpin, maxPollTimeout: maxPollTimeout, wakeFD: -1}
	w.memory, w.area, w.frameMask = cfg.Memory, cfg.Memory.Bytes(), uint64(cfg.Memory.FrameSize()-1)
	w.heads = cfg.Memory.Heads()
	w.cfg, w.id, w.hostVeth = cfg, cfg.ID, -1
	w.ports = make([]port, cfg.Ports, max(cfg.Ports, cfg.MaxPorts))
	w.published, w.samples = new(publishedCounts), new([dropReasons]samples)

	if s := cfg.Services; s != nil {
		w.services, w.handshakes = s.workers[cfg.ID], &s.handshakes
	} else {
		w.handshakes = new(handshakeTimes)
	}

	w.resets = ratelimit.New(resetsPerSecond, resetsPerSecond, resetsPerSource)
	w.errors = ratelimit.New(errorsPerSecond, errorsPerSecond/10, errorsPerSource)
	w.echoes = ratelimit.New(echoesPerSecond, echoesPerSecond/10, echoesPerSource)
	w.pathMTUs = ratelimit.New(errorsPerSecond, errorsPerSecond/10, errorsPerSource)

	w.conns, w.conntrack, w.frontends = cfg.Flows, cfg.Flows.Worker(cfg.ID), cfg.Frontends
	w.attempts = cfg.Attempts
	w.affinity, w.cidMap = cfg.Affinity, cfg.CIDs
	w.router, w.adjacencies = cfg.Router, cfg.Router.Adjacencies()
	w.neighQueue = make([]queuedPacket, 0, neighQueueLen)
	w.removalGraceTicks = uint32(cfg.EndpointRemovalGrace.Seconds() * conntrack.TicksPerSecond)
	w.ipID = uint16(cfg.ID)
	w.sendMax = sendShare(cfg.Ports)
	w.heartbeat.Store(cfg.Flows.Tick())
	w.free.addr = make([]uint64, 0, cfg.Memory.Frames())
	w.rng.Seed(uint32(cfg.ID)*0x9e3779b9 + uint32(os.Getpid()))
	w.sampler = trafficSampler{left: sampleEvery, gap: sampleEvery}
	w.fragmentIDs = fragtrack.NewIDs(w.rng.Uint32)
	w.fragQueue.list = make([]queuedFragment, 0, fragQueueFrames)
	w.silences = newSilences(cfg.Silence)
	if cfg.Takeover > 0 {
		w.takeoverUntil = cfg.Flows.Tick() + uint32(cfg.Takeover.Seconds()*conntrack.TicksPerSecond)
	}
	return w
}

// ID returns the worker's number.
func (w *Worker) ID() int { return w.id }

// CPU returns the CPU that the worker is pinned to, -1 for none.
func (w *Worker) CPU() int { return w.cfg.CPU }

// Start runs the worker on a separate thread and CPU, and calls done when it has ended.
// queues are the descriptors to poll.
func (w *Worker) Start(queues []int, log *slog.Logger, done func()) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("worker %d: eventfd: %w", w.id, err)
	}
	w.wakeFD = fd
	w.pollFD = w.polled(queues)
	w.heartbeat.Store(w.cfg.Flows.Tick()) // the first view of Services may come long after New
	go func() {
		defer done()
		// The thread is pinned: it must not serve other goroutines later, so
		// it is never unlocked and ends with the worker.
		runtime.LockOSThread()
		w.thread.Store(int32(unix.Gettid()))
		if w.cfg.CPU >= 0 {
			var set unix.CPUSet
			set.Set(w.cfg.CPU)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				log.Warn("worker is not pinned", "worker", w.id, "cpu", w.cfg.CPU, "err", err)
			}
		}
		w.run()
	}()
	return nil
}

// polled returns the descriptors that wake the worker: wakeFD first, then those of the queues.
func (w *Worker) polled(queues []int) []unix.PollFd {
	list := []unix.PollFd{{Fd: int32(w.wakeFD), Events: unix.POLLIN}}
	for _, fd := range queues {
		list = append(list, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return list
}

// Stop ends the worker after the present round.
func (w *Worker) Stop() {
	w.stop.Store(true)
	if w.wakeFD >= 0 {
		w.asleep.Store(true)
		w.wakeUp()
	}
}

// Close frees the resources of Start. Preconditions: the worker has ended.
func (w *Worker) Close() error {
	if w.wakeFD < 0 {
		return nil
	}
	fd := w.wakeFD
	w.wakeFD = -1
	return unix.Close(fd)
}

// stuckTicks without a round make a worker count as stuck: it sleeps for a
// tenth of a second at most.
const stuckTicks = 5 * secondTicks

// Stuck reports whether the worker has not finished a round for some seconds, at tick now.
func (w *Worker) Stuck(now uint32) bool { return int32(now-w.heartbeat.Load()) > stuckTicks }

// Thread is the ID of the worker's thread, 0 before Start.
func (w *Worker) Thread() int { return int(w.thread.Load()) }

// ExhaustedEndpoints calls f for the endpoints that have run out of SNAT ports since the
// last call, with the source.
func (w *Worker) ExhaustedEndpoints(f func(endpoint netip.AddrPort, source netip.Addr)) {
	w.exhausted.each(f)
}

// UnreachableEndpoints calls f for the endpoints that l2dsr could not reach since the
// last call, with the next hop there.
func (w *Worker) UnreachableEndpoints(f func(endpoint netip.AddrPort, nextHop netip.Addr)) {
	w.unreachable.each(f)
}
