package hostveth

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// rig is the standard topology with a host veth on its edge node and a raw
// socket in the place of the packet loop.
type rig struct {
	testing.TB
	*netlab.Edge
	dir    string
	log    bytes.Buffer
	before netlab.State
	veth   *Veth
	wire   *os.File // frames of weir-xdp
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRig(t testing.TB) *rig {
	t.Helper()
	labtest.Require(t)
	edge, err := netlab.NewEdge(netlab.EdgeConfig{})
	must(t, err)
	t.Cleanup(func() { must(t, edge.Lab.Close()) })
	r := &rig{TB: t, Edge: edge, dir: t.TempDir()}
	r.settle()
	r.before, err = netlab.StateOf(edge.Edge)
	must(t, err)
	return r
}

// settle waits until the node's addresses have passed duplicate detection: what
// comes of it is not the host veth's doing.
func (r *rig) settle() {
	r.Helper()
	deadline := time.Now().Add(patience.For(10 * time.Second))
	for {
		addrs, err := r.Edge.Edge.Netlink().AddrList(nil, netlink.FAMILY_V6)
		must(r, err)
		tentative := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
		if !tentative {
			return
		}
		if time.Now().After(deadline) {
			r.Fatal("addresses stay tentative")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) config() Config {
	return Config{
		Prefix4: netip.MustParsePrefix("169.254.77.0/24"), Prefix6: netip.MustParsePrefix("fd77:7765:6972::/64"),
		Mark: 0x10, Table: 7765,
		Queues: 2, MTU: 1500, StateDir: r.dir, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
}

// do runs f in the edge node's namespace.
func (r *rig) do(f func() error) {
	r.Helper()
	must(r, r.Edge.Edge.Do(f))
}

func (r *rig) open() {
	r.Helper()
	r.do(func() (err error) {
		r.veth, err = Open(r.config())
		return err
	})
	r.Cleanup(func() {
		if r.veth != nil {
			r.veth.reconciler.stop()
		}
	})
	for _, name := range []string{"cni0", "vxlan0"} {
		l, err := r.Edge.Edge.Interface(name)
		must(r, err)
		r.do(func() error { return r.veth.EnableForwarding(l.Attrs().Index) })
	}
	r.tap()
}

// tap opens the raw socket.
func (r *rig) tap() {
	r.Helper()
	r.do(func() error {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, all)
		if err != nil {
			return err
		}
		r.wire = os.NewFile(uintptr(fd), "weir-xdp")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: r.veth.Index()})
	})
	r.Cleanup(func() { r.wire.Close() })
}

// close ends the host veth and checks that the node is as it was.
func (r *rig) close() {
	r.Helper()
	r.do(r.veth.Close)
	r.veth = nil
	r.unchanged()
}

func (r *rig) unchanged() {
	r.Helper()
	after, err := netlab.StateOf(r.Edge.Edge)
	must(r, err)
	if left := r.before.Diff(after); len(left) > 0 {
		r.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) > 0 {
		r.Errorf("state directory: %v %v", entries, err)
	}
}

// echo answers datagrams in a namespace, upper-case, and tells who asked.
func echo(t testing.TB, n *netlab.Namespace, addr netip.AddrPort) <-chan netip.Addr {
	t.Helper()
	c, err := n.ListenPacket("udp", addr.String())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	clients := make(chan netip.Addr, 16)
	go func() {
		buf := make([]byte, 2048)
		for {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			clients <- from.(*net.UDPAddr).AddrPort().Addr().Unmap()
			_, _ = c.WriteTo(bytes.ToUpper(buf[:size]), from)
		}
	}()
	return clients
}

// send puts a UDP packet on the wire as the packet loop does.
func (r *rig) send(src, dst netip.AddrPort, payload string) {
	r.Helper()
	r.sendFrom(r.veth.MAC(), src, dst, payload)
}

func (r *rig) sendFrom(own [6]byte, src, dst netip.AddrPort, payload string) {
	r.Helper()
	peer := r.veth.PeerMAC()
	eth := &layers.Ethernet{SrcMAC: own[:], DstMAC: peer[:], EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	var ip gopacket.SerializableLayer
	if src.Addr().Is4() {
		l := &layers.IPv4{Version: 4, TTL: 63, Protocol: layers.IPProtocolUDP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		must(r, udp.SetNetworkLayerForChecksum(l))
		ip = l
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		l := &layers.IPv6{Version: 6, HopLimit: 63, NextHeader: layers.IPProtocolUDP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		must(r, udp.SetNetworkLayerForChecksum(l))
		ip = l
	}
	buf := gopacket.NewSerializeBuffer()
	must(r, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, ip, udp, gopacket.Payload(payload)))
	_, err := r.wire.Write(buf.Bytes())
	must(r, err)
}

// receive waits for a UDP packet to dst from the kernel; ok is false when
// none came.
func (r *rig) receive(dst netip.AddrPort, within time.Duration) (src netip.AddrPort, payload string, ok bool) {
	r.Helper()
	must(r, r.wire.SetReadDeadline(time.Now().Add(within)))
	buf := make([]byte, 65536)
	for {
		n, err := r.wire.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return src, "", false
		}
		must(r, err)
		p := gopacket.NewPacket(buf[:n], layers.LayerTypeEthernet, gopacket.Default)
		udp, isUDP := p.TransportLayer().(*layers.UDP)
		if !isUDP || uint16(udp.DstPort) != dst.Port() {
			continue
		}
		flow := p.NetworkLayer().NetworkFlow()
		from, _ := netip.AddrFromSlice(flow.Src().Raw())
		to, _ := netip.AddrFromSlice(flow.Dst().Raw())
		mac := r.veth.MAC()
		if to != dst.Addr() || !bytes.Equal(p.LinkLayer().LinkFlow().Dst().Raw(), mac[:]) {
			continue
		}
		return netip.AddrPortFrom(from, uint16(udp.SrcPort)), string(udp.Payload), true
	}
}

var answerWithin = patience.For(5 * time.Second)

// exchange asks dst from src and checks the answer.
func (r *rig) exchange(src, dst netip.AddrPort) {
	r.Helper()
	r.send(src, dst, "hello")
	from, payload, ok := r.receive(src, answerWithin)
	if !ok || from != dst || payload != "HELLO" {
		r.Fatalf("%s asked from %s: answer %q from %s", dst, src, payload, from)
	}
}
