package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy means that another process serves the socket.
var ErrBusy = errors.New("another Weir is running")

// Listen makes the socket path, mode 0600. The socket of a process that is gone is
// replaced; a socket that answers is ErrBusy. Missing directories are
// created.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// Two Weirs that start at once must not take each other's new socket
	// for a stale one: the directory's lock leaves no file behind.
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("admin socket: lock %s: %w", dir, err)
	}
	if err := RemoveStale(path); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// The mode of a socket's inode before bind(2) becomes the mode of the
	// file: there is no moment at which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return l, nil
}

// RemoveStale removes the socket of a process that has ended. It fails with ErrBusy while a process listens
// there.
func RemoveStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		defer c.Close()
		return fmt.Errorf("%w%s on %s", ErrBusy, peerPID(c), path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w? %s: %w", ErrBusy, path, err)
	}
	return os.Remove(path)
}

// peerPID is " (pid N)" of the process at the other end, or "".
func peerPID(c net.Conn) string {
	p, err := peerOf(c)
	if err != nil || p.pid == 0 { // 0: of another PID namespace
		return ""
	}
	return fmt.Sprintf(" (pid %d)", p.pid)
}

// Process opens the process that serves a socket, to be waited for: it ends some time after the socket is
// closed. The file is readable when it has ended (pidfd_open(2)), and nil where the process is not known.
func Process(path string) *os.File {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil
	}
	defer c.Close()
	p, err := peerOf(c)
	if err != nil || p.pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(int(p.pid), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "process")
}
