package lb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/pprof"
	"strconv"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/table"
)

// Apply publishes changed Services and removes deleted ones. The first call also starts
// to take traffic, and must have all Services. A frontend leaves the steering program, or becomes
// a former frontend there, before the snapshot without it is published, and enters the program
// afterwards, so that Weir gets no packet that it cannot serve. Apply does all that it can: the error joins a
// *table.ServiceError per Service that could not be applied, and others. prepared is the Change
// that Tables().Prepare has just made of put and del, nil if it was not asked.
func (l *LB) Apply(put []table.Service, del []string, prepared *table.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if prepared == nil {
		ch, err := l.tables.Prepare(put, del)
		if err != nil {
			return err
		}
		prepared = &ch
	}
	ch := *prepared
	var errs []error
	for _, e := range ch.Errors {
		errs = append(errs, e)
	}

	l.counts.workers.Grow(l.tables.LastServiceNumber())
	gone := keepFormer(l, ch.Removed)
	l.withdraw(gone)
	errs = append(errs, l.unsteerFrontends(gone))
	if err := l.tables.Publish(ch); err != nil {
		return errors.Join(append(errs, err)...)
	}
	l.counts.follow(l.flows, l.tables, put, del)
	errs = append(errs, l.steerFrontends(ch.Added))

	l.reassign.Follow(&ch)
	errs = append(errs,
		l.countVIPs(&ch), l.routeFrontends(&ch),
		l.prepareHost(ch.Added), l.prepareHost(ch.Changed))

	if !l.attached {
		l.attached = true
		l.cfg.Phases.End("frontends")
		l.restoreFlows()
		l.cfg.Phases.End("flows")
		errs = append(errs, l.takeTraffic())
		if l.host != nil {
			l.host.Settle()
		}
	}
	return errors.Join(errs...)
}

// takeTraffic starts the workers and attaches the program.
//
// If the maps are those of the last process, its program is attached and leads to the sockets
// of this process: packets wait in the rings since New. Thus the workers do not wait for the
// kernel to verify the next program. With a flow cache the last program still forwards by the
// adjacencies of the last process. When a worker replaces one in a flow, no stamp of that process
// is in the flow any more, and its packets reach the workers until the next program is attached.
//
// If this process has moved the flow table, the last program sees none of that: it would go on
// with a flow whose SNAT port a worker has given to another. Then the workers start when nothing
// but the attachment is left, which takes milliseconds. They do not wait for its end: the
// restored flows of an interface that is attached have no next hop yet, and their packets would
// wait in the rings until the last interface is attached.
func (l *LB) takeTraffic() error {
	var errs []error
	if l.yielded {
		errs = append(errs, l.ports.Steer())
	}
	steps := []func() error{l.startWorkers, l.awaitProgram, l.attach}
	if l.steer.Adopted() && l.flows.Restoration().Moved {
		steps = []func() error{l.awaitProgram, l.startWorkers, l.attach}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			errs = append(errs, err)
			break
		}
	}
	l.serves.Store(true)
	_ = l.steer.Hold(l.holdTime()) // Run repeats it, at first up to holdEvery later, and logs errors
	l.cfg.Phases.End("attachment")
	if err := l.steer.Settle(); err != nil {
		l.log.Warn("steering program: the next start takes longer, or packets of frontends that are gone reach the packet loop", "err", err)
	}
	return errors.Join(errs...)
}

// startWorkers starts the workers, which then serve what is published.
func (l *LB) startWorkers() error {
	for _, w := range l.workers {
		l.running.Add(1)
		var err error
		// The goroutine inherits the label, by which its stack is found.
		pprof.Do(context.Background(), pprof.Labels(WorkerLabel, strconv.Itoa(w.ID())), func(context.Context) {
			err = w.Start(l.queuesOf(w.ID()), l.log, l.running.Done)
		})
		if err != nil {
			l.running.Done()
			return fmt.Errorf("%w: %w", ports.ErrAttach, err)
		}
	}
	l.works.Store(true)
	l.cfg.Phases.End("workers run")
	return nil
}

// unsteerFrontends takes frontends off the steering program.
func (l *LB) unsteerFrontends(list []*table.FrontendEntry) error {
	var errs []error
	for _, f := range list {
		delete(l.unsteered, f.Key)
		errs = append(errs, l.steer.RemoveFrontend(f.AddrPort, f.Proto))
	}
	return errors.Join(errs...)
}

// steerFrontends adds frontends to the steering program, those first that found no room
// earlier.
func (l *LB) steerFrontends(list []*table.FrontendEntry) error {
	for k, f := range l.unsteered {
		if addFrontend(l, f) != nil {
			break // the first attempt returned the error
		}
		delete(l.unsteered, k)
	}

	var errs []error
	for _, f := range list {
		err := addFrontend(l, f)
		if err != nil {
			l.unsteered[f.Key] = f
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restoreFlows gives flows of an earlier process the numbers of this one's tables. Until the
// attachment the kernel forwards by the tables of that process, but not to an endpoint that is
// removed without a grace.
func (l *LB) restoreFlows() {
	l.restored = l.reassign.Restore(l.cache != nil && l.cfg.EndpointRemovalGrace == 0,
		func(k table.Key, to netip.AddrPort, proto uint8) { adoptFormer(l, k, to, proto) })
	if l.restored > 0 {
		l.log.Info("carrying on with the flows of the last process", "flows", l.restored)
	}
}
