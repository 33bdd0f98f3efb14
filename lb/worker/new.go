package worker

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/denylist"
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

// Denied are deny lists. The owner publishes other sets; the first is there from the beginning.
type Denied struct {
	Set atomic.Pointer[denylist.Set]
	// Node are the lists that are about all frontends.
	Node denylist.Mask
}

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
	// Denied are the lists of clients that may begin no flow; nil: none.
	Denied *Denied

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
	w := new(Worker)
	w.memory, w.area, w.frameMask = cfg.Memory, cfg.Memory.Bytes(), uint64(cfg.Memory.FrameSize()-1)
	w.heads = cfg.Memory.Heads()
	w.cfg, w.id, w.hostVeth = cfg, cfg.ID, -1
	w.ports = make([]port, cfg.Ports, max(cfg.Ports, cfg.MaxPorts))
	w.published, w.samples = new(publishedCounts), new([dropReasons]samples)

	var handshakes *handshakeTimes
	if s := cfg.Services; s != nil {
		w.services, handshakes = s.workers[cfg.ID], &s.handshakes
	} else {
		handshakes = new(handshakeTimes)
	}

	w.resets = ratelimit.New(resetsPerSecond, resetsPerSecond, resetsPerSource)
	w.errors = ratelimit.New(errorsPerSecond, errorsPerSecond/10, errorsPerSource)
	w.echoes = ratelimit.New(echoesPerSecond, echoesPerSecond/10, echoesPerSource)
	w.pathMTUs = ratelimit.New(errorsPerSecond, errorsPerSecond/10, errorsPerSource)

	w.conns, w.conntrack, w.frontends = cfg.Flows, cfg.Flows.Worker(cfg.ID), cfg.Frontends
	w.affinity, w.cidMap = cfg.Affinity, cfg.CIDs
	w.router, w.adjacencies = cfg.Router, cfg.Router.Adjacencies()
	w.neighQueue = make([]queuedPacket, 0, neighQueueLen)
	w.removed = removals{
		frontends: cfg.Frontends, graceTicks: uint32(cfg.EndpointRemovalGrace.Seconds() * conntrack.TicksPerSecond),
	}
	w.watch = attemptWatch{
		conns: w.conns, conntrack: w.conntrack, services: w.services, attempts: cfg.Attempts, handshakes: handshakes,
	}
	w.endings = endings{&w.fastPath}
	w.settling = settling{conns: w.conns, conntrack: w.conntrack}
	w.ipID = uint16(cfg.ID)
	w.sendMax = sendShare(cfg.Ports)
	w.heartbeat.Store(cfg.Flows.Tick())
	w.free.addr = make([]uint64, 0, cfg.Memory.Frames())
	w.rng.Seed(uint32(cfg.ID)*0x9e3779b9 + uint32(os.Getpid()))
	w.sampler = trafficSampler{conns: w.conns, services: w.services, rng: &w.rng, left: sampleEvery, gap: sampleEvery}
	w.fragmentIDs = fragtrack.NewIDs(w.rng.Uint32)
	w.fragQueue.list = make([]queuedFragment, 0, fragQueueFrames)
	w.silences = newSilences(cfg.Silence)
	if cfg.Takeover > 0 {
		w.takeoverUntil = cfg.Flows.Tick() + uint32(cfg.Takeover.Seconds()*conntrack.TicksPerSecond)
	}
	w.sleeper.init(&w.portIO, w.conntrack)
	return w
}
