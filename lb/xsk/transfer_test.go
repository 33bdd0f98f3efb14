package xsk_test

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

// needBoundRings skips the test on a kernel whose sockets cannot go on in another process.
func needBoundRings(t *testing.T) {
	t.Helper()
	if p := xsk.ProbeBoundRings(); !p.OK() {
		t.Skip("skipped: ", p)
	}
}

// Packets that come while no process uses a socket are the next process's, and so are the
// frames that the last one had.
func TestASocketGoesOnInAnotherProcess(t *testing.T) {
	needBoundRings(t)
	w := newWire(t, netlab.LinkConfig{})
	last := w.open(xsk.Config{})
	c := w.listen()
	say := func(text string) {
		_, err := c.WriteToUDPAddrPort([]byte(text), nodePort)
		must(t, err)
	}
	say("before")
	d := receive(t, last)
	packet, _ := w.frame([]byte("out"))
	if n := last.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)}); n != 1 {
		t.Fatalf("transmit ring took %d", n)
	}
	must(t, last.Kick())

	transfer, err := w.umem.Transfer([]*xsk.Socket{last})
	must(t, err)
	must(t, last.Close())
	say("between")
	umem, sockets, err := transfer.Receive()
	must(t, err)
	defer umem.Close()
	next := sockets[0]
	defer next.Close()
	if receiving, sending := umem.Held(next); receiving != 1023 || sending != 1 {
		t.Errorf("the kernel has %d frames to receive into and %d to send from", receiving, sending)
	}
	free := umem.FreeFrames()
	if len(free) != umem.Frames()-1024 || !slices.Contains(free, umem.Base(d[0].Addr)) {
		t.Errorf("%d of %d frames are free", len(free), umem.Frames())
	}
	if next.Adopt(xsk.Config{IfIndex: w.dev.Index, Queue: 1}) || next.Adopt(xsk.Config{IfIndex: w.dev.Index, Mode: xsk.ZeroCopy}) {
		t.Error("it serves as another socket")
	}
	if !next.Adopt(xsk.Config{IfIndex: w.dev.Index, Mode: xsk.Copy}) {
		t.Error("it does not serve as the one that it is")
	}
	for _, want := range []string{"between", "after"} {
		if want == "after" {
			say(want)
		}
		got := receive(t, next)
		if text := string(umem.Data(got[0])[udpStart+8:]); text != want {
			t.Errorf("received %q, want %q", text, want)
		}
	}
	if done := complete(t, next, 1); done[0] != umem.Addr(firstTxFrame) {
		t.Errorf("frame %#x came back", done[0])
	}
	if n := next.Rejected(); n != 0 {
		t.Errorf("%d descriptors were rejected", n)
	}
}

// A transfer that is not whole leaves no descriptor open, and no socket bound.
func TestATransferThatIsNotWholeIsClosed(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	for i, damage := range []func(*xsk.Transfer){
		func(t *xsk.Transfer) { t.Version++ },
		func(t *xsk.Transfer) { t.Frames++ },
		func(t *xsk.Transfer) { t.FrameSize = 1000 },
		func(t *xsk.Transfer) { t.Sockets[0].Owner = 1 },
		func(t *xsk.Transfer) { t.Sockets[0].Owner = 0 },
		func(t *xsk.Transfer) { t.Sockets[0].Owner = 1 << 15 },
		func(t *xsk.Transfer) { t.Sockets[0].RingSize = 0 },
		func(t *xsk.Transfer) { t.Sockets[0].RingSize = -4096 },
		func(t *xsk.Transfer) { t.Sockets[0].RingSize = 1000 },
		func(t *xsk.Transfer) { t.Sockets[0].RingSize = 1<<32 + 4096 },
		func(t *xsk.Transfer) { t.Sockets[0].RingSize = 1 << 20 },
		func(t *xsk.Transfer) { t.Sockets = nil },
		func(t *xsk.Transfer) { t.Sockets = append(t.Sockets, t.Sockets[0]) },
		func(t *xsk.Transfer) { // the same socket twice
			again, err := unix.FcntlInt(uintptr(t.Files()[2]), unix.F_DUPFD_CLOEXEC, 0)
			if err == nil {
				t.Sockets = append(t.Sockets, t.Sockets[0])
				t.SetFiles(append(t.Files(), again))
			}
		},
		func(t *xsk.Transfer) { // no socket in its place
			list := t.Files()
			list[1], list[2] = list[2], list[1]
		},
		func(t *xsk.Transfer) { _ = unix.Ftruncate(t.Files()[1], 1) },
	} {
		s, err := xsk.Open(w.umem, xsk.Config{IfIndex: w.dev.Index})
		must(t, err)
		transfer, err := w.umem.Transfer([]*xsk.Socket{s})
		must(t, err)
		fds := slices.Clone(transfer.Files())
		must(t, s.Close())
		w.umem.ReclaimAll(s, nil)
		damage(transfer)
		if _, _, err := transfer.Receive(); err == nil {
			t.Errorf("%d: it was taken", i)
		}
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				t.Errorf("descriptor %d is open", fd)
			}
		}
	}
}

// Frames of a socket that does not come, as the last process has closed it, are free again.
func TestFramesOfSocketsThatDoNotComeAreFree(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	transfer, err := w.umem.Transfer(nil)
	must(t, err)
	must(t, s.Close()) // without ReclaimAll, as with zero copy
	umem, _, err := transfer.Receive()
	must(t, err)
	if free := len(umem.FreeFrames()); free != umem.Frames() {
		t.Errorf("%d of %d frames are free", free, umem.Frames())
	}
	must(t, umem.Close())
}

// A socket that has frames to receive into does not serve as one that only sends: no worker
// would get them back.
func TestASocketThatReceivesDoesNotServeToSendAlone(t *testing.T) {
	needBoundRings(t)
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	transfer, err := w.umem.Transfer([]*xsk.Socket{s})
	must(t, err)
	must(t, s.Close())
	umem, sockets, err := transfer.Receive()
	must(t, err)
	if sockets[0].Adopt(xsk.Config{IfIndex: w.dev.Index, SendOnly: true}) {
		t.Error("it does")
	}
	if !sockets[0].Adopt(xsk.Config{IfIndex: w.dev.Index}) {
		t.Error("it does not serve as it is")
	}
	must(t, errors.Join(sockets[0].Close(), umem.Close()))
}
