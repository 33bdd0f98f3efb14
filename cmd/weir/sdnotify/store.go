package sdnotify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// The service manager keeps descriptors from one process of a service to the next, where the unit
// allows it (FileDescriptorStoreMax=): see "File Descriptor Store" in systemd.exec(5) and
// sd_pid_notify_with_fds(3).

// storedName begins the names of stored descriptors; a number follows, by which they are sorted.
const storedName = "weir-socket-"

// barrierTime is the time in which the service manager must have read what it was sent.
const barrierTime = 2 * time.Second

// maxDescription is the greatest size of a description in bytes.
const maxDescription = 1 << 20

// Store has the service manager keep copies of descriptors for the next process, which gets them
// by Stored, with a description. It does nothing without a service manager.
func (n *Notifier) Store(description []byte, fds []int) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	text, err := memoryFile(description)
	if err != nil {
		return err
	}
	defer text.Close()
	c, err := dial(name)
	if err != nil {
		return err
	}
	defer c.close()
	for i, fd := range append([]int{int(text.Fd())}, fds...) {
		// FDPOLL=0: a poll of an AF_XDP socket wakes its driver.
		if err := c.send(fmt.Sprintf("FDSTORE=1\nFDPOLL=0\nFDNAME=%s%04d", storedName, i), fd); err != nil {
			return err
		}
	}
	return c.barrier()
}

// Stored returns what the last process of the service has stored, nil for nothing, and has the
// service manager forget it: after a crash of this process nobody knows the state of a socket.
func Stored() (description []byte, fds []int, err error) {
	var list []*os.File
	for _, f := range activation.Files(true) {
		if !strings.HasPrefix(f.Name(), storedName) {
			err = errors.Join(err, f.Close())
			continue
		}
		list = append(list, f)
	}
	if len(list) == 0 {
		return nil, nil, err
	}
	defer func() {
		for _, f := range list {
			err = errors.Join(err, f.Close())
		}
	}()
	slices.SortFunc(list, func(a, b *os.File) int { return strings.Compare(a.Name(), b.Name()) })
	if err := forget(list); err != nil {
		return nil, nil, err
	}
	b := make([]byte, maxDescription)
	size, err := unix.Pread(int(list[0].Fd()), b, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("description of stored descriptors: %w", err)
	}
	for _, f := range list[1:] {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return nil, nil, err
		}
		fds = append(fds, fd)
	}
	return bytes.Clone(b[:size]), fds, nil
}

// forget has the service manager close its copies. When it returns they are closed: a socket that
// this process closes would else go on to hold the queue.
func forget(list []*os.File) error {
	c, err := dial(os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer c.close()
	for _, f := range list {
		if err := c.send("FDSTOREREMOVE=1\nFDNAME=" + f.Name()); err != nil {
			return err
		}
	}
	return c.barrier()
}

// managerSocket is a socket to the service manager. A connected socket of package net carries no
// descriptors.
type managerSocket struct {
	fd int
	to unix.SockaddrUnix
}

func dial(name string) (*managerSocket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &managerSocket{fd, unix.SockaddrUnix{Name: name}}, nil // a leading @ is that of an abstract name
}

func (m *managerSocket) close() { _ = unix.Close(m.fd) }

// send sends a message with descriptors.
func (m *managerSocket) send(text string, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(m.fd, []byte(text), oob, &m.to, 0); err != nil {
		return fmt.Errorf("tell the service manager %q: %w", strings.ReplaceAll(text, "\n", " "), err)
	}
	return nil
}

// barrier waits until the service manager has read all earlier messages: it closes the descriptor
// that comes with BARRIER=1 (systemd 246).
func (m *managerSocket) barrier() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = m.send("BARRIER=1", int(w.Fd()))
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(barrierTime)); err != nil {
		return err
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service manager does not answer within %v", barrierTime)
	}
	return nil
}

// memoryFile is a file in memory with the contents b.
func memoryFile(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("weir-sockets", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "weir-sockets")
	if _, err := f.Write(b); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
