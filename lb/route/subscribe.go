package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// subscription is the socket of the kernel's notifications. A single socket serves all
// kinds, so that their order is kept.
type subscription struct {
	file *os.File
	conn syscall.RawConn
	wake chan struct{} // cap 1: something is pending

	mu      sync.Mutex
	pending changes // guarded by mu
}

// changes are the kernel's notifications since they were last taken.
type changes struct {
	// tables: links, addresses, routes or rules are to be read again.
	tables bool
	// links: links are new, gone or changed; tables is true then.
	links bool
	// carriers are those of the links.
	carriers map[int]carrier
	// lost: notifications were lost, everything is to be read again.
	lost      bool
	neighbors []neighborChange
}

type neighborChange struct {
	key     neighborKey
	n       neighbor
	deleted bool
}

// maxPendingNeighbors bounds the memory that a watcher kept from running can
// take; beyond it a full reading is cheaper.
const maxPendingNeighbors = 1 << 16

func group(g uint) uint32 { return 1 << (g - 1) }

// subscribe opens the socket in the namespace. buffer is the size in bytes, as far as the
// kernel allows.
func subscribe(ns netns.NsHandle, buffer int) (*subscription, error) {
	var fd int
	err := inNamespace(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink subscription: %w", err)
	}
	// Forcing needs CAP_NET_ADMIN; without it the limit is rmem_max.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	groups := group(unix.RTNLGRP_LINK) | group(unix.RTNLGRP_NEIGH) |
		group(unix.RTNLGRP_IPV4_IFADDR) | group(unix.RTNLGRP_IPV6_IFADDR) |
		group(unix.RTNLGRP_IPV4_ROUTE) | group(unix.RTNLGRP_IPV6_ROUTE) |
		group(unix.RTNLGRP_IPV4_RULE) | group(unix.RTNLGRP_IPV6_RULE) | group(unix.RTNLGRP_NEXTHOP)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind netlink subscription: %w", err)
	}
	s := &subscription{file: os.NewFile(uintptr(fd), "netlink"), wake: make(chan struct{}, 1)}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("netlink subscription: %w", err)
	}
	return s, nil
}

// inNamespace runs f on a thread in the namespace; netns.None() is the
// caller's own.
func inNamespace(ns netns.NsHandle, f func() error) error {
	if !ns.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// run reads notifications until the socket is closed.
func (s *subscription) run() error {
	buf := make([]byte, 1<<17)
	for {
		n, from, err := s.receive(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, errShort):
			s.update(func(c *changes) { c.lost = true; c.neighbors = nil })
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("receive netlink notification: %w", err)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue // not the kernel
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			s.update(func(c *changes) { c.lost = true })
			continue
		}
		s.update(func(c *changes) { c.add(msgs) })
	}
}

func (s *subscription) receive(buf []byte) (n int, from unix.Sockaddr, err error) {
	var inner error
	var flags int
	err = s.conn.Read(func(fd uintptr) bool {
		n, _, flags, from, inner = unix.Recvmsg(int(fd), buf, nil, 0)
		return inner != unix.EAGAIN
	})
	if err = errors.Join(err, inner); err == nil && flags&unix.MSG_TRUNC != 0 {
		err = errShort
	}
	return n, from, err
}

func (s *subscription) update(f func(*changes)) {
	s.mu.Lock()
	f(&s.pending)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the pending changes.
func (s *subscription) take() changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.pending
	s.pending = changes{}
	return c
}

func (c *changes) add(msgs []syscall.NetlinkMessage) {
	for i := range msgs {
		m := &msgs[i]
		switch m.Header.Type {
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			k, n, ok := parseNeighbor(m.Data)
			if !ok || c.lost {
				continue
			}
			if len(c.neighbors) == maxPendingNeighbors {
				c.lost, c.neighbors = true, nil
				continue
			}
			c.neighbors = append(c.neighbors, neighborChange{k, n, m.Header.Type == unix.RTM_DELNEIGH})
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			c.tables, c.links = true, true
			c.addCarrier(m.Data)
		default:
			c.tables = true
		}
	}
}

func (s *subscription) close() error { return s.file.Close() }

// addCarrier takes over the carrier of an ifinfomsg.
func (c *changes) addCarrier(m []byte) {
	if len(m) < unix.SizeofIfInfomsg {
		return
	}
	if c.carriers == nil {
		c.carriers = make(map[int]carrier)
	}
	index, has := int(int32(u32(m[4:]))), running(binary.NativeEndian.Uint32(m[8:]))
	c.carriers[index] = carrier{lost: c.carriers[index].lost || !has, has: has}
}

// subscribers are told that something changed.
type subscribers struct {
	mu    sync.Mutex
	chans []chan struct{} // guarded by mu
}

func (s *subscribers) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chans {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (s *subscribers) add() <-chan struct{} {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chans = append(s.chans, c)
	return c
}
