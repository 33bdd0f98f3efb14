package publisher

import (
	"errors"
	"time"

	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/ports"
)

// pending gathers updates until the source is synced.
type pending struct {
	put    map[discovery.ServiceName]*discovery.Service
	synced bool
}

// Deliver takes a change of the source to the tables. Until the source has
// synced nothing is published: half of the truth would take traffic from
// kube-proxy only to refuse it.
func (p *Publisher) Deliver(up *discovery.Update) {
	p.updating.Step(time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteWithdrawal(up)
	if up.Node != nil {
		p.node = *up.Node
	}
	if p.pending != nil {
		for _, s := range up.Put {
			p.pending.put[s.Name] = s
		}
		for _, n := range up.Deleted {
			delete(p.pending.put, n)
		}
		if up.Synced && !p.pending.synced {
			p.pending.synced = true
		}
		p.publishFirst()
		return
	}
	p.apply(up)
}

// Begin publishes as soon as the source has synced.
func (p *Publisher) Begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	p.publishFirst()
}

// publishFirst publishes the first full view, when it and the packet path are there.
// Preconditions: p.mu is held.
func (p *Publisher) publishFirst() {
	if p.pending == nil || !p.pending.synced || !p.begun {
		return
	}
	up := &discovery.Update{Node: &p.node, Synced: true}
	for _, s := range p.pending.put {
		up.Put = append(up.Put, s)
	}
	p.pending, p.synced = nil, true
	p.phases.End("first view of Services")
	if !p.apply(up) {
		return
	}
	p.taken(len(p.translate.Services()))
}

// apply publishes an update, and reports whether traffic is taken. Preconditions: p.mu is
// held, and the source has synced.
func (p *Publisher) apply(up *discovery.Update) (serves bool) {
	complaints.OfUpdate(p.problems, up)
	c := changes.CauseOf(up, p.updating.Last().IsZero(), p.translate.Service)
	if up.Node != nil {
		p.updateAddresses()
	}
	p.health.Apply(up, p.readiness().Guard)
	b := p.translate.Apply(up)
	p.updating.Step(time.Now())
	serves = p.publish(b, c)
	p.forgetDrained()
	p.checks.Apply(up)
	return serves
}

// publish applies a batch, and reports whether traffic is taken. Preconditions: p.mu is held.
func (p *Publisher) publish(b translate.Batch, c *changes.Cause) (serves bool) {
	for _, c := range b.Complaints {
		p.problems.Set(complaints.Translation, complaints.Object(c.Service), c.Problems...)
	}
	if !p.synced {
		return false
	}
	err := p.path.Apply(p.announcer.Leaving(b.Put, b.Delete, p.path.Tables()))
	if errors.Is(err, ports.ErrAttach) {
		p.synced = false
		p.stop(err)
		return false
	}
	p.announcer.Follow(b.Put)
	p.published.Store(true)
	complaints.OfPublication(p.problems, &b, err)
	published := p.tiers.Follow(changes.WithoutKept(b.Put, err, c), b.Delete, time.Now())
	if !p.updating.Last().IsZero() {
		p.tell.Publication(&published, c, &p.node.Node)
	}
	p.updating.Published(time.Now())
	p.log.Debug("published", "services", len(b.Put), "deleted", len(b.Delete))
	return true
}

// EndLingering takes away the frontends of withdrawn addresses whose time is up at now.
func (p *Publisher) EndLingering(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.announcer.EndLingering(now)
	if !p.synced || len(b.Put)+len(b.Delete) == 0 {
		return
	}
	err := p.path.Apply(b.Put, b.Delete, nil)
	p.announcer.Follow(nil)
	complaints.OfPublication(p.problems, &b, err)
}

// noteWithdrawal logs an Update that takes away more than half of the Services:
// mostly that is a mistake of whoever wrote them. Preconditions: p.mu is held.
func (p *Publisher) noteWithdrawal(up *discovery.Update) {
	before := p.known
	p.known = p.source.Stats().Services
	p.withdrawn.Add(uint64(len(up.Deleted)))
	if n := len(up.Deleted); 2*n > before && n > 0 {
		p.log.Warn("the source withdraws most Services", "withdrawn", n, "of", before, "left", p.known, "source", p.source.String())
	}
}
