package lb

import (
	"errors"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// Drain ends the taking of new connections: from the next rounds of the workers on
// they are the kernel's, as they will be after Close. Established ones go on.
// There is no way back.
func (l *LB) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuseConnections()
	if err := l.steer.Hold(0); err != nil { // no process follows
		l.log.Warn("drain", "err", err)
	}
}

// refuseConnections tells workers, and every later view of the node, of the drain. The
// caller holds mu.
func (l *LB) refuseConnections() {
	l.draining = true
	node := *l.node.Load()
	node.Draining = true
	l.node.Store(&node)
}

// Connections counts those that a drain waits for: answered and not over. It looks
// at the whole flow table.
func (l *LB) Connections() int { return l.flows.Awaited() }

// Leave ends the workers and leaves everything in place for the next process: program,
// flow table, host veth, offloads. It is Close for a restart, and follows Run. From here on
// the program holds packets for cfg.Hold. With pass the result is the sockets, nil if they cannot be
// passed on now: they stay bound until that is closed, and packets wait in them. All others end
// with the process.
func (l *LB) Leave(pass bool) (sockets *xsk.Transfer, err error) {
	if l.cache.kernel != nil {
		l.cache.kernel.Leave()
	}
	errs := []error{l.steer.Hold(l.cfg.Hold)}
	if !l.workers.stop() { // the flow table stays mapped for it until the process ends
		return nil, errors.Join(append(errs, ErrStalled, l.steer.Close(false))...)
	}
	if pass && !l.ports.Moving() && xsk.ProbeBoundRings().OK() {
		if sockets, err = l.ports.Transfer(); err != nil {
			l.log.Warn("the next process opens its own sockets", "err", err)
		}
	}
	return sockets, errors.Join(append(errs, l.flows.Close(), l.steer.Close(false), l.giveUpClaim())...)
}

// giveUpClaim ends the claim.
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
