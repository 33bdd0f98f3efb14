package lb

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
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
	errs = append(errs, l.frontends.Remove(ch.Removed, l.attached))
	if err := l.tables.Publish(ch); err != nil {
		return errors.Join(append(errs, err)...)
	}
	l.counts.follow(l.flows, l.tables, put, del)
	errs = append(errs, l.frontends.Add(ch.Added), l.frontends.Change(ch.Changed))
	l.denials.follow(&ch)

	l.reassign.Follow(&ch)
	errs = append(errs,
		l.vips.follow(&ch), l.clientRoutes.follow(&ch),
		l.hostPaths.prepare(ch.Added), l.hostPaths.prepare(ch.Changed))

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
	if err := l.denials.drop(); err != nil {
		l.log.Warn("the packet loop alone drops packets of denied clients", "err", err)
	}
	l.sources.ports.choose(errors.Join(errs...), l.log)
	errs = append(errs, l.refreshAddresses())
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
	if err := l.workers.start(); err != nil {
		return err
	}
	l.cfg.Phases.End("workers run")
	return nil
}

// awaitProgram waits until the kernel has verified the programs that the interfaces need.
func (l *LB) awaitProgram() error {
	if l.ports.AnyXDP() {
		if err := l.steer.Ready(); err != nil {
			return fmt.Errorf("%w: %w", ports.ErrAttach, err)
		}
		if l.cache.off == nil {
			if err := l.steer.Repeats(); err != nil {
				l.cache.disable(err) // the kernel cannot load the program that reads the flow table
			}
		}
	}
	l.cfg.Phases.End("program")
	return nil
}

// attach attaches the interfaces, and lets the kernel forward.
func (l *LB) attach() error {
	if l.cache.off != nil {
		var err error
		if l.restored > 0 && l.sources.ports.keepFormer() {
			err = l.refreshAddresses()
		}
		return errors.Join(err, l.ports.Attach())
	}
	err := errors.Join(l.cache.publish(l.ports), l.ports.Attach(), l.cache.publish(l.ports))
	l.cache.kernel.SetOn(true)
	return err
}

// restoreFlows gives flows of an earlier process the numbers of this one's tables. Until the
// attachment the kernel forwards by the tables of that process, but not to an endpoint that is
// removed without a grace.
func (l *LB) restoreFlows() {
	remember := func(f *table.FrontendEntry, ref conntrack.Ref) { worker.RestoreAffinity(l.affinity, l.flows, f, ref) }
	l.restored = l.reassign.Restore(l.cache.kernel != nil && l.cfg.EndpointRemovalGrace == 0, remember, l.frontends.Adopt)
	l.denials.end(l.flows)
	if l.restored > 0 {
		l.log.Info("carrying on with the flows of the last process", "flows", l.restored)
	}
}
