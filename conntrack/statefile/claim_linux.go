package statefile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Claim is a name of the network namespace that no other process of root or of this user has. It
// ends with the process.
type Claim struct {
	listener *net.UnixListener // nil: it keeps out nobody
	ended    chan struct{}
}

// ErrClaimed is the error of NewClaim when another process has the name.
var ErrClaimed = errors.New("claimed by another process")

// NewClaim takes a name in the network namespace of the calling thread. Any user may have taken the
// name, and must not keep Weir from its start: then there is a Claim that keeps out nobody.
func NewClaim(name string) (*Claim, error) {
	at := "@" + name // an abstract name
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
	if errors.Is(err, unix.EADDRINUSE) {
		l, err = nil, holder(&unix.SockaddrUnix{Name: at})
	}
	if err != nil {
		return nil, fmt.Errorf("name %s: %w", name, err)
	}
	c := &Claim{l, make(chan struct{})}
	go c.answer()
	return c, nil
}

// answer ends the connections of processes that look who has the name: as many as wait at most
// would make the next one believe that nobody has it.
func (c *Claim) answer() {
	defer close(c.ended)
	for c.listener != nil {
		conn, err := c.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(100 * time.Millisecond) // no descriptor is free
		default:
			_ = conn.Close()
		}
	}
}

// holder is ErrClaimed with the process if the one that has the name is of root or of this user.
func holder(at *unix.SockaddrUnix) error {
	const flags = unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	const attempts = 20 // it may not listen yet, or not have answered others
	for range attempts {
		fd, err := unix.Socket(unix.AF_UNIX, flags, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		var by *unix.Ucred
		if err = unix.Connect(fd, at); err == nil {
			by, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		}
		_ = unix.Close(fd)
		switch {
		case err == nil && (by.Uid == 0 || int(by.Uid) == os.Geteuid()):
			return fmt.Errorf("%w (%d)", ErrClaimed, by.Pid)
		case !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN):
			return nil // a socket of another kind, or of another user
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// Close gives the name up.
func (c *Claim) Close() error {
	if c == nil || c.listener == nil {
		return nil
	}
	err := c.listener.Close()
	<-c.ended
	return err
}
