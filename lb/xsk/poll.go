package xsk

import "golang.org/x/sys/unix"

// Poller waits for packets on several sockets at once: for a worker whose rings have been
// empty for a while.
type Poller struct {
	fds []unix.PollFd
}

// NewPoller returns a Poller of sockets, and of other file descriptors that
// are to end the wait when they become readable, such as an eventfd by which
// another goroutine wakes the worker.
func NewPoller(sockets []*Socket, others ...int) *Poller {
	p := &Poller{fds: make([]unix.PollFd, 0, len(sockets)+len(others))}
	for _, s := range sockets {
		p.fds = append(p.fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	for _, fd := range others {
		p.fds = append(p.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return p
}

// Wait blocks until something is readable or timeout milliseconds have passed
// (-1: forever), and returns how many descriptors are ready. It also makes the kernel send
// the packets on the transmit rings, and take frames off the fill
// rings. An interrupted wait returns 0.
func (p *Poller) Wait(timeout int) (int, error) {
	n, err := unix.Poll(p.fds, timeout)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// Ready reports whether descriptor i, counted through the sockets and then the
// others, was readable (or in error) after the last Wait.
func (p *Poller) Ready(i int) bool { return p.fds[i].Revents != 0 }
