package lb

import (
	"errors"
	"time"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// Leave ends the workers and leaves everything in place for the next process: program,
// flow table, host veth, offloads. It is Close for a restart, and follows Run. From here on
// the program holds packets for cfg.Hold; the sockets end with the process.
func (l *LB) Leave() error {
	if l.cache != nil {
		l.cache.Leave()
	}
	errs := []error{l.steer.Hold(l.cfg.Hold)}
	for _, w := range l.workers {
		w.Stop()
	}
	if !l.ended(endTime) { // the flow table stays mapped for it until the process ends
		return errors.Join(append(errs, ErrStalled, l.steer.Close(false))...)
	}
	return errors.Join(append(errs, l.flows.Close(), l.steer.Close(false), l.giveUpClaim())...)
}

const (
	// endTime is the time in which workers must end before a restart, as the hold lasts not much
	// longer, and at the end. A worker that is stalled never ends.
	endTime = 2 * time.Second
	// releaseTime is endTime where the next process waits, and would fail otherwise.
	releaseTime = 10 * time.Second
)

// ErrStalled is the error of Leave, Release and Close when a worker does not end.
var ErrStalled = errors.New("a worker is stalled and does not end")

// ended waits until the workers have ended, for no longer than d.
func (l *LB) ended(d time.Duration) bool {
	done := make(chan struct{})
	go func() { l.running.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// Release is Leave for a process that lives on: it also gives up sockets and locks, which the
// next process needs. With pass the sockets are the result, nil if that is not possible now;
// they stay bound until that is closed. It may follow a New that has failed. Memory stays, and
// ends with the process. With ErrStalled a worker has kept sockets, locks and flow table.
func (l *LB) Release(pass bool) (sockets *xsk.Transfer, err error) {
	var errs []error
	if l.host != nil {
		l.host.Leave()
	}
	if l.cache != nil {
		l.cache.Leave()
	}
	if l.steer != nil && !l.beside {
		errs = append(errs, l.steer.Hold(l.cfg.Hold))
	}
	for _, w := range l.workers {
		w.Stop()
	}
	if !l.ended(releaseTime) {
		return nil, errors.Join(append(errs, ErrStalled)...)
	}
	if l.flows != nil {
		errs = append(errs, l.flows.Leave())
	}
	if l.cache != nil {
		errs = append(errs, l.cache.Unlock())
	}
	if l.ports != nil {
		if pass && !l.ports.Moving() {
			if sockets, err = l.ports.Transfer(); err != nil {
				l.log.Warn("the next process opens its own sockets", "err", err)
			}
		}
		errs = append(errs, l.ports.CloseSockets())
	}
	if l.steer != nil {
		errs = append(errs, l.steer.Close(false))
	}
	return sockets, errors.Join(append(errs, l.giveUpClaim())...)
}

// giveUpClaim ends claimNode.
func (l *LB) giveUpClaim() error {
	c := l.claim
	l.claim = nil
	return c.Close()
}

// Verify loads the steering program and closes it: an error is the reason why this process
// could not attach.
func Verify() error {
	p, err := steer.Load(steer.Config{MaxFrontends: 1, MaxSNAT: 1})
	if err != nil {
		return err
	}
	return errors.Join(p.Ready(), p.Close(true))
}
