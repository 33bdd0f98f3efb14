package xsk_test

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

// Packets that come while no process uses a socket are the next process's, and so are the
// frames that the last one had.
func TestASocketGoesOnInAnotherProcess(t *testing.T) {
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
	for _, damage := range []func(*xsk.Transfer){
		func(t *xsk.Transfer) { t.Version++ },
		func(t *xsk.Transfer) { t.Frames++ },
		func(t *xsk.Transfer) { t.FrameSize = 1000 },
		func(t *xsk.Transfer) { t.Sockets[0].Owner = 1 },
		func(t *xsk.Transfer) { t.Sockets[1].Owner = t.Sockets[0].Owner },
		func(t *xsk.Transfer) { t.Sockets = t.Sockets[:1] },
	} {
		s, err := xsk.Open(w.umem, xsk.Config{IfIndex: w.dev.Index})
		must(t, err)
		transfer, err := w.umem.Transfer([]*xsk.Socket{s, s})
		must(t, err)
		fds := slices.Clone(transfer.Files())
		must(t, s.Close())
		w.umem.ReclaimAll(s, nil)
		damage(transfer)
		if _, _, err := transfer.Receive(); err == nil {
			t.Error("it was taken")
		}
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				t.Errorf("descriptor %d is open", fd)
			}
		}
	}
}
