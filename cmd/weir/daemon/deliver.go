package daemon

import (
	"errors"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/table"
)

// pending gathers updates until the source is synced.
type pending struct {
	put    map[discovery.ServiceName]*discovery.Service
	synced bool
}

// deliver takes a change of the source to the tables. Until the source has
// synced nothing is published: half of the truth would take traffic from
// kube-proxy only to refuse it.
func (d *Daemon) deliver(up *discovery.Update) {
	d.updating.Step(time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteWithdrawal(up)
	if up.Node != nil {
		d.node = *up.Node
	}
	if d.pending != nil {
		for _, s := range up.Put {
			d.pending.put[s.Name] = s
		}
		for _, n := range up.Deleted {
			delete(d.pending.put, n)
		}
		if up.Synced && !d.pending.synced {
			d.pending.synced = true
		}
		d.publishFirst()
		return
	}
	d.apply(up)
}

// begin publishes as soon as the source has synced.
func (d *Daemon) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = true
	d.publishFirst()
}

// publishFirst publishes the first full view, when it and the packet path are there.
// Preconditions: d.mu is held.
func (d *Daemon) publishFirst() {
	if d.pending == nil || !d.pending.synced || !d.begun {
		return
	}
	up := &discovery.Update{Node: &d.node, Synced: true}
	for _, s := range d.pending.put {
		up.Put = append(up.Put, s)
	}
	d.pending, d.synced = nil, true
	d.phases.End("first view of Services")
	if !d.apply(up) {
		return
	}
	d.startEvent(len(d.translate.Services()))
	close(d.taken)
	go logFirewall(d.lb, d.cfg.AttachedNames(), d.log)
	d.notify.Ready()
}

// apply publishes an update, and reports whether traffic is taken. Preconditions: d.mu is
// held, and the source has synced.
func (d *Daemon) apply(up *discovery.Update) (serves bool) {
	d.serviceProblems(up)
	c := d.causeOf(up)
	if up.Node != nil {
		d.updateAddresses()
	}
	b := d.translate.Apply(up)
	d.updating.Step(time.Now())
	serves = d.publish(b, c)
	if len(d.drained) > 0 {
		d.forgetDrained()
	}
	d.checks.Apply(up)
	return serves
}

// publish applies a batch, and reports whether traffic is taken. Preconditions: d.mu is held.
func (d *Daemon) publish(b translate.Batch, c *cause) (serves bool) {
	for _, c := range b.Complaints {
		d.problems.Set(partTranslation, objectOf(c.Service), c.Problems...)
	}
	if !d.synced {
		return false
	}
	err := d.lb.Apply(d.announcer.Leaving(b.Put, b.Delete, d.lb.Tables()))
	if errors.Is(err, ports.ErrAttach) {
		d.synced = false
		d.stop(err)
		return false
	}
	d.announcer.Follow(b.Put)
	d.published.Store(true)
	d.publicationProblems(&b, err)
	changes := d.tiers.follow(withoutKept(b.Put, err, c), b.Delete, time.Now())
	if !d.updating.Last().IsZero() {
		d.publicationEvents(&changes, c)
	}
	d.updating.Published(time.Now())
	d.log.Debug("published", "services", len(b.Put), "deleted", len(b.Delete))
	return true
}

// endLingering takes away the frontends of withdrawn addresses whose time is up at now.
func (d *Daemon) endLingering(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.announcer.EndLingering(now)
	if !d.synced || len(b.Put)+len(b.Delete) == 0 {
		return
	}
	err := d.lb.Apply(b.Put, b.Delete, nil)
	d.announcer.Follow(nil)
	d.publicationProblems(&b, err)
}

// withoutKept are the Services of put but those that err, of a publication, leaves as they were.
// The cause forgets what has changed in these.
func withoutKept(put []table.Service, err error, c *cause) []table.Service {
	kept := map[string]bool{}
	for _, e := range problem.Flatten(err) {
		if of := (*table.ServiceError)(nil); errors.As(e, &of) && of.Kept {
			kept[of.Service] = true
			delete(c.endpoints, of.Service)
		}
	}
	if len(kept) == 0 {
		return put
	}
	return slices.DeleteFunc(slices.Clone(put), func(s table.Service) bool { return kept[s.Name] })
}
