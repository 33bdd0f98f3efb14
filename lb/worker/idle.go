package worker

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
)

// sleeper is a worker's time between packets: it looks for packets for a while, ages due flows, and
// sleeps in poll until a packet, another worker or the next chore wakes it.
type sleeper struct {
	io        *portIO
	conntrack *conntrack.Worker

	pollTimedOut   bool // the last poll brought nothing
	spinBudget     int  // how often to look before sleeping
	maxPollTimeout int  // in ms

	stop atomic.Bool
	// asleep is true while the worker may sleep in poll: another worker that hands it a
	// frame then writes to wakeFD.
	asleep atomic.Bool
	wakeFD int
	pollFD []unix.PollFd
}

func (s *sleeper) init(io *portIO, worker *conntrack.Worker) {
	s.io, s.conntrack = io, worker
	s.spinBudget, s.maxPollTimeout, s.wakeFD = initialSpin, maxPollTimeout, -1
}

// ageSteps bounds how long a worker without packets ages flows before the next round, the
// heartbeat: some milliseconds, if all these flows are deleted.
const ageSteps = 1 << 11

// age does the due part of ageing while no packet comes. It reports whether the worker has
// other work before it may sleep.
func (s *sleeper) age() bool {
	for range ageSteps {
		if !s.conntrack.Age(s.io.tick) {
			return false
		}
		s.conntrack.Quiesce()
		if s.io.hasWork() {
			return true
		}
	}
	return true
}

// polled returns the descriptors that wake the worker: wakeFD first, then those of the queues.
func (s *sleeper) polled(queues []int) []unix.PollFd {
	list := []unix.PollFd{{Fd: int32(s.wakeFD), Events: unix.POLLIN}}
	for _, fd := range queues {
		list = append(list, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return list
}

// await returns when there is something to do, or after a nap: for the chores.
// After a nap without work it goes straight back to sleep. waiting is whether a packet waits for
// the next hop.
func (s *sleeper) await(waiting bool) {
	for n := 0; n < s.spinBudget && !s.pollTimedOut; n++ {
		if s.io.hasWork() || s.stop.Load() {
			s.spinBudget = min(2*s.spinBudget, maxSpin)
			return
		}
	}
	if s.age() {
		return
	}
	s.pollTimedOut = !s.sleep(waiting)
	if !s.pollTimedOut {
		s.spinBudget = max(s.spinBudget/2, minSpin)
	}
}

// sleep waits in poll for a packet, a handed-over frame or the next chore, and
// reports whether something came.
func (s *sleeper) sleep(waiting bool) bool {
	if len(s.pollFD) == 0 {
		return true
	}
	s.asleep.Store(true)
	for _, p := range s.io.links { // a frame put before asleep was seen
		if p != nil && !p.in.Empty() {
			s.asleep.Store(false)
			return true
		}
	}
	timeout := s.pollTimeout(waiting)
	s.io.counts[counter.Sleeps]++
	s.conntrack.Offline()
	n, _ := unix.Poll(s.pollFD, timeout) // EINTR and timeouts are rounds like any other
	s.conntrack.Online()
	s.asleep.Store(false)
	if s.pollFD[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(s.wakeFD, b[:])
	}
	return n > 0
}

// pollTimeout is how long the worker may sleep when nothing comes. That is not long while a
// packet waits for its next hop, or for a device queue that was full at the last kick.
func (s *sleeper) pollTimeout(waiting bool) int {
	short := waiting
	for i := range s.io.ports {
		short = short || s.io.ports[i].sending > 0
	}
	if short {
		return 2
	}
	return s.maxPollTimeout
}

func (s *sleeper) wakeUp() {
	if s.asleep.Load() {
		one := [8]byte{1}
		_, _ = unix.Write(s.wakeFD, one[:])
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

	maxPollTimeout = 500 // ms
)
