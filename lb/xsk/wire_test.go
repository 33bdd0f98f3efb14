package xsk_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

// wire is two namespaces joined by a veth pair: the node, where the sockets
// are, and a peer with the kernel's own. Packets from the peer to nodePort go to
// the sockets.
type wire struct {
	testing.TB
	node, peer *netlab.Namespace
	dev, far   *netlink.LinkAttrs
	program    *steer.Program
	area       *xsk.Area
}

var (
	nodePort = netip.MustParseAddrPort("192.0.2.1:30080")
	peerPort = netip.MustParseAddrPort("192.0.2.2:40000")
)

// newWire leaves the test on a thread inside the node's namespace.
func newWire(t testing.TB, cfg netlab.LinkConfig) *wire {
	t.Helper()
	if err := netlab.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("skipped: ", err)
	}
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

	w.area, err = xsk.NewArea(8192, 0)
	must(t, err)
	t.Cleanup(func() { must(t, w.area.Close()) })
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
	s, err := xsk.Open(w.area, cfg)
	must(w, err)
	w.Cleanup(func() { must(w, s.Close()) })
	for i := range 1024 {
		if s.Fill([]uint64{w.area.Addr(cfg.Queue*1024 + i)}) != 1 {
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
	must(w, c.SetDeadline(time.Now().Add(10*time.Second)))
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
	d := xsk.Desc{Addr: w.area.Addr(i) + xsk.Headroom, Len: uint32(len(packet))}
	copy(w.area.Data(d), packet)
	return d
}

// receive waits for a whole packet and returns its buffers.
func receive(t testing.TB, s *xsk.Socket) []xsk.Desc {
	t.Helper()
	out := make([]xsk.Desc, 64)
	poll := xsk.NewPoller([]*xsk.Socket{s})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if n := s.Receive(out); n > 0 {
			return out[:n]
		}
		_, err := poll.Wait(100)
		must(t, err)
	}
	t.Fatal("nothing received within 10 s")
	return nil
}

// complete waits until n frames are sent and returns their addresses.
func complete(t testing.TB, s *xsk.Socket, n int) []uint64 {
	t.Helper()
	var done []uint64
	buf := make([]uint64, 64)
	for deadline := time.Now().Add(10 * time.Second); len(done) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d frames came back within 10 s", len(done), n)
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

func TestPacketsAreReceivedIntoTheArea(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	c := w.listen()
	for _, payload := range []string{"a", "hello", string(bytes.Repeat([]byte("x"), 1472))} {
		_, err := c.WriteToUDPAddrPort([]byte(payload), nodePort)
		must(t, err)
		d := receive(t, s)
		if len(d) != 1 || d[0].Addr-w.area.Base(d[0].Addr) != xsk.Headroom {
			t.Fatalf("received %+v, want one buffer at %d", d, xsk.Headroom)
		}
		if got := string(w.area.Data(d[0])[udpStart+8:]); got != payload {
			t.Errorf("received %q", got)
		}
		if data, frame := w.area.Data(d[0]), w.area.Frame(d[0].Addr); len(frame) != xsk.FrameSize ||
			cap(data) != xsk.FrameSize-xsk.Headroom {
			t.Errorf("frame of %d bytes, packet can grow to %d", len(frame), cap(data))
		}
	}
}

func TestPacketsAreSentAndTheirFramesComeBack(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	c := w.listen()
	packet, _ := w.frame([]byte("out"))
	if n := s.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)}); n != 1 {
		t.Fatalf("transmit ring took %d", n)
	}
	must(t, s.Kick())
	buf := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	must(t, err)
	if string(buf[:n]) != "out" || from != nodePort {
		t.Errorf("peer got %q from %v", buf[:n], from)
	}
	if done := complete(t, s, 1); done[0] != w.area.Addr(firstTxFrame) {
		t.Errorf("frame %#x came back, want %#x", done[0], w.area.Addr(firstTxFrame))
	}
	if k := s.Kicks(); k.Sent == 0 || k.Unfinished != 0 {
		t.Errorf("kicks %+v", k)
	}
}

func TestKickSendsAWholeRing(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{RingSize: 1024})
	packet, _ := w.frame([]byte("burst"))
	var d []xsk.Desc
	for i := range 1100 {
		d = append(d, w.place(firstTxFrame+i, packet))
	}
	if n := s.Transmit(d); n != 1024 {
		t.Fatalf("transmit ring of 1024 took %d", n)
	}
	if n := s.Transmit(d); n != 0 {
		t.Fatalf("full transmit ring took %d", n)
	}
	must(t, s.Kick())
	if left := s.Outstanding(); left != 0 {
		t.Errorf("%d packets left on the ring after a kick", left)
	}
	done := complete(t, s, 1024)
	slices.Sort(done)
	if done[0] != w.area.Addr(firstTxFrame) || done[1023] != w.area.Addr(firstTxFrame+1023) ||
		len(slices.Compact(done)) != 1024 {
		t.Error("other frames came back than were sent")
	}
	stats, err := s.Statistics()
	must(t, err)
	if stats.TxInvalid != 0 {
		t.Errorf("%d descriptors invalid", stats.TxInvalid)
	}
}

// TestChecksumIsCompletedOnTheWayOut sends packets whose checksum field holds
// the sum of the pseudo header only. On a veth that completes checksums itself
// the packet stays partial and is taken as it is; on one that does not the
// kernel must compute the sum, and the peer verifies it.
func TestChecksumIsCompletedOnTheWayOut(t *testing.T) {
	for name, offload := range map[string]bool{"offload on": true, "offload off": false} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{})
			tool, err := ethtool.NewEthtool()
			must(t, err)
			defer tool.Close()
			must(t, tool.Change("wan", map[string]bool{"tx-checksum-ip-generic": offload}))
			s := w.open(xsk.Config{TxMetadata: true})
			if _, metadata, _ := s.Granted(); !metadata {
				t.Skip("skipped: ", xsk.ProbeTxMetadata())
			}
			c := w.listen()
			before, err := w.peer.Counters()
			must(t, err)
			for i, payload := range []string{"even", "odd", "\xff\xff\xff\xff"} {
				packet, pseudo := w.frame([]byte(payload))
				packet[checksumOfFull], packet[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
				d := w.place(firstTxFrame+i, packet)
				w.area.SetChecksum(&d, udpStart, udpChecksum)
				s.Transmit([]xsk.Desc{d})
				must(t, s.Kick())
				buf := make([]byte, 100)
				n, err := c.Read(buf)
				must(t, err)
				if string(buf[:n]) != payload {
					t.Errorf("peer got %q, want %q", buf[:n], payload)
				}
			}
			after, err := w.peer.Counters()
			must(t, err)
			if n := after.Sub(before)["UdpInCsumErrors"]; n != 0 {
				t.Errorf("%d checksum errors", n)
			}
		})
	}
}

// TestPartialChecksumWithoutMetadataIsRefusedByThePeer is the control of the
// test above: the peer does look at checksums.
func TestPartialChecksumWithoutMetadataIsRefusedByThePeer(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	w.listen()
	before, err := w.peer.Counters()
	must(t, err)
	packet, pseudo := w.frame([]byte("partial"))
	packet[checksumOfFull], packet[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
	s.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)})
	must(t, s.Kick())
	eventually(t, "a checksum error", func() bool {
		after, err := w.peer.Counters()
		must(t, err)
		return after.Sub(before)["UdpInCsumErrors"] == 1
	})
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

func TestPacketsOfSeveralBuffers(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{MTU: 9000})
	s := w.open(xsk.Config{MultiBuffer: true, TxMetadata: true})
	_, metadata, multiBuffer := s.Granted()
	if !multiBuffer || !metadata {
		t.Skip("skipped: ", xsk.ProbeMultiBuffer(), "; ", xsk.ProbeTxMetadata())
	}
	c := w.listen()
	payload := make([]byte, 8900)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	_, err := c.WriteToUDPAddrPort(payload, nodePort)
	must(t, err)
	in := receive(t, s)
	var packet []byte
	for i, d := range in {
		packet = append(packet, w.area.Data(d)...)
		if last := i == len(in)-1; (d.Options&xsk.Continued == 0) != last {
			t.Errorf("buffer %d of %d: options %#x", i, len(in), d.Options)
		}
	}
	if len(in) != 3 || !bytes.Equal(packet[udpStart+8:], payload) {
		t.Fatalf("received %d buffers of %d bytes", len(in), len(packet))
	}

	// Sent back in the same buffers, the checksum to be completed.
	head, pseudo := w.frame(payload)
	copy(w.area.Data(in[0]), head)
	data := w.area.Data(in[0])
	data[checksumOfFull], data[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
	w.area.SetChecksum(&in[0], udpStart, udpChecksum)
	if n := s.Transmit(in); n != len(in) {
		t.Fatalf("transmit ring took %d of %d buffers", n, len(in))
	}
	must(t, s.Kick())
	buf := make([]byte, 10000)
	n, err := c.Read(buf)
	must(t, err)
	if !bytes.Equal(buf[:n], payload) {
		t.Errorf("peer got %d bytes, not those sent", n)
	}
	complete(t, s, len(in))
}

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
		s, err := xsk.Open(w.area, xsk.Config{IfIndex: w.dev.Index})
		must(t, err)
		must(t, s.Close())
		must(t, s.Close()) // a second time does nothing
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 2})
	w.open(xsk.Config{})
	other, err := xsk.NewArea(64, 0)
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
		"shared with none of this area":  {xsk.Config{IfIndex: w.dev.Index, ShareWith: &xsk.Socket{}}, nil},
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
	s, err := xsk.Open(w.area, xsk.Config{IfIndex: w.dev.Index})
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

func TestDeviceQueuesSayWhichAreBound(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 3})
	w.open(xsk.Config{Queue: 1})
	queues, err := xsk.DeviceQueues(w.dev.Index)
	if errors.Is(err, xsk.ErrNoNetdevFamily) {
		t.Skip("skipped: ", err)
	}
	must(t, err)
	want := []xsk.Queue{{ID: 0}, {ID: 1, Bound: true}, {ID: 2}}
	if !slices.Equal(queues, want) {
		t.Errorf("queues %v, want %v", queues, want)
	}
}

func TestDeviceFeaturesOfAVeth(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	f, err := xsk.DeviceFeatures(w.dev.Index)
	if errors.Is(err, xsk.ErrNoNetdevFamily) {
		t.Skip("skipped: ", err)
	}
	must(t, err)
	if !f.Native() || !f.MultiBuffer() || f.ZeroCopy() || f.TxChecksum() {
		t.Errorf("features %+v", f)
	}
	if _, err := xsk.DeviceFeatures(9999); !errors.Is(err, unix.ENODEV) {
		t.Errorf("features of no interface: %v", err)
	}
}

func TestProbesAgreeWithTheirKernel(t *testing.T) {
	newWire(t, netlab.LinkConfig{})
	for _, p := range []xsk.Probe{
		xsk.ProbeSocket(), xsk.ProbeTxMetadata(), xsk.ProbeMultiBuffer(), xsk.ProbeNetdevFeatures(),
	} {
		t.Log(p)
		if p.Name == "" || p.Kernel == "" || p.Without == "" {
			t.Errorf("%+v says too little", p)
		}
		if !p.OK() && kernelAtLeast(t, p.Kernel) {
			t.Errorf("%s, but this kernel should have it", p)
		}
	}
}

// kernelAtLeast compares the running kernel with the version that text begins
// with. Only tests go by versions: they must notice a probe that is wrong.
func kernelAtLeast(t testing.TB, text string) bool {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var have, want [2]int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &have[0], &have[1])
	must(t, err)
	_, err = fmt.Sscanf(text, "%d.%d", &want[0], &want[1])
	must(t, err)
	return slices.Compare(have[:], want[:]) >= 0
}

func TestNothingIsAllocatedPerBatch(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{TxMetadata: true})
	packet, _ := w.frame([]byte("round"))
	d := w.place(firstTxFrame, packet)
	descs, addrs := make([]xsk.Desc, 64), make([]uint64, 64)
	if n := testing.AllocsPerRun(100, func() {
		s.Receive(descs)
		s.Transmit([]xsk.Desc{d})
		s.Kick()
		s.Fill(addrs[:s.Complete(addrs)][:0])
		s.WakeRx()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
