package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/sdnotify"
)

// peer is the other process of a handover.
type peer struct {
	conn *net.UnixConn
	in   *bufio.Reader
}

func newPeer(c *net.UnixConn) *peer { return &peer{c, bufio.NewReader(c)} }

func (p *peer) say(m handoverMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = p.conn.Write(append(b, '\n'))
	return err
}

// hear waits for a message, which must be say, until ctx ends or the time within has passed.
func (p *peer) hear(ctx context.Context, say string, within time.Duration) (m handoverMessage, err error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return m, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := p.in.ReadSlice('\n')
	if ctx.Err() != nil {
		return m, context.Cause(ctx)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, err
	}
	switch {
	case m.Error != "":
		return m, errors.New(m.Error)
	case m.Say != say:
		return m, fmt.Errorf("%q where %q was expected", m.Say, say)
	}
	return m, nil
}

// isGone reports whether an error of say or hear means that the other process has closed the
// connection or has ended.
func isGone(err error) bool {
	for _, e := range []error{io.EOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// process is the other process as the kernel knows it.
type process struct {
	pid int
	fd  int // a pidfd, -1 without
}

// process returns the process that has connected. On error the result has neither number nor
// descriptor.
func (p *peer) process() (other process, err error) {
	other = process{fd: -1}
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return other, err
	}
	var c *unix.Ucred
	if e := raw.Control(func(fd uintptr) { c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return other, errors.Join(e, err)
	}
	if c.Pid <= 0 {
		return other, errors.New("it is not in this PID namespace")
	}
	fd, err := unix.PidfdOpen(int(c.Pid), 0)
	if err != nil {
		return other, os.NewSyscallError("pidfd_open", err)
	}
	return process{int(c.Pid), fd}, nil
}

// succeeds tells the service manager that the process is the service from now on.
func (p process) succeeds(n *sdnotify.Notifier) {
	if p.fd >= 0 {
		n.Successor(p.pid)
	}
}

// endTime is the time in which a process that has failed must be gone.
const endTime = 3 * time.Second

// end waits until the process is gone, which has sockets and locks up to then. It is killed
// first if kill.
func (p process) end(kill bool) {
	if p.fd < 0 {
		return
	}
	if kill {
		_ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0)
	}
	deadline := time.Now().Add(endTime)
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(max(left, 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) || n > 0 || left <= 0 {
			return
		}
	}
}
