package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Segments that neither end has sent pass between those of real connections, in the
// client's name, with any numbers, right and wrong checksums: the connections go on.
func TestWireConnectionsGoOnAmongForgedSegments(t *testing.T) {
	f := sharedFixture(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := workload.PingPong(c, "before", within); err != nil {
					t.Fatal(err)
				}
				from, to := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
				for _, flags := range [][]uint8{
					{header.RST}, {header.RST | header.ACK}, {header.RST, header.SYN}, {header.FIN | header.ACK}, {header.SYN},
					{header.FIN | header.ACK, header.RST, header.SYN}, {header.FIN | header.RST}, {header.SYN | header.RST},
				} {
					for _, wrong := range []bool{false, true} {
						for _, flag := range flags {
							inject(t, f.Client, from, to, flag, wrong)
						}
						if err := workload.PingPong(c, "after", within); err != nil {
							t.Fatalf("after segments with flags %#x, wrong checksums %v: %v", flags, wrong, err)
						}
					}
				}
			})
		})
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	p := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// inject sends a TCP segment with the given flags and any numbers from a namespace, past
// the kernel's TCP.
func inject(t *testing.T, n *netlab.Namespace, from, to netip.AddrPort, flags uint8, wrong bool) {
	t.Helper()
	b := make([]byte, header.TCPLen)
	binary.BigEndian.PutUint16(b[0:], from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], rand.Uint32())
	binary.BigEndian.PutUint32(b[8:], rand.Uint32())
	b[12], b[13] = header.TCPLen<<2, flags
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, header.ProtoTCP, 0, header.TCPLen)
	sum := header.Checksum(header.Sum(0, pseudo), b)
	if wrong {
		sum ^= 0x5500
	}
	binary.LittleEndian.PutUint16(b[16:], sum)
	err := n.Do(func() error {
		family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16()})
		if to.Addr().Is4() {
			family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: to.Addr().As4()}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, b, 0, sa)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Connections that ended while no Weir ran are in the table that the next one finds.
// They take nothing from the Service's limit; those that go on do once they are heard.
func TestWireConnectionsThatEndedUnseenDoNotCount(t *testing.T) {
	s := service{name: "limited", index: 24, endpoints: []endpoint{attached}, annotations: map[string]string{"weir.dev/max-connections": "3"}}
	f := ownFixture(t, options{services: []service{s}})
	dial := func() *net.TCPConn {
		t.Helper()
		c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, false).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := workload.PingPong(c, "hello", within); err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn)
	}
	lives := dial()
	gone := []*net.TCPConn{dial(), dial()}
	if err := f.weir.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, c := range gone {
		forget(t, c)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	if n := f.flows(t); n != 3 {
		t.Fatalf("%d flows are restored, want 3", n)
	}
	if err := workload.PingPong(lives, "after the restart", within); err != nil {
		t.Error(err)
	}
	dial()
	dial()
	// Now three are open: the SYN of a fourth is dropped.
	ctx, cancel := context.WithCancel(inTime(t, within))
	fourth := make(chan error, 1)
	go func() {
		_, err := f.Client.DialContext(ctx, "tcp", s.at(echoPort, false).String())
		fourth <- err
	}()
	if err := f.weir.Until(ctx, func(ctx context.Context) error {
		status, err := f.admin.Status(ctx)
		if err == nil && status.Drops["connection-limit"] == 0 {
			err = errors.New("no drop is counted")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if cancel(); <-fourth == nil {
		t.Error("a fourth connection was let in")
	}
}
