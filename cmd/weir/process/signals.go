package process

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Signals delivers the signals of a running Weir: SIGHUP to reload, SIGTERM to
// drain and leave, SIGINT to leave at once, SIGUSR2 to restart. Each is held until it is received, so
// that a signal that comes during the start is not lost.
type Signals struct {
	Reload chan os.Signal
	Leave  chan os.Signal
}

// Notify begins to catch the signals. Until then SIGHUP ends the process: it is to
// be called before anything that takes time.
func Notify() *Signals {
	s := &Signals{Reload: make(chan os.Signal, 1), Leave: make(chan os.Signal, 2)}
	signal.Notify(s.Reload, syscall.SIGHUP)
	signal.Notify(s.Leave, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR2)
	return s
}

// Stop ends the work of Notify.
func (s *Signals) Stop() {
	signal.Stop(s.Reload)
	signal.Stop(s.Leave)
}

// Follow ends Run on a signal. The first SIGTERM drains, if there is anything
// to drain; SIGINT, and any signal during the drain, ends at once. SIGUSR2, and SIGTERM
// if onStop makes it a restart, end for the next process.
func (e *Ending) Follow(ctx context.Context, leave <-chan os.Signal) {
	select {
	case <-ctx.Done():
		return
	case <-e.stopAsked:
		if e.node.Serving() {
			e.drain(ctx, leave)
		}
	case s := <-leave:
		if s == syscall.SIGTERM {
			s = e.meaningOfTerm(ctx, leave)
		}
		switch {
		case s == os.Interrupt:
		case s == syscall.SIGUSR2:
			e.leaving.Store(true) // before the first update too: the last process may be held
			if e.node.Serving() && !e.node.KeepsRoutes() {
				e.pause(ctx, leave, e.node.Withdraw())
			}
		case e.node.Serving():
			e.drain(ctx, leave)
		}
	}
	e.stop()
}

// Stop ends the process as SIGTERM does with onStop: detach. It does not wait for the end.
func (e *Ending) Stop(context.Context) error {
	select {
	case e.stopAsked <- struct{}{}:
	default: // it was asked before
	}
	return nil
}
