package daemon

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
	reload chan os.Signal
	leave  chan os.Signal
}

// Notify begins to catch the signals. Until then SIGHUP ends the process: it is to
// be called before anything that takes time.
func Notify() *Signals {
	s := &Signals{reload: make(chan os.Signal, 1), leave: make(chan os.Signal, 2)}
	signal.Notify(s.reload, syscall.SIGHUP)
	signal.Notify(s.leave, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR2)
	return s
}

// Stop ends the work of Notify.
func (s *Signals) Stop() {
	signal.Stop(s.reload)
	signal.Stop(s.leave)
}

// followLeave ends Run on a signal. The first SIGTERM drains, if there is anything
// to drain; SIGINT, and any signal during the drain, ends at once. SIGUSR2, and SIGTERM
// if onStop makes it a restart, end for the next process.
func (d *Daemon) followLeave(ctx context.Context, leave <-chan os.Signal) {
	select {
	case <-ctx.Done():
		return
	case <-d.stopAsked:
		if d.serving() {
			d.drain(ctx, leave)
		}
	case s := <-leave:
		if s == syscall.SIGTERM {
			s = d.meaningOfTerm(ctx, leave)
		}
		switch {
		case s == os.Interrupt:
		case s == syscall.SIGUSR2:
			d.leaving.Store(true) // before the first update too: the last process may be held
			if d.serving() && !d.announcer.Keeps() {
				d.pause(ctx, leave, d.withdrawAll())
			}
		case d.serving():
			d.drain(ctx, leave)
		}
	}
	d.stop(nil)
}

// Stop ends the process as SIGTERM does with onStop: detach. It does not wait for the end.
func (d *Daemon) Stop(context.Context) error {
	select {
	case d.stopAsked <- struct{}{}:
	default: // it was asked before
	}
	return nil
}

// followReload reads the configuration and the manifests again on SIGHUP.
func (d *Daemon) followReload(ctx context.Context, reload <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reload:
			d.reload()
		}
	}
}
