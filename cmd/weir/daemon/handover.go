package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/conntrack"
)

// A handover is a restart in which the next process is ready before the last one leaves. Both
// talk over a socket beside the admin socket, in lines of JSON:
//
//	next: hello{version, layout}    last: hello, or an error
//	next reads its configuration, learns the Services and has the kernel verify the program
//	next: take                      last leaves everything in place, closes sockets and locks
//	                                last: left
//	next opens all, attaches        last waits
//	next: serving                   last ends
//
// Until take the last process serves as if the next did not exist. If the next process ends
// between take and serving, the last one executes its own program again, which takes
// everything back as after a crash.
type handoverMessage struct {
	Say     string `json:"say"`
	Version string `json:"version,omitempty"`
	Layout  int    `json:"layout,omitempty"` // of the flow table
	Error   string `json:"error,omitempty"`
}

// Messages of a handover.
const (
	sayHello   = "hello"
	sayTake    = "take"
	sayLeft    = "left"
	sayServing = "serving"
)

// handoverSocket is the socket of handovers.
func handoverSocket(admin string) string { return admin + "-handover" }

const (
	// viewTime is the time in which the next process must have the first view of Services.
	viewTime = time.Minute
	// takeTime is the time in which the next process must serve after it has taken over.
	takeTime = 30 * time.Second
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

// hear waits for a message, which must be say.
func (p *peer) hear(say string) (m handoverMessage, err error) {
	line, err := p.in.ReadSlice('\n')
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

// pid is the process ID of the other process.
func (p *peer) pid() (pid int, err error) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	e := raw.Control(func(fd uintptr) {
		var c *unix.Ucred
		if c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	return pid, errors.Join(err, e)
}

// meetLast greets the process that runs, for a handover; nil without such a process.
func (d *Daemon) meetLast() (*peer, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: handoverSocket(d.cfg.Admin.Socket), Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		d.log.Warn("handover: no Weir runs here, this is a start as any other")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	p := newPeer(c)
	err = p.say(handoverMessage{Say: sayHello, Version: version.Get().Version, Layout: conntrack.LayoutVersion()})
	if err == nil {
		_, err = p.hear(sayHello)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handover: the running Weir goes on: %w", err), c.Close())
	}
	return p, nil
}

// takeOver has the last process leave, after all has been made ready that can be beside it.
func (d *Daemon) takeOver(ctx context.Context, last *peer) error {
	if err := d.prepared(ctx); err != nil {
		return fmt.Errorf("handover: the running Weir goes on: %w", err)
	}
	d.log.Info("handover: taking over")
	err := last.say(handoverMessage{Say: sayTake})
	if err == nil {
		_, err = last.hear(sayLeft)
	}
	if err != nil {
		return fmt.Errorf("handover: %w", err)
	}
	return nil
}

// prepared does all that a start may fail by, as far as that can be done beside a process
// that serves.
func (d *Daemon) prepared(ctx context.Context) error {
	if err := d.verify(); err != nil {
		return err
	}
	timer := time.NewTimer(viewTime)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("no full view of Services from %s within %v", d.source, viewTime)
	case <-d.viewed:
		return nil
	}
}

// followHandover answers processes that want to take over.
func (d *Daemon) followHandover(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return err // ctx has ended
		}
		next := newPeer(c.(*net.UnixConn))
		err = d.meetNext(ctx, next)
		if err == nil {
			return nil
		}
		d.log.Warn("handover: ended before this process has left, which goes on", "err", err)
		_ = c.Close()
	}
}

// meetNext returns nil when the next process takes over.
func (d *Daemon) meetNext(ctx context.Context, next *peer) error {
	stop := context.AfterFunc(ctx, func() { next.conn.Close() })
	defer stop()
	hello, err := next.hear(sayHello)
	if err != nil {
		return err
	}
	if err := d.mayHandOver(&hello); err != nil {
		return errors.Join(err, next.say(handoverMessage{Error: err.Error()}))
	}
	d.log.Info("handover: another process makes ready", "version", hello.Version)
	if err := next.say(handoverMessage{Say: sayHello, Version: version.Get().Version, Layout: conntrack.LayoutVersion()}); err != nil {
		return err
	}
	if _, err := next.hear(sayTake); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	d.log.Info("handover: leaving for the next process")
	d.next.Store(next)
	d.leaving.Store(true)
	d.stop(nil)
	return nil
}

// mayHandOver says why a process cannot take over from this one.
func (d *Daemon) mayHandOver(hello *handoverMessage) error {
	switch {
	case hello.Layout != conntrack.LayoutVersion():
		return fmt.Errorf("the flow table has layout %d, and %d in the next process: "+
			"connections would be lost, stop and start Weir if that is meant", conntrack.LayoutVersion(), hello.Layout)
	case d.draining.Load() != nil:
		return errors.New("it drains")
	case !d.serving():
		return errors.New("it does not serve yet")
	}
	return nil
}

// handOver waits, after this process has given everything up, until the next one serves. If
// that fails this program is executed again.
func (d *Daemon) handOver(next *peer) error {
	defer next.conn.Close()
	err := next.say(handoverMessage{Say: sayLeft})
	if err == nil {
		if err = next.conn.SetReadDeadline(time.Now().Add(takeTime)); err == nil {
			_, err = next.hear(sayServing)
		}
	}
	pid, e := next.pid()
	if err == nil {
		if e == nil {
			d.notify.Successor(pid)
		}
		d.log.Info("handover: the next process serves", "pid", pid)
		return nil
	}
	d.log.Error("handover: the next process has failed, this one starts again", "err", err)
	if errors.Is(err, os.ErrDeadlineExceeded) && e == nil {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have the sockets
	}
	return restart()
}

// restart executes this program again, in this process.
func restart() error {
	args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool { return a == "--handover" })
	return fmt.Errorf("start again: %w", unix.Exec("/proc/self/exe", args, os.Environ()))
}

// listenHandover opens the socket of handovers. Without it there are none.
func listenHandover(admin string, log *slog.Logger) net.Listener {
	l, err := api.Listen(handoverSocket(admin))
	if err != nil {
		log.Warn("handover: no other process can take over from this one", "err", err)
		return nil
	}
	return l
}
