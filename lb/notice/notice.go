// Package notice tells whether the kernel has notified of a change of links, addresses or routes since
// the last question. It is for what is looked over at intervals: nothing wakes the process, and where
// nothing has changed a look costs a system call. What the kernel could not notify of counts as a change.
package notice

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notices are those of some groups of rtnetlink. Nil ones always report a change.
type Notices struct {
	fd  int
	buf [64]byte
}

// Open begins with notices of groups (unix.RTNLGRP_...), in the network namespace of the calling thread.
func Open(groups ...int) (*Notices, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("notices of the kernel: %w", err)
	}
	// What does not fit is lost, and reported as lost.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err == nil {
		for _, g := range groups {
			if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("notices of the kernel: %w", err)
	}
	return &Notices{fd: fd}, nil
}

// atOnce bounds the notices that are read for an answer: more may come than can be read.
const atOnce = 1024

// Changed reports whether there was a notice since the last call.
func (n *Notices) Changed() (changed bool) {
	if n == nil {
		return true
	}
	for range atOnce {
		// It does not wait: told of the call, the runtime would wake its monitor thread.
		_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(n.fd), uintptr(unsafe.Pointer(&n.buf)), unsafe.Sizeof(n.buf))
		if errno == unix.EAGAIN {
			return changed
		}
		changed = true
	}
	return changed
}

// Close ends the notices.
func (n *Notices) Close() {
	if n != nil {
		_ = unix.Close(n.fd)
	}
}
