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
	conn  *net.UnixConn
	in    *bufio.Reader
	files []int // descriptors that have come and that nobody has taken
	// sockets says that the next process takes the AF_XDP sockets of this one.
	sockets bool
	// adopts is where the next process takes over announced routes.
	adopts *kernelTable
}

func newPeer(c *net.UnixConn) *peer {
	p := &peer{conn: c}
	p.in = bufio.NewReader(filesReader{p})
	return p
}

// maxFiles is SCM_MAX_FD, the largest number of descriptors that a message carries.
const maxFiles = 253

// filesReader reads from a peer, and keeps the descriptors that come.
type filesReader struct{ *peer }

func (r filesReader) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return max(n, 0), err
	}
	if n == 0 {
		return 0, io.EOF
	}
	if messages, e := unix.ParseSocketControlMessage(oob[:oobn]); e == nil {
		for i := range messages {
			if fds, e := unix.ParseUnixRights(&messages[i]); e == nil {
				r.files = append(r.files, fds...)
			}
		}
	}
	return n, nil
}

// takeFiles returns the descriptors that have come, which are the caller's from then on.
func (p *peer) takeFiles() (fds []int) {
	fds, p.files = p.files, nil
	return fds
}

// close closes the connection, and the descriptors that nobody has taken: a socket among them
// would hold a queue of an interface.
func (p *peer) close() {
	_ = p.conn.Close()
	closeFiles(p.takeFiles())
}

func closeFiles(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func (p *peer) say(m handoverMessage, files ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if len(files) == 0 {
		_, err = p.conn.Write(b)
		return err
	}
	n, _, err := p.conn.WriteMsgUnix(b, unix.UnixRights(files...), nil)
	if err == nil && n < len(b) {
		_, err = p.conn.Write(b[n:])
	}
	return err
}

// hear waits for a message, which must be say, until ctx ends or the time within has passed.
func (p *peer) hear(ctx context.Context, say string, within time.Duration) (m handoverMessage, err error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return m, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := p.in.ReadBytes('\n') // a message about many sockets is long
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
