package worker

import (
	"sync/atomic"
	"time"

	"github.com/valyala/fastrand"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// A worker owns queue i of every interface, on a separate thread and core. A round of the
// loop is:
//
//  1. the clock, the table snapshot, the routes and the state of the node, once
//  2. for each port: receive up to 64 packets and run the stages over them
//     (lookup.go), which gathers packets at the egress ports
//  3. frames handed over by other workers, packets held for a neighbor
//  4. transmit and kick, take back sent frames, refill
//  5. age a few flows; publish the counters; quiesce: from here on the worker
//     holds no reference into the flow table
//
// After some empty rounds it ages due flows and sleeps in poll until a packet comes. It
// takes no lock and allocates nothing; all slices have their capacity from the start.
type Worker struct {
	cfg       Config
	id        int
	ports     []port
	conns     *conntrack.Table
	conntrack *conntrack.Worker
	frontends *table.Table
	// affinity remembers clients' endpoints, for all workers.
	affinity *affinity.Store
	// cidMap remembers which endpoint a QUIC connection ID names.
	cidMap *affinity.Store
	router *route.Watcher

	memory    *xsk.Umem
	area      []byte
	frameMask uint64 // low bits of an address: the offset in the frame

	hostVeth     int32 // -1: none
	hostVethMACs [2][6]byte

	// As of the beginning of the round.
	snapshot          *table.Snapshot
	routes            *route.Table
	epoch             uint32
	adjacencies       []route.Adjacency
	node              *Node
	tick              uint32
	anyRemoved        bool // an endpoint is gone that a flow may name
	removalActs       bool // and a Service does not keep TCP flows to such an endpoint
	takeoverUntil     uint32
	removalGraceTicks uint32

	batch, requeued batch
	arriving        frames // of a packet that another worker hands over
	pending         pendingConns
	routeCache      [routeCacheSize]cachedRoute
	free            freeList
	sendMax         int // frames in transmission that a port may have
	done            [256]uint64
	neighQueue      []queuedPacket
	neighQueueOrder uint32 // packets that have been held
	datagrams       fragtrack.Tracker
	fragmentIDs     fragtrack.IDs
	fragQueue       fragQueue
	links           []*link // by worker; nil for itself
	resets          ratelimit.Limiter
	challenged      challenges
	errors          ratelimit.Limiter
	pathMTUs        ratelimit.Limiter
	echoes          ratelimit.Limiter
	exhausted       exhaustion
	failedTries     failedTries // tries in place of exhausted endpoints
	unreachable     exhaustion  // endpoints that l2dsr cannot reach, and the next hop there
	ipID            uint16      // of the last outer header that may be fragmented
	rng             fastrand.RNG

	idle           bool      // the last round had nothing to do
	pollTimedOut   bool      // and the last nap brought nothing either
	spinBudget     int       // how often to look before sleeping
	busyRounds     uint32    // rounds with something to do
	maxPollTimeout int       // in ms
	busySince      time.Time // beginning of the stretch of busy rounds

	counts    counter.Values
	drops     dropCounts
	published *publishedCounts
	samples   *[dropReasons]samples
	stop      atomic.Bool
	change    atomic.Pointer[portUpdate] // of the ports, to be carried out
	heartbeat atomic.Uint32              // tick of the last round: the worker's sign of life
	// asleep is true while the worker may sleep in poll: another worker that hands it a
	// frame then writes to wakeFD.
	asleep atomic.Bool
	wakeFD int
	pollFD []unix.PollFd
}

// The tag of a frame on a hand-off ring is the number of the egress port, or a value below.
const (
	// returned: the frame is free again, and the taker's.
	returned = -1
	// arrived minus a port's number: the packet came by that port at another worker, and
	// this worker processes it.
	arrived = returned - 1
)

const secondTicks = conntrack.TicksPerSecond

// publishEvery is how many busy rounds there may be between two publications of
// the counters. When there is nothing more to do they are published at once.
const publishEvery = 32

func (w *Worker) run() {
	w.idle = true // nothing has been busy yet
	w.conntrack.Online()
	defer w.conntrack.Offline()
	w.Round() // fills the rings: packets that came before would be lost, and wake no worker
	for !w.stop.Load() {
		if w.idle {
			w.await()
			w.busySince = time.Now() // once per stretch of busy rounds
		}
		if w.round() > 0 {
			w.idle, w.pollTimedOut = false, false
			if w.busyRounds++; w.busyRounds%publishEvery == 0 {
				w.published.publish(&w.counts, &w.drops)
			}
			continue
		}
		if !w.idle {
			w.idle = true
			w.countBusy(time.Now())
		}
		w.published.publish(&w.counts, &w.drops)
	}
}

// countBusy adds the time since the stretch began or was last counted.
func (w *Worker) countBusy(now time.Time) {
	w.counts[counter.Busy] += uint64(now.Sub(w.busySince))
	w.busySince = now
}

// Round is a round of the loop whose counters can be read afterwards, for owners that drive
// the worker themselves instead of starting it. It returns how much there was to do.
func (w *Worker) Round() int {
	work := w.round()
	w.published.publish(&w.counts, &w.drops)
	return work
}

// endRound is finish with the counters published.
func (w *Worker) endRound() {
	w.finish()
	w.published.publish(&w.counts, &w.drops)
}

// round is a round of the loop; it returns the amount of work done.
func (w *Worker) round() int {
	w.beginRound()
	work := w.receive()
	work += w.receiveHandoffs()
	w.releaseQueued()
	w.finish()
	return work
}

// beginRound reads everything that others publish, once for all packets of
// the round.
func (w *Worker) beginRound() {
	if r := w.change.Load(); r != nil {
		w.updatePorts(r)
	}
	if tick := w.conns.Tick(); tick != w.tick {
		w.tick = tick
		w.heartbeat.Store(tick)
		now := time.Now()
		if !w.idle {
			w.countBusy(now)
		}
		w.shrinkFill()
		w.resets.Refill(now)
		w.errors.Refill(now)
		w.echoes.Refill(now)
		w.pathMTUs.Refill(now)
	}
	w.snapshot = w.frontends.Load()
	w.routes = w.router.Load()
	w.epoch = w.routes.Epoch()
	w.node = w.cfg.Node.Load()
	w.anyRemoved = w.frontends.AnyGone()
	w.removalActs = w.anyRemoved && w.frontends.AnyRemoval()
}

// receive takes a batch from each port through the stages.
func (w *Worker) receive() int {
	work := 0
	for i := range w.ports {
		p := &w.ports[i]
		if p.Queue == nil {
			continue
		}
		n := w.take(&w.batch, int32(i), p.Queue)
		if n == 0 {
			continue
		}
		p.filled -= n
		p.fill.received(n, p.Ring)
		work += n
		w.counts[counter.Batches]++
		w.process(&w.batch)
	}
	return work
}

// finish sends the gathered packets and tidies up.
func (w *Worker) finish() {
	w.flush()
	w.complete()
	w.giveFramesBack()
	w.Refill()
	for _, p := range w.links {
		if p != nil && p.wake {
			p.wake = false
			p.to.wakeUp()
		}
	}
	w.counts[counter.FreeFrames] = uint64(len(w.free.addr))
	w.conntrack.Age(w.tick)
	w.conntrack.Quiesce()
}
