package steer

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
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

// newWire leaves the test on a thread inside the node's namespace.
func newWire(t testing.TB, cfg netlab.LinkConfig) *wire {
	t.Helper()
	labtest.Require(t)
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

// steering is the steering program of p.
func steering(t interface{ Fatalf(string, ...any) }, p *Program) *ebpf.Program {
	prog, err := p.programs.steer()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return prog
}

func closed(t testing.TB, p *Program) *Program {
	t.Cleanup(func() { must(t, p.Close(true)) })
	return p
}

// openSocket opens a socket on a queue of the node's end, with frames to
// receive into.
func (w *wire) openSocket(queue int) *xsk.Socket {
	w.Helper()
	umem, err := xsk.NewUmem(256, 0)
	must(w, err)
	s, err := xsk.Open(umem, xsk.Config{IfIndex: w.dev.Index, Queue: queue, RingSize: 256})
	must(w, err)
	w.Cleanup(func() { must(w, errors.Join(s.Close(), umem.Close())) })
	for i := range umem.Frames() {
		s.Fill([]uint64{umem.Addr(i)})
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

// kernelGets says that the kernel's socket has a packet.
func (w *wire) kernelGets(c *net.UDPConn) {
	w.Helper()
	must(w, c.SetReadDeadline(time.Now().Add(patience.For(10*time.Second))))
	if _, err := c.Read(make([]byte, 100)); err != nil {
		w.Fatalf("the kernel has no packet: %v", err)
	}
}

// socketGets says that the AF_XDP socket has a packet.
func (w *wire) socketGets(s *xsk.Socket) {
	w.Helper()
	poll := xsk.NewPoller([]*xsk.Socket{s})
	var d [64]xsk.Desc
	for deadline := time.Now().Add(patience.For(10 * time.Second)); time.Now().Before(deadline); {
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
