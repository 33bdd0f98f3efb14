// Package sdnotify reports the state of Weir to a service manager, by the
// protocol of sd_notify(3): ready, alive, reloading, stopping. It sends nothing
// if no service manager asks for it (NOTIFY_SOCKET is not set).
package sdnotify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	// startExtension is the extra time that a waiting start, or a drain, asks for, well
	// above checkStart: a start that hangs still ends.
	startExtension = 30 * time.Second
	checkStart     = 5 * time.Second
	// checkStatus is how often the status is looked at without a watchdog.
	checkStatus = 10 * time.Second
)

// Health is the message to the service manager.
type Health struct {
	// Healthy: the packet path works. Otherwise the watchdog is not fed, and
	// the service manager ends Weir and starts it again.
	Healthy bool
	// Text is a line for `systemctl status`.
	Text string
}

// Notifier sends messages to the service manager. Methods may be called from several
// goroutines.
type Notifier struct {
	health   func() Health
	log      *slog.Logger
	watchdog time.Duration // 0: none
	send     func(state string) (sent bool, err error)
	ready    chan struct{} // closed by Ready
	stopping chan struct{} // closed by Stopping
	once     struct{ ready, stopping sync.Once }

	mu   sync.Mutex
	text string // sent last
}

// New makes a Notifier from the environment (NOTIFY_SOCKET, WATCHDOG_USEC,
// WATCHDOG_PID). health must return at once.
func New(health func() Health, log *slog.Logger) (*Notifier, error) {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("watchdog of the service manager: %w", err)
	}
	return &Notifier{
		health: health, log: log, watchdog: watchdog,
		send:  func(state string) (bool, error) { return daemon.SdNotify(false, state) },
		ready: make(chan struct{}), stopping: make(chan struct{}),
	}, nil
}

// Watchdog is the time in which the service manager must be told that Weir is alive, 0: it
// does not ask.
func (n *Notifier) Watchdog() time.Duration { return n.watchdog }

// Keep feeds the watchdog until stop is called: Run has ended, and the process lives on.
func (n *Notifier) Keep() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var fed sync.WaitGroup
	fed.Go(func() {
		for n.watchdog > 0 && ctx.Err() == nil {
			n.say(daemon.SdNotifyWatchdog)
			select {
			case <-ctx.Done():
			case <-time.After(n.interval(true)):
			}
		}
	})
	return func() { cancel(); fed.Wait() }
}

// Alive feeds the watchdog once, before something that takes a moment.
func (n *Notifier) Alive() {
	if n.watchdog > 0 {
		n.say(daemon.SdNotifyWatchdog)
	}
}

// Ready says that the start is complete. Only the first call says it.
func (n *Notifier) Ready() {
	n.once.ready.Do(func() {
		n.say(daemon.SdNotifyReady)
		close(n.ready)
	})
}

// Reloading says that the configuration is being read again; the function
// that it returns, that this is over. Before Ready and after Stopping it says
// nothing.
func (n *Notifier) Reloading() (done func()) {
	if !closed(n.ready) || closed(n.stopping) {
		return func() {}
	}
	n.say(daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
	return func() { n.say(daemon.SdNotifyReady) }
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Stopping says that Weir drains or leaves. Only the first call says it.
func (n *Notifier) Stopping() {
	n.once.stopping.Do(func() {
		n.say(daemon.SdNotifyStopping, "STATUS=leaving")
		close(n.stopping)
	})
}

// Run feeds the watchdog while Weir is healthy, asks for more time while the
// start is waiting or a drain goes on, and keeps the status line current, until
// ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	if sent, err := n.send("STATUS=starting"); err == nil && !sent {
		<-ctx.Done() // nobody listens
		return nil
	}
	ready, stopping := n.ready, n.stopping
	for {
		steady := ready == nil && stopping != nil
		n.heartbeat(steady)
		select {
		case <-ctx.Done():
			return nil
		case <-ready:
			ready = nil
		case <-stopping:
			stopping = nil
		case <-time.After(n.interval(steady)):
		}
	}
}

// heartbeat sends the present state. Steady is false during start and end: the service manager
// does not know their duration.
func (n *Notifier) heartbeat(steady bool) {
	h := n.health()
	say := []string{n.status(h)}
	if h.Healthy {
		if n.watchdog > 0 {
			say = append(say, daemon.SdNotifyWatchdog)
		}
		if !steady {
			say = append(say, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startExtension.Microseconds()))
		}
	}
	n.say(say...)
}

// interval is the time to the next heartbeat: a third of the watchdog's limit, so that
// a heartbeat may come late.
func (n *Notifier) interval(steady bool) time.Duration {
	d := checkStatus
	if !steady {
		d = checkStart
	}
	if n.watchdog > 0 {
		d = min(d, n.watchdog/3)
	}
	return d
}

// status is the status line if it has changed, else "".
func (n *Notifier) status(h Health) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, _, _ := strings.Cut(h.Text, "\n")
	if text == n.text {
		return ""
	}
	n.text = text
	return "STATUS=" + text
}

// say sends the assignments that are not empty, in a single datagram.
func (n *Notifier) say(assignments ...string) {
	var lines []string
	for _, a := range assignments {
		if a != "" {
			lines = append(lines, a)
		}
	}
	if len(lines) == 0 {
		return
	}
	if _, err := n.send(strings.Join(lines, "\n")); err != nil {
		n.log.Warn("tell the service manager", "what", lines[0], "err", err)
	}
}
