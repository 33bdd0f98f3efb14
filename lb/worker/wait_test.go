package worker

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// runAsleep runs a bench's worker as its thread would. Nothing wakes it but its eventfd, and
// a nap has no end unless it asks for a short nap.
func runAsleep(t *testing.T, b *bench) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w := b.w
	w.sleeper.wakeFD, w.sleeper.maxPollTimeout = fd, -1
	w.sleeper.pollFD = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	done := make(chan bool)
	go func() { defer close(done); w.run() }()
	t.Cleanup(func() {
		w.sleeper.stop.Store(true)
		w.sleeper.asleep.Store(true)
		w.sleeper.wakeUp()
		<-done
		unix.Close(fd)
	})
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// A worker that sleeps for ever is woken for each frame that is handed to it, at any moment
// between the last look and the sleep.
func TestNoHandOverIsSleptThrough(t *testing.T) {
	first, second := pair(t)
	runAsleep(t, first)
	frame := request(false, header.ProtoUDP).build(t)
	const n = 2000
	for i := range uint64(n) {
		second.give(portClient, frame)
		second.w.Round()
		if i%16 == 0 { // let it fall asleep
			eventually(t, "hand-over", func() bool { return first.w.published.read().Values[counter.TxPackets] == i+1 })
		}
	}
	eventually(t, "the last hand-overs", func() bool { return first.w.published.read().Values[counter.TxPackets] == n })
	if c := first.w.published.read(); c.Values[counter.Sleeps] == 0 {
		t.Error("it never slept: nothing was tested")
	}
}

// While a packet is held the worker sleeps for moments only, so that the packet
// leaves when its next hop is known.
func TestNoHeldPacketIsSleptThrough(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	b.round()
	if len(b.w.neighQueue) != 1 {
		t.Fatal("nothing is held")
	}
	runAsleep(t, b)
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	eventually(t, "the held packet", func() bool { return b.w.published.read().Values[counter.TxPackets] == 1 })
}

// An idle worker does one round per nap: at ten naps a second that is nothing.
// Counted, not timed: a thousand naps that end at once.
func TestAnIdleWorkerDoesOneRoundPerTimeout(t *testing.T) {
	b := newBench(t)
	q := &counting{Memory: b.q[portClient]}
	b.w.ports[portClient].Queue = q
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b.w.sleeper.pollFD = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	b.w.sleeper.maxPollTimeout = 0
	q.limit, q.stop = 1000+maxSpin, func() { b.w.sleeper.stop.Store(true) }
	b.w.run()
	if c := b.w.published.read(); c.Values[counter.Sleeps] < 1000 || c.Busy() != 0 {
		t.Errorf("%d naps in %d rounds, busy for %v", c.Values[counter.Sleeps], q.rounds, c.Busy())
	}
	if b.w.sleeper.pollTimeout(len(b.w.neighQueue) > 0) != 0 || maxPollTimeout < 50 {
		t.Errorf("an idle worker naps for %d ms only", maxPollTimeout)
	}
}

// counting is a queue that counts how often it is asked.
type counting struct {
	*lbtest.Memory
	rounds, limit int
	stop          func()
}

func (c *counting) Receive(out []xsk.Desc) int {
	if c.rounds++; c.rounds >= c.limit {
		c.stop()
	}
	return c.Memory.Receive(out)
}

// Spinning lasts longer while packets come during it, and shorter when it was
// in vain.
func TestSpinningAdapts(t *testing.T) {
	b := newBench(t)
	q := &trickle{counting: counting{Memory: b.q[portClient], limit: 500, stop: func() { b.w.sleeper.stop.Store(true) }}, b: b, frame: request(false, header.ProtoUDP).build(t)}
	b.w.ports[portClient].Queue = q
	b.w.run()
	if b.w.sleeper.spinBudget != maxSpin {
		t.Errorf("with a packet every 20 looks it looks %d times", b.w.sleeper.spinBudget)
	}
	if c := b.w.published.read(); c.Busy() == 0 || c.Values[counter.Batches] != c.Values[counter.RxPackets] || c.Values[counter.RxPackets] == 0 {
		t.Errorf("busy for %v, %d packets in %d batches", c.Busy(), c.Values[counter.RxPackets], c.Values[counter.Batches])
	}
}

// trickle has a packet every twenty times that it is looked at.
type trickle struct {
	counting
	b     *bench
	frame []byte
	looks int
}

func (q *trickle) Pending() int {
	if q.looks++; q.looks%20 == 0 {
		q.b.give(portClient, q.frame)
		q.b.q[portServer].Out = q.b.q[portServer].Out[:0]
	}
	return q.counting.Pending()
}
