package worker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// The owner's side of a worker: its life, and reports.

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
	w.sleeper.wakeFD = fd
	w.sleeper.pollFD = w.sleeper.polled(queues)
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

// Stop ends the worker after the present round.
func (w *Worker) Stop() {
	w.sleeper.stop.Store(true)
	if w.sleeper.wakeFD >= 0 {
		w.sleeper.asleep.Store(true)
		w.sleeper.wakeUp()
	}
}

// Close frees the resources of Start. Preconditions: the worker has ended.
func (w *Worker) Close() error {
	if w.sleeper.wakeFD < 0 {
		return nil
	}
	fd := w.sleeper.wakeFD
	w.sleeper.wakeFD = -1
	return unix.Close(fd)
}

// stuckTicks without a round make a worker count as stuck: it sleeps for
// maxPollTimeout at most.
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

// Counters returns the worker's counters as of the last publication.
func (w *Worker) Counters() Counters { return w.published.read() }

// DropSamples appends the worker's samples to out, per reason the oldest first. A sample
// that is overwritten meanwhile is left out.
func (w *Worker) DropSamples(out []DropSample) []DropSample {
	for reason := range w.samples {
		first := len(out)
		out = w.samples[reason].read(out, Drop(reason))
		for i := range out[first:] {
			out[first+i].Worker = w.id
		}
	}
	return out
}
