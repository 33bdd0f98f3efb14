package xsk

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// deviceQueue is a device queue as wake-up calls see it: a datagram socket whose
// receiver has no room any more says EAGAIN, as a full device queue does.
type deviceQueue struct {
	*peer
	receiver int
}

func newDeviceQueue(t *testing.T) *deviceQueue {
	t.Helper()
	umem, err := NewUmem(256, 2048)
	must(t, err)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	d := &deviceQueue{newPeer(umem, 128, 0), fds[1]}
	d.s.fd = fds[0]
	t.Cleanup(func() {
		must(t, errors.Join(unix.Close(d.s.fd), umem.Close()))
		_ = unix.Close(d.receiver)
	})
	return d
}

// fill leaves no room in the device queue.
func (d *deviceQueue) fill(t *testing.T) {
	t.Helper()
	for range 1 << 16 {
		if sendWakeup(d.s.fd) == unix.EAGAIN {
			return
		}
	}
	t.Fatal("the queue has no end")
}

// drain makes room, and returns how many calls had come through.
func (d *deviceQueue) drain() (calls int) {
	for {
		if _, _, err := unix.Recvfrom(d.receiver, make([]byte, 1), unix.MSG_DONTWAIT); err != nil {
			return calls
		}
		calls++
	}
}

// transmit puts n packets on the transmit ring.
func (d *deviceQueue) transmit(t *testing.T, n int) {
	t.Helper()
	for f := range n {
		if d.s.Transmit([]Desc{{Addr: d.s.umem.Addr(f) + Headroom, Len: 60}}) != 1 {
			t.Fatal("the ring is full")
		}
	}
}

// In copy mode the kernel sends some packets per call at most, so calls are
// repeated; when the device queue is full no oftener than the ring can need.
func TestKickGivesUpOnAFullDeviceQueue(t *testing.T) {
	d := newDeviceQueue(t)
	if must(t, d.s.Kick()); d.s.Kicks() != (Kicks{}) {
		t.Errorf("with nothing to send: %+v", d.s.Kicks())
	}
	d.transmit(t, 100)
	d.fill(t)
	must(t, d.s.Kick())
	if want := (Kicks{Sent: 100/txBudget + 8, Unfinished: 1}); d.s.Kicks() != want {
		t.Errorf("%+v, want %+v", d.s.Kicks(), want)
	}
	if n := d.s.Outstanding(); n != 100 {
		t.Errorf("%d packets left on the ring", n)
	}

	// The next one finds room: one call, and no more.
	d.drain()
	before := d.s.Kicks()
	must(t, d.s.Kick())
	if now := d.s.Kicks(); now.Sent != before.Sent+1 || now.Unfinished != 1 || d.drain() != 1 {
		t.Errorf("%+v after %+v", now, before)
	}
	for d.takeTx() {
	}
	must(t, d.s.Kick())
	if d.drain() != 0 {
		t.Error("a call with nothing left on the ring")
	}
}

// An error of the device is passed on at once; the packets stay on the ring.
func TestKickEndsAtAnError(t *testing.T) {
	d := newDeviceQueue(t)
	d.transmit(t, 3)
	must(t, unix.Close(d.receiver))
	d.receiver = -1
	if err := d.s.Kick(); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
	if k := d.s.Kicks(); k.Sent != 1 || k.Unfinished != 0 || d.s.Outstanding() != 3 {
		t.Errorf("%+v, %d packets left on the ring", k, d.s.Outstanding())
	}
}

// With zero copy one call wakes the driver, if it asks for that.
func TestKickWakesADriverThatAsks(t *testing.T) {
	d := newDeviceQueue(t)
	d.s.zeroCopy = true
	d.transmit(t, 3)
	must(t, d.s.Kick())
	if k := d.s.Kicks(); k.Suppressed != 1 || d.drain() != 0 {
		t.Errorf("%+v", k)
	}
	*d.tx.flags = ringNeedWakeup
	must(t, d.s.Kick())
	if k := d.s.Kicks(); k.Sent != 1 || d.drain() != 1 {
		t.Errorf("%+v", k)
	}
	d.fill(t)
	must(t, d.s.Kick()) // busy: the driver will look again
	if k := d.s.Kicks(); k.Sent != 2 {
		t.Errorf("%+v", k)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
