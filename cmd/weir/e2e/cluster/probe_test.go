package cluster

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// probes are UDP packets to a node port, each a flow of its own, and what
// arrives of them at the endpoints. No endpoint answers: what counts is where
// a packet was sent, and when it came there.
type probes struct {
	t    *testing.T
	raw  int // the client's raw socket
	node netip.Addr
	next uint32

	mu       sync.Mutex
	arrivals []arrival
}

// arrival is a probe at an endpoint.
type arrival struct {
	at       time.Time
	endpoint netip.Addr
	frontend uint16 // the node port that the probe was sent to
}

const (
	probePort     = 9000 // of every endpoint
	probeInterval = 500 * time.Microsecond
	probeSize     = 20 + 8 + 8
)

// newProbes makes the node node-a hold every address of prefix, and the edge
// node send them there.
func newProbes(f *fixture, prefix netip.Prefix) *probes {
	p := &probes{t: f.t, node: netlab.Host4(netlab.ClientNet, 1)}
	err := f.Edge.Edge.AddRoute("eth1", prefix, netlab.Host4(netlab.FabricNet, 11))
	if lo, e := f.ZoneA.Interface("lo"); err == nil && e == nil {
		err = f.ZoneA.Netlink().RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
			Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)},
		})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	p.receive(f.ZoneA)
	err = f.Edge.Client.Do(func() (err error) {
		p.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { unix.Close(p.raw) })
	return p
}

// receive notes what arrives until the test ends.
func (p *probes) receive(ns *netlab.Namespace) {
	pc, err := ns.ListenPacket("udp4", "0.0.0.0:9000")
	if err != nil {
		p.t.Fatal(err)
	}
	conn := pc.(*net.UDPConn)
	p.t.Cleanup(func() { conn.Close() })
	rc, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		b, oob := make([]byte, 64), make([]byte, 64)
		for {
			n, on, _, _, err := conn.ReadMsgUDPAddrPort(b, oob)
			if err != nil {
				return
			}
			now := time.Now()
			if to, ok := destination(oob[:on]); ok && n >= 2 {
				p.mu.Lock()
				p.arrivals = append(p.arrivals, arrival{now, to, binary.BigEndian.Uint16(b)})
				p.mu.Unlock()
			}
		}
	}()
}

// destination is the address that a packet was sent to (IP_PKTINFO, ip(7)).
func destination(oob []byte) (netip.Addr, bool) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo {
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0]))
			return netip.AddrFrom4(info.Addr), true
		}
	}
	return netip.Addr{}, false
}

// send sends one probe. Its source address and port are not used again for
// four million probes.
func (p *probes) send(frontend uint16) {
	p.next++
	b := make([]byte, probeSize)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP // the kernel fills in the rest
	src := [4]byte{10, 10, 0, byte(16 + p.next>>16%64)}
	copy(b[12:], src[:])
	dst := p.node.As4()
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[20:], uint16(p.next)|1024) // unprivileged
	binary.BigEndian.PutUint16(b[22:], frontend)
	binary.BigEndian.PutUint16(b[24:], 8+8) // no checksum
	binary.BigEndian.PutUint16(b[28:], frontend)
	if err := unix.Sendto(p.raw, b, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
		p.t.Errorf("send a probe: %v", err)
	}
}

// take returns what has arrived since the last call.
func (p *probes) take() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.arrivals
	p.arrivals = nil
	return a
}
