package steer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

// wire is two namespaces joined by a veth pair: the node, to which the program
// is attached, and its peer.
type wire struct {
	testing.TB
	node, peer *netlab.Namespace
	dev        *netlink.LinkAttrs // the node's end
}

var (
	node4 = netip.MustParseAddr("192.0.2.1")
	peer4 = netip.MustParseAddr("192.0.2.2")
	node6 = netip.MustParseAddr("2001:db8::1")
	peer6 = netip.MustParseAddr("2001:db8::2")
)

func needLab(t testing.TB) {
	t.Helper()
	if err := netlab.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("skipped: ", err)
	}
}

// newWire leaves the test on a thread inside the node's namespace.
func newWire(t testing.TB, cfg netlab.LinkConfig) *wire {
	t.Helper()
	needLab(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	w := &wire{TB: t}
	w.node, err = lab.Namespace("node")
	must(t, err)
	w.peer, err = lab.Namespace("peer")
	must(t, err)
	ends := []netlab.End{
		{Namespace: w.node, Name: "wan.5", Addrs: []netip.Prefix{netip.PrefixFrom(node4, 24), netip.PrefixFrom(node6, 64)}},
		{Namespace: w.peer, Name: "far", Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24), netip.PrefixFrom(peer6, 64)}},
	}
	must(t, netlab.Connect(ends[0], ends[1], cfg))
	dev, err := w.node.Interface("wan.5")
	must(t, err)
	w.dev = dev.Attrs()
	enter(t, w.node)
	return w
}

// enter moves the test to a thread inside n until it ends.
func enter(t testing.TB, n *netlab.Namespace) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	must(t, err)
	must(t, netns.Set(n.Handle()))
	t.Cleanup(func() {
		must(t, netns.Set(home))
		home.Close()
		runtime.UnlockOSThread()
	})
}

// bpffs mounts a BPF file system for the test and returns a directory in it
// that is yet to be made.
func bpffs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return filepath.Join(dir, "weir")
}

// load loads a program that is not detached at the end: see attach.
func load(t testing.TB, cfg Config) *Program {
	t.Helper()
	p, err := Load(cfg)
	must(t, err)
	return p
}

func closed(t testing.TB, p *Program) *Program {
	t.Cleanup(func() { must(t, p.Close(true)) })
	return p
}

// openSocket opens a socket on a queue of the node's end, with frames to
// receive into.
func (w *wire) openSocket(queue int) *xsk.Socket {
	w.Helper()
	area, err := xsk.NewArea(256, 0)
	must(w, err)
	s, err := xsk.Open(area, xsk.Config{IfIndex: w.dev.Index, Queue: queue, RingSize: 256})
	must(w, err)
	w.Cleanup(func() { must(w, errors.Join(s.Close(), area.Close())) })
	for i := range area.Frames() {
		s.Fill([]uint64{area.Addr(i)})
	}
	return s
}

// payloadLen is the length of the UDP payloads that send sends.
const payloadLen = 7

// send sends a UDP packet from the peer to the node.
func (w *wire) send(to netip.AddrPort) {
	w.Helper()
	must(w, w.peer.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, payloadLen))
		return err
	}))
}

// listen opens a UDP socket of the node's kernel.
func (w *wire) listen(port int) *net.UDPConn {
	w.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	must(w, err)
	w.Cleanup(func() { c.Close() })
	return c
}

// kernelGets says that the kernel's socket has a packet, within 10 s.
func (w *wire) kernelGets(c *net.UDPConn) {
	w.Helper()
	must(w, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, err := c.Read(make([]byte, 100)); err != nil {
		w.Fatalf("the kernel has no packet: %v", err)
	}
}

// socketGets says that the AF_XDP socket has a packet, within 10 s.
func (w *wire) socketGets(s *xsk.Socket) {
	w.Helper()
	poll := xsk.NewPoller([]*xsk.Socket{s})
	var d [64]xsk.Desc
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		_, err := poll.Wait(100)
		must(w, err)
		if s.Receive(d[:]) > 0 {
			return
		}
	}
	w.Fatal("no packet on the AF_XDP socket")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFrontendsReachTheSocketAndTheRestTheKernel(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{})
			p := closed(t, load(t, Config{}))
			a, err := p.Attach(w.dev.Index, 3, mode, bpffs(t))
			must(t, err)
			if a.Mode != mode || !a.Pinned || a.Adopted || a.NativeError != nil {
				t.Fatalf("attachment %+v", a)
			}
			s := w.openSocket(0)
			must(t, p.SetSocket(3, 0, s.FD()))
			kernel := w.listen(30080)
			for _, addr := range []netip.Addr{node4, node6} {
				front, other := netip.AddrPortFrom(addr, 30081), netip.AddrPortFrom(addr, 30080)
				must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
				w.send(front)
				w.socketGets(s)
				w.send(other)
				w.kernelGets(kernel)
			}
			c, err := p.Counters()
			must(t, err)
			if got := c[0].Packets[Redirected]; got != 2 {
				t.Errorf("%d packets redirected", got)
			}
			if got := c[0].Packets[PassNoMatch]; got < 2 {
				t.Errorf("%d packets without a match", got)
			}
		})
	}
}

// TestKernelTakesOverWhenTheSocketsDie is what kill -9 of Weir comes to: the
// sockets close, the pinned link stays.
func TestKernelTakesOverWhenTheSocketsDie(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p := load(t, Config{})
	_, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	w.send(front)
	w.socketGets(s)

	must(t, s.Close())
	must(t, p.Close(false))
	w.send(front)
	w.kernelGets(kernel)
	if mode, err := attachedMode(w.dev.Index); err != nil || mode != Native {
		t.Errorf("mode %v, %v: the program should still be attached", mode, err)
	}
	must(t, RemoveAll(dir))
	if mode, err := attachedMode(w.dev.Index); err == nil {
		t.Errorf("mode %v: the program should be gone", mode)
	}
}

// TestClearedSocketGivesTheQueueToTheKernel, and so do queues that never had a
// socket.
func TestClearedSocketGivesTheQueueToTheKernel(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	_, err := p.Attach(w.dev.Index, 0, Auto, bpffs(t))
	must(t, err)
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	w.send(front)
	w.kernelGets(kernel)

	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	w.send(front)
	w.socketGets(s)
	must(t, p.ClearSocket(0, 0))
	must(t, p.ClearSocket(0, 0)) // there is none any more
	w.send(front)
	w.kernelGets(kernel)
	c, err := p.Counters()
	must(t, err)
	if got := c[0].Packets[PassNoSocket]; got != 2 {
		t.Errorf("%d packets without a socket, want 2", got)
	}
}

func TestARestartAdoptsThePinnedLink(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := load(t, Config{})
	_, err := first.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	must(t, first.AddFrontend(netip.AddrPortFrom(node4, 30080), unix.IPPROTO_UDP, 0))
	must(t, first.Close(false))

	second := load(t, Config{})
	a, err := second.Attach(w.dev.Index, 5, Auto, dir)
	must(t, err)
	if !a.Adopted || !a.Pinned || a.Mode != Native {
		t.Fatalf("attachment %+v", a)
	}
	// It is the new program that runs, with the new maps.
	s := w.openSocket(0)
	must(t, second.SetSocket(5, 0, s.FD()))
	front := netip.AddrPortFrom(node4, 30081)
	must(t, second.AddFrontend(front, unix.IPPROTO_UDP, 0))
	w.send(front)
	w.socketGets(s)
	must(t, second.Close(true))
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("still attached after Close(true)")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins' directory is left: %v", err)
	}
}

func TestARestartInAnotherModeAttachesAnew(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := load(t, Config{})
	_, err := first.Attach(w.dev.Index, 0, Native, dir)
	must(t, err)
	must(t, first.Close(false))
	second := closed(t, load(t, Config{}))
	a, err := second.Attach(w.dev.Index, 0, Generic, dir)
	must(t, err)
	if a.Adopted || !a.Pinned || a.Mode != Generic {
		t.Errorf("attachment %+v", a)
	}
}

func TestPinsOfInterfacesThatAreGoneAreRemoved(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	gone := load(t, Config{})
	must(t, netlab.Connect(netlab.End{Namespace: w.node, Name: "old"}, netlab.End{Namespace: w.peer, Name: "older"}, netlab.LinkConfig{}))
	old, err := w.node.Interface("old")
	must(t, err)
	a, err := gone.Attach(old.Attrs().Index, 0, Auto, dir)
	must(t, err)
	must(t, gone.Close(false))
	must(t, w.node.Delete("old"))

	p := closed(t, load(t, Config{}))
	_, err = p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if _, err := os.Stat(a.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale pin %s: %v", a.PinPath, err)
	}
}

func TestWithoutBPFFSTheLinkIsNotPinned(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := load(t, Config{})
	a, err := p.Attach(w.dev.Index, 0, Auto, filepath.Join(t.TempDir(), "weir"))
	must(t, err)
	if a.Pinned || !errors.Is(a.PinError, ErrNotBPFFS) {
		t.Errorf("pinned %v, %v", a.Pinned, a.PinError)
	}
	must(t, p.Close(false))
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("an unpinned link outlived its process's Close")
	}
}

func TestAnotherXDPProgramIsLeftAlone(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	first := closed(t, load(t, Config{}))
	_, err := first.Attach(w.dev.Index, 0, Auto, t.TempDir())
	must(t, err)
	second := closed(t, load(t, Config{}))
	_, err = second.Attach(w.dev.Index, 0, Auto, t.TempDir())
	if !inUse(err) {
		t.Fatalf("%v, want EBUSY or EEXIST", err)
	}
	t.Log(err)
}

func TestAutoFallsBackToGenericAndSaysWhy(t *testing.T) {
	needLab(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	must(t, node.Bridge("br0", nil)) // bridges have no native XDP
	dev, err := node.Interface("br0")
	must(t, err)
	enter(t, node)
	p := closed(t, load(t, Config{}))
	_, err = p.Attach(dev.Attrs().Index, 0, Native, t.TempDir())
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("native: %v, want EOPNOTSUPP", err)
	}
	a, err := p.Attach(dev.Attrs().Index, 0, Auto, t.TempDir())
	must(t, err)
	if a.Mode != Generic || !errors.Is(a.NativeError, unix.EOPNOTSUPP) {
		t.Errorf("attachment %+v", a)
	}
	t.Log(a.NativeError)
}

func TestJumboFramesAttachNatively(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{MTU: 9000})
	p := closed(t, load(t, Config{}))
	if !p.Frags() {
		t.Skip("skipped: the kernel has no XDP programs for packets of several buffers")
	}
	a, err := p.Attach(w.dev.Index, 0, Native, t.TempDir())
	must(t, err)
	if a.Mode != Native {
		t.Errorf("mode %v", a.Mode)
	}
}

func TestAttachSaysWhatIsWrong(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	dir := t.TempDir()
	if _, err := p.Attach(9999, 0, Auto, dir); err == nil {
		t.Error("attached to no interface")
	}
	if _, err := p.Attach(w.dev.Index, MaxSlots, Auto, dir); err == nil {
		t.Error("attached as slot 64")
	}
	if _, err := p.Attach(1, 0, Auto, dir); err == nil {
		t.Error("attached to the loopback interface, which has no Ethernet address of its own")
	}
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if _, err := p.Attach(w.dev.Index, 1, Auto, dir); err == nil {
		t.Error("attached twice to one interface")
	}
	must(t, p.Detach(a))
	must(t, p.Detach(a)) // a second time does nothing
	_, err = p.Attach(w.dev.Index, 1, Auto, dir)
	must(t, err)
}
