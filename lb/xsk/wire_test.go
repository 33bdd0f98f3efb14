package xsk_test

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// wire is two namespaces joined by a veth pair: the node, where the sockets
// are, and a peer with the kernel's own. Packets from the peer to nodePort go to
// the sockets.
type wire struct {
	testing.TB
	node, peer *netlab.Namespace
	dev, far   *netlink.LinkAttrs
	program    *steer.Program
	umem       *xsk.Umem
}

var (
	nodePort = netip.MustParseAddrPort("192.0.2.1:30080")
	peerPort = netip.MustParseAddrPort("192.0.2.2:40000")
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
	must(t, netlab.Connect(
		netlab.End{Namespace: w.node, Name: "wan", Addrs: []netip.Prefix{netip.PrefixFrom(nodePort.Addr(), 24)}},
		netlab.End{Namespace: w.peer, Name: "far", Addrs: []netip.Prefix{netip.PrefixFrom(peerPort.Addr(), 24)}},
		cfg))
	dev, err := w.node.Interface("wan")
	must(t, err)
	far, err := w.peer.Interface("far")
	must(t, err)
	w.dev, w.far = dev.Attrs(), far.Attrs()
	w.enterNode()

	w.umem, err = xsk.NewUmem(8192, 0)
	must(t, err)
	t.Cleanup(func() { must(t, w.umem.Close()) })
	w.program, err = steer.Load(steer.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, w.program.Close(true)) })
	_, err = w.program.Attach(w.dev.Index, 0, steer.Native, t.TempDir())
	must(t, err)
	must(t, w.program.AddFrontend(nodePort, unix.IPPROTO_UDP, 0))
	return w
}

func (w *wire) enterNode() {
	runtime.LockOSThread()
	home, err := netns.Get()
	must(w, err)
	must(w, netns.Set(w.node.Handle()))
	w.Cleanup(func() {
		must(w, netns.Set(home))
		home.Close()
		runtime.UnlockOSThread()
	})
}

// open opens a socket with 1024 frames to receive into: those from
// queue*1024 on. Frames from 6144 on are free for sending.
func (w *wire) open(cfg xsk.Config) *xsk.Socket {
	w.Helper()
	cfg.IfIndex = w.dev.Index
	s, err := xsk.Open(w.umem, cfg)
	must(w, err)
	w.Cleanup(func() { must(w, s.Close()) })
	for i := range 1024 {
		if s.Fill([]uint64{w.umem.Addr(cfg.Queue*1024 + i)}) != 1 {
			w.Fatalf("fill ring took %d frames", i)
		}
	}
	must(w, w.program.SetSocket(0, cfg.Queue, s.FD()))
	return s
}

const firstTxFrame = 6144

func (w *wire) listen() *net.UDPConn {
	w.Helper()
	c, err := w.peer.ListenPacket("udp4", peerPort.String())
	must(w, err)
	w.Cleanup(func() { c.Close() })
	must(w, c.SetDeadline(time.Now().Add(patience.For(10*time.Second))))
	return c.(*net.UDPConn)
}

// frame makes a UDP packet from nodePort to peerPort, and returns it with the
// pseudo header's sum, as it is stored in the checksum field of a packet whose
// checksum is yet to be completed.
func (w *wire) frame(payload []byte) (packet []byte, pseudo uint16) {
	w.Helper()
	eth := &layers.Ethernet{SrcMAC: w.dev.HardwareAddr, DstMAC: w.far.HardwareAddr, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: nodePort.Addr().AsSlice(), DstIP: peerPort.Addr().AsSlice(),
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(nodePort.Port()), DstPort: layers.UDPPort(peerPort.Port())}
	must(w, udp.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	must(w, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, ip, udp, gopacket.Payload(payload)))
	sum := uint32(unix.IPPROTO_UDP) + uint32(udp.Length)
	for _, ip := range [][]byte{ip.SrcIP.To4(), ip.DstIP.To4()} {
		sum += uint32(ip[0])<<8 + uint32(ip[1]) + uint32(ip[2])<<8 + uint32(ip[3])
	}
	sum = sum&0xffff + sum>>16
	return buf.Bytes(), uint16(sum + sum>>16)
}

const (
	udpStart       = 14 + 20 // of the UDP header in a frame
	udpChecksum    = 6       // of the checksum in the UDP header
	checksumOfFull = udpStart + udpChecksum
)

// place copies a packet into frame i, where the kernel would have received it.
func (w *wire) place(i int, packet []byte) xsk.Desc {
	d := xsk.Desc{Addr: w.umem.Addr(i) + xsk.Headroom, Len: uint32(len(packet))}
	copy(w.umem.Data(d), packet)
	return d
}

// receive waits for a whole packet and returns its buffers.
func receive(t testing.TB, s *xsk.Socket) []xsk.Desc {
	t.Helper()
	out := make([]xsk.Desc, 64)
	poll := xsk.NewPoller([]*xsk.Socket{s})
	for deadline := time.Now().Add(patience.For(10 * time.Second)); time.Now().Before(deadline); {
		if n := s.Receive(out); n > 0 {
			return out[:n]
		}
		_, err := poll.Wait(100)
		must(t, err)
	}
	t.Fatal("nothing received in time")
	return nil
}

// complete waits until n frames are sent and returns their addresses.
func complete(t testing.TB, s *xsk.Socket, n int) []uint64 {
	t.Helper()
	var done []uint64
	buf := make([]uint64, 64)
	for deadline := time.Now().Add(patience.For(10 * time.Second)); len(done) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d frames came back in time", len(done), n)
		}
		done = append(done, buf[:s.Complete(buf)]...)
		must(t, s.Kick())
	}
	return done
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(10 * time.Second)); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}
