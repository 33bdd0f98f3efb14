package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/tuning"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/xsk"
)

// A handover is a restart in which the next process is ready before the last one leaves. Both
// talk over a socket beside the admin socket, in lines of JSON:
//
//	next: hello{version, layout, copies}
//	                                last: hello, or an error; the last known state is saved
//	next reads its configuration, learns the Services, has the kernel verify the program, maps
//	the flow table and looks at the host veth
//	next: take                      last leaves everything in place, and closes locks
//	                                last: left, with sockets and packet memory
//	next opens all, attaches        last waits
//	next: serving                   last ends
//
// The sockets stay bound on their way (SCM_RIGHTS), and packets wait in them: none is lost.
// A process that knows no such sockets, or has other interfaces, workers or frames, opens its
// own, and packets are lost meanwhile.
//
// Until take the last process serves as if the next did not exist. If the next process ends
// between take and serving, the last one executes its own program again with the
// configuration that it had, and takes everything back as after a crash: also a flow table that
// the next process has made, of its layout. If the last process
// ends before left, the next one goes on as after a crash.
type handoverMessage struct {
	Say     string `json:"say"`
	Version string `json:"version,omitempty"`
	Layout  int    `json:"layout,omitempty"` // of the flow table
	// Copies says that the process copies the connections of a table of another layout.
	Copies bool   `json:"copies,omitempty"`
	Error  string `json:"error,omitempty"`
	// Transfers is the version of Sockets that the next process knows, in its take.
	Transfers int           `json:"transfers,omitempty"`
	Sockets   *xsk.Transfer `json:"sockets,omitempty"` // of the last process, in its left
	// Adopts is where the next process takes over announced routes, in its take; nil: nowhere.
	Adopts *kernelTable `json:"adopts,omitempty"`
	// Announced is what the last process announced until it left, in its left: the next one has
	// these addresses not settle again.
	Announced []netip.Prefix `json:"announced,omitempty"`
	// The service manager of the last process, in its hello.
	NotifySocket         string `json:"notifySocket,omitempty"`
	WatchdogMicroseconds int64  `json:"watchdogMicroseconds,omitempty"`
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
	// greetTime is the time for a hello: the last process talks to one at a time.
	greetTime = 10 * time.Second
	// meetTime is the time in which the last process must answer a hello: a client that says
	// nothing may be before this one.
	meetTime = 2 * greetTime
	// viewTime is the time in which the next process must have the first view of Services.
	viewTime = time.Minute
	// readyTime is the time from the hello of the next process to take.
	readyTime = viewTime + 30*time.Second
	// leaveTime is the time in which the last process must leave.
	leaveTime = 30 * time.Second
	// takeTime is the time in which the next process must serve after it has taken over.
	takeTime = 30 * time.Second
)

// meetLast greets the process that runs, for a handover; nil without such a process.
func (d *Daemon) meetLast(ctx context.Context) (*peer, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: handoverSocket(d.cfg.Admin.Socket), Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		d.log.Warn("handover: no Weir that hands over runs here, this is a start as any other")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	p := newPeer(c)
	var hello handoverMessage
	err = p.say(handoverMessage{Say: sayHello, Version: version.Get().Version, Layout: conntrack.LayoutVersion(), Copies: true})
	if err == nil {
		hello, err = p.hear(ctx, sayHello, meetTime)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handover: the running Weir goes on: %w", err), c.Close())
	}
	return p, hello.inheritManager()
}

// inheritManager has the environment name the service manager of the last process, unless
// this one has its own: it is to be the main process of the same service.
func (m *handoverMessage) inheritManager() error {
	if own := os.Getenv("NOTIFY_SOCKET"); m.NotifySocket == "" || own != "" && own != m.NotifySocket {
		return nil
	}
	return errors.Join(os.Setenv("NOTIFY_SOCKET", m.NotifySocket),
		os.Setenv("WATCHDOG_USEC", fmt.Sprint(m.WatchdogMicroseconds)),
		os.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid())))
}

// takeOver has the last process leave, after all has been made ready that can be beside it. It
// returns the sockets of that process, nil for none.
func (d *Daemon) takeOver(ctx context.Context) (*xsk.Transfer, error) {
	if err := d.prepared(ctx); err != nil {
		return nil, fmt.Errorf("handover: the running Weir goes on: %w", err)
	}
	tuning.Collect()
	d.phases.End("Services beside the last process")
	d.log.Info("handover: taking over")
	var left handoverMessage
	err := d.last.say(handoverMessage{Say: sayTake, Transfers: xsk.TransferVersion, Adopts: announcedTable(&d.cfg.Announce)})
	if err == nil {
		left, err = d.last.hear(ctx, sayLeft, leaveTime)
	}
	switch {
	case isGone(err):
		d.log.Warn("handover: the last process has ended before it was asked to, or as it left: this start goes on without it", "err", err)
		d.last.close()
		d.last = nil
	case err != nil:
		closeFiles(d.last.takeFiles())
		return nil, fmt.Errorf("handover: %w", err)
	case left.Sockets != nil:
		left.Sockets.SetFiles(d.last.takeFiles())
	default:
		closeFiles(d.last.takeFiles())
	}
	d.announced = left.Announced
	d.phases.End("last process leaves")
	return left.Sockets, nil
}

// prepared waits for the first view of Services. The rest of what a start may fail by, as far as
// that can be done beside a process that serves, has been done.
func (d *Daemon) prepared(ctx context.Context) error {
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
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil { // such as too many open files
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		next := newPeer(c.(*net.UnixConn))
		err = d.meetNext(ctx, next)
		if err == nil {
			return nil
		}
		d.log.Warn("handover: ended before this process has left, which goes on", "err", err)
		d.events.Add(event.New{Kind: event.Handover, Severity: event.Warning, Text: fmt.Sprintf("another process wanted to take over, and has not: %v", err), Logged: true})
		next.close()
	}
	return nil
}

// meetNext returns nil when the next process takes over.
func (d *Daemon) meetNext(ctx context.Context, next *peer) error {
	hello, err := next.hear(ctx, sayHello, greetTime)
	if err != nil {
		return err
	}
	if err := d.mayHandOver(&hello); err != nil {
		return errors.Join(err, next.say(handoverMessage{Error: err.Error()}))
	}
	d.log.Info("handover: another process makes ready", "version", hello.Version)
	d.events.Add(event.New{Kind: event.Handover, Text: "another process, of version " + hello.Version + ", makes ready to take over", Logged: true})
	d.saveState(ctx)
	if err := next.say(handoverMessage{
		Say: sayHello, Version: version.Get().Version, Layout: conntrack.LayoutVersion(),
		NotifySocket: os.Getenv("NOTIFY_SOCKET"), WatchdogMicroseconds: d.notify.Watchdog().Microseconds(),
	}); err != nil {
		return err
	}
	take, err := next.hear(ctx, sayTake, readyTime)
	if err != nil {
		return err
	}
	next.sockets, next.adopts = take.Transfers == xsk.TransferVersion, take.Adopts
	if err := d.mayHandOver(&hello); err != nil { // a drain may have begun
		return errors.Join(err, next.say(handoverMessage{Error: err.Error()}))
	}
	d.log.Info("handover: leaving for the next process")
	d.next.Store(next)
	d.leaving.Store(true)
	d.stop(nil)
	return nil
}

// saveTime is the time in which the state is saved for the next process, well below meetTime.
const saveTime = 5 * time.Second

// saveState saves the last known state, if it is not saved yet: the next process reads it after the
// hello, and serves it where the API server does not answer.
func (d *Daemon) saveState(ctx context.Context) {
	s, ok := d.source.(interface{ save(context.Context) })
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	s.save(ctx)
}

// mayHandOver says why the process of a hello cannot take over from this one.
func (d *Daemon) mayHandOver(next *handoverMessage) error {
	switch {
	case next.Layout != conntrack.LayoutVersion() && !next.Copies:
		return fmt.Errorf("the flow table has layout %d, and %d in the next process, which copies no connections: "+
			"they would be lost, stop and start Weir if that is meant", conntrack.LayoutVersion(), next.Layout)
	case d.draining.Load() != nil:
		return errors.New("it drains")
	case !d.serving():
		return errors.New("it does not serve yet")
	case d.lb.StuckWorker() >= 0: // the next process would wait in vain for its end
		return errors.New("a worker is stalled, restart Weir instead")
	}
	return nil
}

// handOver waits, after this process has given everything up, until the next one serves. If
// that fails this program is executed again, with a signal to end that has come meanwhile. left is
// why not all could be given up.
func (d *Daemon) handOver(next *peer, left error, leave <-chan os.Signal) error {
	defer next.close()
	stop := d.notify.Keep()
	defer stop()
	p, e := next.process()
	if e != nil { // such as a process of another PID namespace
		d.log.Warn("handover: the next process is not known", "err", e)
	}
	if errors.Is(left, lb.ErrStalled) {
		// The worker ends with the program, and not before: it has its queues.
		d.log.Error("handover: this process starts again", "err", left)
		if err := next.say(handoverMessage{Error: lb.ErrStalled.Error()}); err != nil {
			d.log.Warn("handover", "err", err)
		}
		p.end(false)
		stop()
		return d.again(leave)
	}
	err := d.sayLeft(next)
	if err == nil {
		_, err = next.hear(context.Background(), sayServing, takeTime)
	}
	if err == nil {
		stop()
		p.succeeds(d.notify)
		d.log.Info("handover: the next process serves", "pid", p.pid)
		return nil
	}
	d.log.Error("handover: the next process has failed, this one starts again", "err", err)
	p.end(!isGone(err))
	stop()
	return d.again(leave)
}

// sayLeft tells the next process that this one has left, and passes it the sockets.
func (d *Daemon) sayLeft(next *peer) error {
	m := handoverMessage{Say: sayLeft, Sockets: d.sockets, Announced: d.announced}
	if m.Sockets == nil {
		return next.say(m)
	}
	if len(m.Sockets.Files()) > maxFiles {
		m.Sockets = nil
		return errors.Join(d.sockets.Close(), next.say(m))
	}
	err := next.say(m, m.Sockets.Files()...)
	return errors.Join(err, m.Sockets.Close()) // they are the next process's
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
