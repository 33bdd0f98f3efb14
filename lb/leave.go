package lb

import (
	"errors"
	"time"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// Leave ends the workers and leaves everything in place for the next process: program,
// flow table, host veth, offloads. It is Close for a restart, and follows Run. From here on
// the program holds packets for cfg.Hold. With pass the result is the sockets, nil if they cannot be
// passed on now: they stay bound until that is closed, and packets wait in them. All others end
// with the process.
func (l *LB) Leave(pass bool) (sockets *xsk.Transfer, err error) {
	if l.cache != nil {
		l.cache.Leave()
	}
	errs := []error{l.steer.Hold(l.cfg.Hold)}
	for _, w := range l.workers {
		w.Stop()
	}
	if !l.ended(endTime) { // the flow table stays mapped for it until the process ends
		return nil, errors.Join(append(errs, ErrStalled, l.steer.Close(false))...)
	}
	if pass && !l.ports.Moving() && xsk.ProbeBoundRings().OK() {
		if sockets, err = l.ports.Transfer(); err != nil {
			l.log.Warn("the next process opens its own sockets", "err", err)
		}
	}
	return sockets, errors.Join(append(errs, l.flows.Close(), l.steer.Close(false), l.giveUpClaim())...)
}

// endTime is the time in which workers must end before a restart, as the hold lasts not much
// longer, and at the end. A worker that is stalled never ends.
const endTime = 2 * time.Second

// ErrStalled is the error of Leave and Close when a worker does not end.
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
