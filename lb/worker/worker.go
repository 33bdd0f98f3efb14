package worker

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
)

// A worker owns queue i of every interface, on a separate thread and core. A round of the
// loop is:
//
//  1. the clock, the table snapshot, the routes and the state of the node, once
//  2. for each port: receive up to 64 packets and run the stages over them
//     (lookup.go), which gathers packets at the egress ports
//  3. frames handed off by other workers, packets queued for a neighbor
//  4. transmit and kick, take back sent frames, refill
//  5. age a few flows; publish the counters; quiesce: from here on the worker
//     holds no reference into the flow table
//
// After some empty rounds it ages due flows and sleeps in poll until a packet comes. It
// takes no lock and allocates nothing; all slices have their capacity from the start.
type Worker struct {
	fragmentHandler // and the layers below it

	batch, requeued batch
	arriving        frames // of a packet that another worker hands over

	sampler trafficSampler
	sleeper sleeper

	idle       bool      // the last round had nothing to do
	busyRounds uint32    // rounds with something to do
	busySince  time.Time // beginning of the stretch of busy rounds

	change    atomic.Pointer[portUpdate]  // of the ports, to be carried out
	question  atomic.Pointer[question]    // to be answered
	observing atomic.Pointer[observation] // nil without a tap
	heartbeat atomic.Uint32               // tick of the last round: the worker's sign of life
	thread    atomic.Int32                // 0 before Start
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
	w.Round() // packets that came before wake no worker
	for !w.sleeper.stop.Load() {
		if w.idle {
			w.sleeper.await(len(w.neighQueue) > 0)
			w.busySince = time.Now() // once per stretch of busy rounds
		}
		if w.round() > 0 {
			w.idle, w.sleeper.pollTimedOut = false, false
			if w.busyRounds++; w.busyRounds%publishEvery == 0 {
				w.published.publish(&w.counts, &w.drops, &w.denied)
			}
			continue
		}
		if !w.idle {
			w.idle = true
			w.countBusy(time.Now())
		}
		w.published.publish(&w.counts, &w.drops, &w.denied)
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
	w.published.publish(&w.counts, &w.drops, &w.denied)
	return work
}

// endRound is finish with the counters published.
func (w *Worker) endRound() {
	w.finish()
	w.published.publish(&w.counts, &w.drops, &w.denied)
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

// Idle ages due flows, as the worker does before it sleeps, for owners that call Round.
func (w *Worker) Idle() {
	w.beginRound()
	for !w.hasWork() && w.sleeper.age() {
	}
}

// Quiescent lets go of the flow table, so that the owner may change it between rounds;
// the function that it returns takes it up again.
func (w *Worker) Quiescent() (resume func()) {
	w.conntrack.Offline()
	return w.conntrack.Online
}

// beginRound reads everything that others publish, once for all packets of
// the round.
func (w *Worker) beginRound() {
	if r := w.change.Load(); r != nil {
		w.updatePorts(r)
	}
	if q := w.question.Load(); q != nil {
		q.answer(w)
	}
	if tick := w.conns.Tick(); tick != w.tick {
		w.tick = tick
		w.heartbeat.Store(tick)
		now := time.Now()
		if !w.idle {
			w.countBusy(now)
		}
		shrinkFill(w.ports, tick)
		w.resets.Refill(now)
		w.errors.Refill(now)
		w.echoes.Refill(now)
		w.pathMTUs.Refill(now)
	}
	w.snapshot = w.frontends.Load()
	if routes := w.router.Load(); routes != w.routes {
		w.routes, w.epoch = routes, routes.Epoch()
		clear(w.hopCache[:]) // the stamps change later: see Reroute
	}
	w.node = w.cfg.Node.Load()
	w.obs = w.observing.Load()
	w.removed.read()
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
		p.received += uint32(n)
		p.fill.received(n, p.Ring)
		work += n
		w.counts[counter.Batches]++
		w.process(&w.batch)
	}
	return work
}

// releaseQueued sends fragments and packets that need not wait any longer through the stages again.
// All of them go before the packets of the next round, which came later.
func (w *Worker) releaseQueued() {
	b := &w.requeued
	b.reset(0)
	if w.releaseFragments(b); b.n > 0 {
		w.process(b)
	}
	for range neighQueueLen / batchSize {
		if len(w.neighQueue) == 0 {
			return
		}
		b.reset(0)
		w.releaseResolved(b)
		n := b.n
		if n > 0 {
			w.process(b)
		}
		if n < batchSize {
			return
		}
	}
}

// finish sends the gathered packets and tidies up.
func (w *Worker) finish() {
	w.flush()
	w.settling.sent(w.ports)
	w.complete()
	w.giveFramesBack()
	w.Refill()
	for _, p := range w.links {
		if p != nil && p.wake {
			p.wake = false
			p.to.sleeper.wakeUp()
		}
	}
	w.counts[counter.FreeFrames] = uint64(len(w.free.addr))
	w.conntrack.Age(w.tick)
	w.conntrack.Quiesce()
}
