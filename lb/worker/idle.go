package worker

import (
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/counter"
)

// ageSteps bounds how long a worker without packets ages flows before the next round, the
// heartbeat: some milliseconds, if all these flows are deleted.
const ageSteps = 1 << 11

// age does the due part of ageing while no packet comes. It reports whether the worker has
// other work before it may sleep.
func (w *Worker) age() bool {
	for range ageSteps {
		if !w.conntrack.Age(w.tick) {
			return false
		}
		w.conntrack.Quiesce()
		if w.hasWork() {
			return true
		}
	}
	return true
}

// Idle ages due flows, as the worker does before it sleeps, for owners that call Round.
func (w *Worker) Idle() {
	w.beginRound()
	for !w.hasWork() && w.age() {
	}
}

// Quiescent lets go of the flow table, so that the owner may change it between rounds;
// the function that it returns takes it up again.
func (w *Worker) Quiescent() (resume func()) {
	w.conntrack.Offline()
	return w.conntrack.Online
}

// await returns when there is something to do, or after a nap: for the chores.
// After a nap without work it goes straight back to sleep.
func (w *Worker) await() {
	for n := 0; n < w.spinBudget && !w.pollTimedOut; n++ {
		if w.hasWork() || w.stop.Load() {
			w.spinBudget = min(2*w.spinBudget, maxSpin)
			return
		}
	}
	if w.age() {
		return
	}
	w.pollTimedOut = !w.sleep()
	if !w.pollTimedOut {
		w.spinBudget = max(w.spinBudget/2, minSpin)
	}
}

// sleep waits in poll for a packet, a handed-over frame or the next chore, and
// reports whether something came.
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
	timeout := w.pollTimeout()
	w.counts[counter.Sleeps]++
	w.conntrack.Offline()
	n, _ := unix.Poll(w.pollFD, timeout) // EINTR and timeouts are rounds like any other
	w.conntrack.Online()
	w.asleep.Store(false)
	if w.pollFD[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(w.wakeFD, b[:])
	}
	return n > 0
}

// pollTimeout is how long the worker may sleep when nothing comes. That is not long while a
// packet waits for its next hop, or for a device queue that was full at the last kick.
func (w *Worker) pollTimeout() int {
	short := len(w.neighQueue) > 0
	for i := range w.ports {
		short = short || w.ports[i].sending > 0
	}
	if short {
		return 2
	}
	return w.maxPollTimeout
}

func (w *Worker) wakeUp() {
	if w.asleep.Load() {
		one := [8]byte{1}
		_, _ = unix.Write(w.wakeFD, one[:])
	}
}

// How often an idle worker looks for something to do before it sleeps. Spinning
// is worth it while packets come meanwhile: the spin time doubles with each packet that
// comes during it, and halves after a sleep. It never costs much more than a
// sleep and a wake-up do (Karlin et al. 1990): a look takes some 15 ns, the most
// about 6 us.
const (
	minSpin     = 32
	initialSpin = 128
	maxSpin     = 512

	maxPollTimeout = 100 // ms
)
