package statefile

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Claim is a name of the network namespace that no other process of root or of this user has. It
// ends with the process.
type Claim struct{ fd int }

// ErrClaimed is the error of NewClaim when another process has the name.
var ErrClaimed = errors.New("claimed by another process")

// NewClaim takes a name in the network namespace of the calling thread. Any user may have taken the
// name, and must not keep Weir from its start: then there is a Claim that keeps out nobody.
func NewClaim(name string) (*Claim, error) {
	const flags = unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_UNIX, flags, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &Claim{fd}
	at := &unix.SockaddrUnix{Name: "@" + name} // an abstract name
	if err = unix.Bind(fd, at); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	} else if errors.Is(err, unix.EADDRINUSE) {
		err = holder(at, flags)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("name %s: %w", name, err), c.Close())
	}
	return c, nil
}

// holder is ErrClaimed with the process if the one that has the name is of root or of this user.
func holder(at *unix.SockaddrUnix, flags int) error {
	const attempts = 20 // it may not listen yet
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
		case !errors.Is(err, unix.ECONNREFUSED):
			return nil // a socket of another kind, or of another user
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// Close gives the name up.
func (c *Claim) Close() error {
	if c == nil {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(c.fd))
}
