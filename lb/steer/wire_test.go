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
)

// needRoot skips the test without root, and fails it where it must not be
// skipped.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	const why = "needs root: network namespaces, BPF and AF_XDP"
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// wire is two namespaces joined by a veth pair: the node, in which Weir would
// run, and its peer.
type wire struct {
	t          testing.TB
	node, peer netns.NsHandle
	dev, far   netlink.Link // the node's end and the peer's
}

var (
	node4 = netip.MustParseAddr("192.0.2.1")
	peer4 = netip.MustParseAddr("192.0.2.2")
	node6 = netip.MustParseAddr("2001:db8::1")
	peer6 = netip.MustParseAddr("2001:db8::2")
)

// newWire makes the namespaces and leaves the test's thread, which it locks, in
// the node's.
func newWire(t testing.TB) *wire {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	home, err := netns.Get()
	must(t, err)
	w := &wire{t: t}
	t.Cleanup(func() {
		must(t, netns.Set(home))
		for _, ns := range []netns.NsHandle{w.node, w.peer, home} {
			ns.Close()
		}
		runtime.UnlockOSThread()
	})
	w.peer, err = netns.New()
	must(t, err)
	w.node, err = netns.New()
	must(t, err)
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "wan", NumRxQueues: 2, NumTxQueues: 2},
		PeerName:  "far", PeerNamespace: netlink.NsFd(w.peer),
		PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}))
	w.dev = setUp(t, "wan", node4, node6)
	w.in(w.peer, func() { w.far = setUp(t, "far", peer4, peer6) })
	return w
}

func setUp(t testing.TB, name string, addrs ...netip.Addr) netlink.Link {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	dev, err := netlink.LinkByName(name)
	must(t, err)
	for _, a := range addrs {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		must(t, netlink.AddrAdd(dev, &netlink.Addr{
			IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())},
			Flags: unix.IFA_F_NODAD,
		}))
	}
	must(t, netlink.LinkSetUp(dev))
	return dev
}

// in runs f in a namespace, on the test's thread.
func (w *wire) in(ns netns.NsHandle, f func()) {
	w.t.Helper()
	must(w.t, netns.Set(ns))
	defer func() { must(w.t, netns.Set(w.node)) }()
	f()
}

// sendUDP sends from the peer.
func (w *wire) sendUDP(to netip.AddrPort, payload string) {
	w.t.Helper()
	w.in(w.peer, func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		must(w.t, err)
		defer c.Close()
		_, err = c.Write([]byte(payload))
		must(w.t, err)
	})
}

// bpffs mounts a BPF file system for the test.
func bpffs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount bpf: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return filepath.Join(dir, "weir")
}

func (w *wire) load(cfg Config) *Program {
	w.t.Helper()
	p, err := Load(cfg)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, p.Close(true)) })
	return p
}

// openSocket opens a socket on queue 0 of the node's end, with frames to
// receive into.
func (w *wire) openSocket(queue int, cfg xsk.Config) *xsk.Socket {
	w.t.Helper()
	area, err := xsk.NewArea(1024, 0)
	must(w.t, err)
	cfg.IfIndex, cfg.Queue, cfg.RingSize = w.dev.Attrs().Index, queue, 256
	s, err := xsk.Open(area, cfg)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, errors.Join(s.Close(), area.Close())) })
	for i := range 512 {
		s.Fill([]uint64{area.Addr(i)})
	}
	return s
}

// receive waits for a packet on the socket.
func receive(t testing.TB, s *xsk.Socket) []byte {
	t.Helper()
	var d [64]xsk.Desc
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n := s.Receive(d[:]); n > 0 {
			return s.Area().Data(d[0])
		}
	}
	t.Fatal("no packet on the socket within 5 s")
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFrontendReachesTheSocketAndTheRestTheKernel(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWire(t)
			p := w.load(Config{})
			a, err := p.Attach(w.dev.Attrs().Index, 3, mode, bpffs(t))
			must(t, err)
			if a.Mode != mode || !a.Pinned || a.Adopted {
				t.Fatalf("attached %v pinned %v (%v) adopted %v", a.Mode, a.Pinned, a.PinError, a.Adopted)
			}
			sockets := []*xsk.Socket{w.openSocket(0, xsk.Config{}), w.openSocket(1, xsk.Config{})}
			for q, s := range sockets {
				must(t, p.SetSocket(3, q, s.FD()))
			}
			front := netip.AddrPortFrom(node4, 30080)
			must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
			listener, err := net.ListenUDP("udp", &net.UDPAddr{Port: 30081})
			must(t, err)
			defer listener.Close()

			w.sendUDP(front, "to weir")
			w.sendUDP(netip.AddrPortFrom(node4, 30081), "to the kernel")
			buf := make([]byte, 100)
			must(t, listener.SetReadDeadline(time.Now().Add(5*time.Second)))
			n, err := listener.Read(buf)
			must(t, err)
			if string(buf[:n]) != "to the kernel" {
				t.Errorf("listener read %q", buf[:n])
			}
			c, err := p.Counters()
			must(t, err)
			if got := c[0].Packets[Redirected]; got != 1 {
				t.Errorf("%d redirected: %v", got, c[0])
			}
		})
	}
}
