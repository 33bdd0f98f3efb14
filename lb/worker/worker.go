package worker

import (
	"sync/atomic"
	"time"

	"github.com/valyala/fastrand"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/handoff"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// One worker owns queue i of every interface that has one, on a thread and a
// core of its own. A round of its loop is:
//
//  1. the clock, the table snapshot, the routes and the state of the node, once
//  2. for each port: receive up to 64 packets and run the stages over them
//     (batch.go), which gathers what leaves at the ports
//  3. frames handed over by other workers, packets held for a neighbor
//  4. transmit and kick, take back sent frames, refill
//  5. age a few flows; publish the counters; quiesce: from here on the worker
//     holds no reference into the flow table
//
// After some empty rounds it ages what is due and sleeps in poll until a packet comes. It takes no
// lock and allocates nothing; all its slices have their capacity from start.
type Worker struct {
	cfg       Config
	id        int
	ports     []port
	conns     *conntrack.Table
	conntrack *conntrack.Worker
	frontends *table.Table
	// affinity remembers clients' endpoints, for all workers.
	affinity *affinity.Store
	// servers remembers which endpoint a QUIC connection ID names.
	servers *affinity.Store
	router  *route.Watcher

	memory    *xsk.Umem
	area      []byte
	frameMask uint64 // low bits of an address: the offset in its frame

	hostPort int32 // -1: none
	hostMACs [2][6]byte

	// As of the beginning of the round.
	snapshot      *table.Snapshot
	routes        *route.Table
	epoch         uint32
	adjacencies   []route.Adjacency
	node          *Node
	tick          uint32
	anyGone       bool // an endpoint is gone that a flow may name
	closes        bool // and a Service does not keep TCP flows to such an endpoint
	takeoverUntil uint32
	goneTicks     uint32

	batch, again batch
	arriving     frames // of a packet that another worker hands over
	openings     openings
	paths        [knownPaths]knownPath
	free         freeList
	sendMax      int // frames that one port may have on the way out
	done         [256]uint64
	held         []held
	holds        uint32 // packets that have been held
	datagrams    fragtrack.Tracker
	fragmentIDs  fragtrack.IDs
	waiting      fragQueue
	links        []*link // by worker; nil for itself
	resets       ratelimit.Limiter
	challenged   challenges
	errors       ratelimit.Limiter
	pathMTUs     ratelimit.Limiter
	echoes       ratelimit.Limiter
	exhausted    exhaustion
	vain         vain       // tries in place of exhausted endpoints
	offLink      exhaustion // endpoints that l2dsr cannot reach, and the next hop there
	ipID         uint16     // of the last outer header that may be fragmented
	rng          fastrand.RNG

	idle       bool      // the last round had nothing to do
	napped     bool      // and the last nap brought nothing either
	spin       int       // how often to look before sleeping
	turns      uint32    // rounds with something to do
	longestNap int       // in ms
	busySince  time.Time // beginning of the stretch of busy rounds

	t         tally
	shared    *sharedTally
	samples   *[dropReasons]samples
	stop      atomic.Bool
	change    atomic.Pointer[portUpdate] // of the ports, to be carried out
	heartbeat atomic.Uint32              // tick of the last round: the worker's sign of life
	// asleep is true while the worker may sleep in poll: who hands it a
	// frame then writes to wakeFD.
	asleep atomic.Bool
	wakeFD int
	pollFD []unix.PollFd
}

// link is one worker's dealings with another.
type link struct {
	out  *handoff.Ring // to it
	in   *handoff.Ring // from it
	to   *Worker
	owed int  // frames taken from it that are to be given back
	wake bool // something was put on out in this round
}

// The tag of a frame on a hand-off ring is the number of the port to send it by,
// or one of these.
const (
	// returned: the frame is free again, and the taker's.
	returned = -1
	// arrived minus a port's number: the packet came by that port at another
	// worker, and this one processes it.
	arrived = returned - 1
)

const secondTicks = conntrack.TicksPerSecond

// How often an idle worker looks for something to do before it sleeps. Spinning
// is worth it while packets come during it: each time one does it may last twice
// as long, and half as long after a sleep. It never costs much more than a
// sleep and a wake-up do (Karlin et al. 1990): a look takes some 15 ns, the most
// about 6 us.
const (
	leastSpin = 32
	firstSpin = 128
	mostSpin  = 512

	longestNap = 100 // ms
)

// publishEvery is how many busy rounds there may be between two publications of
// the counters. When there is nothing more to do they are published at once.
const publishEvery = 32

func (w *Worker) run() {
	w.idle = true // nothing has been busy yet
	w.conntrack.Online()
	defer w.conntrack.Offline()
	w.Round() // fills the rings: what came before would be lost, and wake nobody
	for !w.stop.Load() {
		if w.idle {
			w.await()
			w.busySince = time.Now() // once per stretch of busy rounds
		}
		if w.turn() > 0 {
			w.idle, w.napped = false, false
			if w.turns++; w.turns%publishEvery == 0 {
				w.shared.publish(&w.t)
			}
			continue
		}
		if !w.idle {
			w.idle = true
			w.countBusy(time.Now())
		}
		w.shared.publish(&w.t)
	}
}

// await returns when there is something to do, or after a nap: for the chores.
// After one that brought nothing it goes straight back to sleep.
func (w *Worker) await() {
	for n := 0; n < w.spin && !w.napped; n++ {
		if w.pending() || w.stop.Load() {
			w.spin = min(2*w.spin, mostSpin)
			return
		}
	}
	if w.age() {
		return
	}
	w.napped = !w.sleep()
	if !w.napped {
		w.spin = max(w.spin/2, leastSpin)
	}
}

// pending says whether a packet has come, or another worker has handed
// something over.
func (w *Worker) pending() bool {
	for i := range w.ports {
		if q := w.ports[i].Queue; q != nil && q.Pending() {
			return true
		}
	}
	for _, p := range w.links {
		if p != nil && !p.in.Empty() {
			return true
		}
	}
	return false
}

// countBusy adds the time since the stretch began or was last counted.
func (w *Worker) countBusy(now time.Time) {
	w.t.busy += uint64(now.Sub(w.busySince))
	w.busySince = now
}

// Round is one turn of the loop whose counters can be read afterwards, for owners that
// drive the worker themselves instead of starting it. It returns how much there was to do.
func (w *Worker) Round() int {
	work := w.turn()
	w.shared.publish(&w.t)
	return work
}

// endRound is finish with the counters published.
func (w *Worker) endRound() {
	w.finish()
	w.shared.publish(&w.t)
}

// turn is one turn of the loop; it returns how much there was to do.
func (w *Worker) turn() int {
	w.beginRound()
	work := w.receive()
	work += w.takeHandedOver()
	w.release()
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
	w.anyGone = w.frontends.AnyGone()
	w.closes = w.anyGone && w.frontends.AnyRemoval()
}

// receive takes one batch from each port through the stages.
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
		w.t.batches++
		w.process(&w.batch)
	}
	return work
}

// finish sends what was gathered and tidies up.
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
	w.t.freeFrames = uint64(len(w.free.addr))
	w.conntrack.Age(w.tick)
	w.conntrack.Quiesce()
}

// takeHandedOver puts frames that other workers handed over on this worker's
// queues, takes fragments that are this worker's through the stages, and takes back the frames that they owe.
func (w *Worker) takeHandedOver() int {
	work := 0
	b := &w.again
	b.n = 0
	for _, p := range w.links {
		if p == nil {
			continue
		}
		whole := true // no packet is begun
		for n := 0; n < 4*batchSize || !whole; n++ {
			s, ok := p.in.Take()
			if !ok {
				break
			}
			work++
			if s.Tag == returned {
				w.free.push(s.Desc.Addr)
				continue
			}
			if s.Tag <= arrived {
				whole = w.admit(b, &s)
				p.owed++
				continue
			}
			out := &w.ports[s.Tag]
			if out.Queue == nil {
				whole = s.Desc.Options&xsk.Continued == 0
				w.portGone(&s.Desc)
				p.owed++
				continue
			}
			if whole && out.txn+maxBuffers > txQueueLen {
				w.transmit(out)
			}
			whole = s.Desc.Options&xsk.Continued == 0
			out.tx[out.txn] = s.Desc
			out.txn++
			p.owed++
		}
		w.processAdmitted(b)
	}
	return work
}

// giveFramesBack returns as many frames as were taken from other workers:
// any frame will do, they are all of one area.
func (w *Worker) giveFramesBack() {
	for _, p := range w.links {
		if p == nil {
			continue
		}
		for p.owed > 0 && p.out.Free() > batchSize {
			a, ok := w.free.pop()
			if !ok {
				return
			}
			p.out.Put(returned, xsk.Desc{Addr: a})
			p.owed--
			p.wake = true
		}
	}
}

// sleep waits in poll for a packet, a handed-over frame or the next chore, and
// says whether something came.
func (w *Worker) sleep() bool {
	if len(w.pollFD) == 0 {
		return true
	}
	w.asleep.Store(true)
	for _, p := range w.links { // a frame put before asleep was seen
		if p != nil && !p.in.Empty() {
			w.asleep.Store(false)
			return true
		}
	}
	nap := w.napMillis()
	w.t.sleeps++
	w.conntrack.Offline()
	n, _ := unix.Poll(w.pollFD, nap) // EINTR and timeouts are rounds like any other
	w.conntrack.Online()
	w.asleep.Store(false)
	if w.pollFD[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(w.wakeFD, b[:])
	}
	return n > 0
}

// napMillis is how long the worker may sleep when nothing comes: not for long
// while a packet waits for its next hop, or for a device queue that was full
// when the kernel was last told to send.
func (w *Worker) napMillis() int {
	nap := len(w.held) > 0
	for i := range w.ports {
		nap = nap || w.ports[i].sending > 0
	}
	if nap {
		return 2
	}
	return w.longestNap
}

func (w *Worker) wakeUp() {
	if w.asleep.Load() {
		one := [8]byte{1}
		_, _ = unix.Write(w.wakeFD, one[:])
	}
}
