package prober

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// connects are connections by TCP that have begun. All of them begin, and are looked at, together: a probe
// that waits for its own answer wakes threads, which costs the process several times the connection. Sockets
// are used again, as a socket costs half of what a connection does. It is for one goroutine at a time.
type connects struct {
	polled []unix.PollFd
	begun  []begun  // by the index in polled
	free   [2][]int // sockets of IPv4 and of IPv6 without a connection
}

type begun struct {
	t  *target
	at time.Time
}

// maxFree is the number of sockets of a family that are kept without a connection.
const maxFree = burst

func (c *connects) empty() bool { return len(c.begun) == 0 }

// socket is a socket for a target's family.
func (c *connects) socket(family int) (fd int, err error) {
	free := &c.free[family]
	if n := len(*free); n > 0 {
		fd, *free = (*free)[n-1], (*free)[:n-1]
		return fd, nil
	}
	return rawSocket(family)
}

// release ends the connection of a socket with a RST: the endpoint keeps no state of it, and the node no port.
func (c *connects) release(fd, family int) {
	if err := rawDisconnect(fd); err != nil || len(c.free[family]) == maxFree {
		_ = rawClose(fd)
		return
	}
	c.free[family] = append(c.free[family], fd)
}

func familyOf(t *target) int {
	if t.At.Addr().Unmap().Is4() {
		return ipv4
	}
	return ipv6
}

// begin begins to connect to a target. An error is its outcome.
func (c *connects) begin(t *target, now time.Time) error {
	family := familyOf(t)
	fd, err := c.socket(family)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := rawConnect(fd, t.At); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		c.release(fd, family)
		return os.NewSyscallError("connect", err)
	}
	c.polled = append(c.polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT})
	c.begun = append(c.begun, begun{t, now})
	return nil
}

// collect calls end for connections whose outcome is known, or whose time is over, after their end. took is
// the time that a successful one took.
func (c *connects) collect(now time.Time, end func(t *target, err error, began time.Time, took time.Duration)) {
	if c.empty() {
		return
	}
	rawPoll(c.polled)
	kept := 0
	for i, b := range c.begun {
		p := c.polled[i]
		err, took := error(nil), now.Sub(b.at)
		switch {
		case p.Revents != 0:
			if err = outcome(int(p.Fd), p.Revents, b.t.At); err == nil {
				took = answered(int(p.Fd), took)
			}
		case took >= b.t.Check.Timeout:
			err = os.ErrDeadlineExceeded
		default:
			c.polled[kept], c.begun[kept] = p, b
			kept++
			continue
		}
		c.release(int(p.Fd), familyOf(b.t))
		end(b.t, err, b.at, took)
	}
	clear(c.begun[kept:])
	c.polled, c.begun = c.polled[:kept], c.begun[:kept]
}

// outcome is that of a connection with events. One that was reset after the handshake succeeded: the
// endpoint accepted it. Before, the kernel says "refused" (tcp_reset). A socket that was given the port of
// an endpoint of this node, where nothing listens, is connected with itself.
func outcome(fd int, events int16, to netip.AddrPort) error {
	if events&(unix.POLLERR|unix.POLLHUP) == 0 {
		if own, err := unix.Getsockname(fd); err == nil && isAt(own, to) {
			return os.NewSyscallError("connect", unix.ECONNREFUSED)
		}
		return nil
	}
	err := rawError(fd)
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return os.NewSyscallError("connect", err)
}

// isAt reports whether a socket's address is an address and port.
func isAt(own unix.Sockaddr, to netip.AddrPort) bool {
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		return own.Port == int(to.Port()) && netip.AddrFrom4(own.Addr) == to.Addr().Unmap()
	case *unix.SockaddrInet6:
		return own.Port == int(to.Port()) && netip.AddrFrom16(own.Addr) == to.Addr()
	}
	return false
}

// answered is the time that the handshake took, which the kernel knows where the first SYN was answered.
// took is until it was looked at.
func answered(fd int, took time.Duration) time.Duration {
	var i unix.TCPInfo
	if rawInfo(fd, &i) != nil || i.Total_retrans > 0 || i.Rtt == 0 {
		return took
	}
	return min(took, time.Duration(i.Rtt)*time.Microsecond)
}

// close ends the connections without an outcome, and the sockets.
func (c *connects) close() {
	for i, p := range c.polled {
		c.release(int(p.Fd), familyOf(c.begun[i].t))
	}
	for _, free := range c.free {
		for _, fd := range free {
			_ = rawClose(fd)
		}
	}
	*c = connects{}
}
