package daemon

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/ports"
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
	complaints.OfUpdate(d.problems, up)
	c := changes.CauseOf(up, d.updating.Last().IsZero(), d.translate.Service)
	if up.Node != nil {
		d.updateAddresses()
	}
	d.health.Apply(up, readinessOf(d).Guard)
	b := d.translate.Apply(up)
	d.updating.Step(time.Now())
	serves = d.publish(b, c)
	d.forgetDrained()
	d.checks.Apply(up)
	return serves
}

// publish applies a batch, and reports whether traffic is taken. Preconditions: d.mu is held.
func (d *Daemon) publish(b translate.Batch, c *changes.Cause) (serves bool) {
	for _, c := range b.Complaints {
		d.problems.Set(complaints.Translation, complaints.Object(c.Service), c.Problems...)
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
	complaints.OfPublication(d.problems, &b, err)
	published := d.tiers.Follow(changes.WithoutKept(b.Put, err, c), b.Delete, time.Now())
	if !d.updating.Last().IsZero() {
		d.tell.Publication(&published, c, &d.node.Node)
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
	complaints.OfPublication(d.problems, &b, err)
}

// startEvent adds the event of the first publication. Preconditions: d.mu is held.
func (d *Daemon) startEvent(services int) {
	text := fmt.Sprintf("traffic is taken for %d Services of %s", services, d.source)
	d.events.Add(event.New{Kind: event.Start, Text: text + fmt.Sprintf(", %s after the start", time.Since(d.lb.Status().Started).Round(time.Millisecond))})
}

// noteWithdrawal logs an Update that takes away more than half of the Services:
// mostly that is a mistake of whoever wrote them. Preconditions: d.mu is held.
func (d *Daemon) noteWithdrawal(up *discovery.Update) {
	before := d.known
	d.known = d.source.Stats().Services
	d.withdrawn.Add(uint64(len(up.Deleted)))
	if n := len(up.Deleted); 2*n > before && n > 0 {
		d.log.Warn("the source withdraws most Services", "withdrawn", n, "of", before, "left", d.known, "source", d.source.String())
	}
}
