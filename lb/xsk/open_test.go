package xsk_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

func TestSocketsShareAUmemPerGroup(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 3})
	first := w.open(xsk.Config{Queue: 0, RingSize: 1024})
	second := w.open(xsk.Config{Queue: 1, RingSize: 1024, TxMetadata: true})
	jumbo := w.open(xsk.Config{Queue: 2, RingSize: 1024, MultiBuffer: true})
	for _, s := range []*xsk.Socket{first, second} {
		if zeroCopy, _, multiBuffer := s.Granted(); zeroCopy || multiBuffer {
			t.Errorf("queue %d: zero copy %v, multi-buffer %v on a veth", s.Queue(), zeroCopy, multiBuffer)
		}
	}
	if _, metadata, _ := second.Granted(); metadata != xsk.ProbeTxMetadata().OK() {
		t.Errorf("metadata %v against the probe's %v", metadata, xsk.ProbeTxMetadata())
	}
	if _, _, multiBuffer := jumbo.Granted(); multiBuffer != xsk.ProbeMultiBuffer().OK() {
		t.Errorf("multi-buffer %v against the probe's %v", multiBuffer, xsk.ProbeMultiBuffer())
	}
	// What one socket receives another sends, also after the first of the group
	// is gone.
	must(t, first.Close())
	c := w.listen()
	for i, s := range []*xsk.Socket{second, jumbo} {
		packet, _ := w.frame([]byte{byte(i)})
		s.Transmit([]xsk.Desc{w.place(i, packet)})
		must(t, s.Kick())
		buf := make([]byte, 10)
		_, err := c.Read(buf)
		must(t, err)
		complete(t, s, 1)
	}
	if again := w.open(xsk.Config{Queue: 0, RingSize: 1024, ShareWith: second}); again.FD() < 0 {
		t.Error("no socket")
	}
}

func TestAQueueIsFreeAgainAfterClose(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	for range 5 {
		s, err := xsk.Open(w.umem, xsk.Config{IfIndex: w.dev.Index})
		must(t, err)
		must(t, s.Close())
		must(t, s.Close()) // a second time does nothing
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 2})
	w.open(xsk.Config{})
	other, err := xsk.NewUmem(64, 0)
	must(t, err)
	defer other.Close()
	for name, c := range map[string]struct {
		cfg  xsk.Config
		want error
	}{
		"queue held by another socket":   {xsk.Config{IfIndex: w.dev.Index}, unix.EBUSY},
		"no such queue":                  {xsk.Config{IfIndex: w.dev.Index, Queue: 7}, unix.EINVAL},
		"no such interface":              {xsk.Config{IfIndex: 9999}, unix.ENODEV},
		"zero copy on a veth":            {xsk.Config{IfIndex: w.dev.Index, Queue: 1, Mode: xsk.ZeroCopy}, unix.EOPNOTSUPP},
		"ring size not a power of two":   {xsk.Config{IfIndex: w.dev.Index, RingSize: 1000}, nil},
		"shared with none of this umem":  {xsk.Config{IfIndex: w.dev.Index, ShareWith: &xsk.Socket{}}, nil},
		"a mode that there is not":       {xsk.Config{IfIndex: w.dev.Index, Mode: 9}, nil},
		"ring size larger than possible": {xsk.Config{IfIndex: w.dev.Index, RingSize: 1 << 30}, nil},
	} {
		// Not a subtest: that would run on a thread of another namespace.
		s, err := xsk.Open(other, c.cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestKickSaysThatTheInterfaceIsDown(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	packet, _ := w.frame([]byte("down"))
	s.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)})
	dev, err := w.node.Interface("wan")
	must(t, err)
	must(t, w.node.Netlink().LinkSetDown(dev))
	if err := s.Kick(); !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("kick: %v, want ENETDOWN", err)
	}
	must(t, w.node.Netlink().LinkSetUp(dev))
	must(t, s.Kick())
	complete(t, s, 1)
}

func TestStatisticsCountPacketsWithoutAFrame(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s, err := xsk.Open(w.umem, xsk.Config{IfIndex: w.dev.Index})
	must(t, err)
	defer s.Close()
	must(t, w.program.SetSocket(0, 0, s.FD()))
	c := w.listen()
	_, err = c.WriteToUDPAddrPort([]byte("lost"), nodePort)
	must(t, err)
	eventually(t, "a packet dropped for want of a frame", func() bool {
		stats, err := s.Statistics()
		must(t, err)
		return stats.RxFillEmpty > 0
	})
}

func TestPollerWakesForOtherDescriptors(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(t, err)
	defer unix.Close(wake)
	p := xsk.NewPoller([]*xsk.Socket{s}, wake)
	if n, err := p.Wait(0); n != 0 || err != nil {
		t.Fatalf("ready %d, %v with nothing to do", n, err)
	}
	_, err = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	must(t, err)
	if n, err := p.Wait(10_000); n != 1 || err != nil || p.Ready(0) || !p.Ready(1) {
		t.Errorf("ready %d (%v, %v), %v", n, p.Ready(0), p.Ready(1), err)
	}
}
