package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/table"
)

// announcer announces the addresses of frontends to routers. A publication withdraws before it
// takes anything away (leaving), and announces afterwards (follow).
type announcer struct {
	name    string // of the speaker
	lb      *lb.LB
	looking sync.Mutex  // orders lookAnnounce
	cordons atomic.Bool // announce.honorCordon

	// changing orders changes of the configuration and of objects. It guards the fields below.
	changing   sync.Mutex
	cfg        config.Configuration
	input      objectInput
	configured bgp.Config // sessions of the configuration at the start
	session    bgp.Config // ASN and BGP identifier of the sessions

	mu        sync.Mutex // guards the fields below, and orders the calls of speaker.Set
	speaker   announce.Speaker
	rule      announce.Rule
	node      announce.Node
	services  map[string][]announcedFrontend
	addresses map[netip.Addr][]announce.Frontend // of services, as the rule takes them
	decisions []announce.Decision
	losses    []announce.Loss
	routes    []announce.Route
	settled   bool      // as in isSettled
	next      time.Time // when time alone may change the decisions; zero: never
	err       error     // of the last Set
	closed    bool
	lingering lingering
	// held is until when what was announced before this process stays, without a view of
	// Services; zero: nothing is held.
	held    time.Time
	objects *objects // written with changing held too
	unheard []error  // why there are not all sessions
	// source has objects of the API server, nil: none are read. unkept is why they are not in a
	// file for the next start.
	source *objectSource
	unkept error
	// passwords are those of the sessions, by the number of the peer in the configuration.
	passwords [][sha256.Size]byte
}

// healthEvery is how often the health of the packet path is asked for.
const healthEvery = 100 * time.Millisecond

// holdWithoutView is how long routes that were there before this process stay without a view of
// Services.
const holdWithoutView = 10 * time.Second

// newAnnouncer starts the speaker of the configuration; nil where nothing is to be announced.
func newAnnouncer(cfg *config.Configuration, l *lb.LB, log *slog.Logger) (*announcer, error) {
	c := &cfg.Announce
	if c.Speaker == config.AnnounceOff {
		return nil, nil
	}
	in := objectInput{addresses: l.Router().Addresses()}
	in.readFiles(c)
	o := newObjects(cfg, &in)
	o.checkPrepend(c)
	base, session, speaker, err := startSpeaker(c, o, in.addresses, log)
	if err != nil {
		return nil, fmt.Errorf("announce: %w", err)
	}
	a := startAnnouncer(speaker, l, o.settings(c))
	a.cfg, a.input, a.configured, a.session = *cfg, in, base, session
	a.cordons.Store(cfg.Announce.HonorCordon)
	a.lingering.time.Store(int64(cfg.Announce.AfterWithdrawal()))
	a.name, a.objects, a.passwords = c.Speaker, o, passwordsOf(c.Peers)
	if _, none := speaker.(silent); none {
		a.unheard = []error{errNoRouter}
	}
	return a, nil
}

// startAnnouncer makes an announcer that waits for Services. What a killed process has announced
// stays meanwhile.
func startAnnouncer(s announce.Speaker, l *lb.LB, settings announce.Settings) *announcer {
	a := &announcer{
		speaker: s, lb: l, services: map[string][]announcedFrontend{}, addresses: map[netip.Addr][]announce.Frontend{},
		node: announce.Node{NotSynced: true},
	}
	a.rule.SetSettings(settings)
	if prefixes := s.Adopted(); len(prefixes) > 0 {
		a.rule.Adopt(prefixes)
		a.held = time.Now().Add(holdWithoutView)
		a.next = a.held
	}
	return a
}

// leaving withdraws addresses that a publication is about to take away, or that will not be served
// after it, and announces none. Frontends that it adds do not count yet. The publication is to be
// the one returned, with which those of withdrawn addresses linger. prepared is that publication,
// nil if the caller is to prepare it.
func (a *announcer) leaving(put []table.Service, del []string, tables *table.Table) (_ []table.Service, _ []string, prepared *table.Change) {
	if a == nil {
		return put, del, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	had, before := a.programmed(), map[string][]announcedFrontend{}
	for _, name := range del {
		before[name] = a.services[name]
		delete(a.services, name)
	}
	for i := range put {
		before[put[i].Name] = a.services[put[i].Name]
		isNew := func(f announcedFrontend) bool { _, known := had[f.key]; return !known }
		a.services[put[i].Name] = slices.DeleteFunc(frontendsOf(&put[i]), isNew)
	}
	if len(a.routes) > 0 { // else nothing can be withdrawn
		// Which Service will have a frontend that several claim, the tables decide.
		change, err := tables.Prepare(put, del)
		if err != nil {
			return put, del, nil // nothing will be published
		}
		prepared = &change
		a.look(change.Next(), func(k table.Key) bool { return had[k] })
		n := a.node
		n.Publishing = true
		a.decide(&n)
	}
	if put, del, same := a.lingering.keep(put, del, before, tables.Load(), time.Now()); !same {
		return put, del, nil
	}
	return put, del, prepared
}

// programmed says of the frontends that are published whether packets reach the packet path.
// Preconditions: a.mu is held.
func (a *announcer) programmed() map[table.Key]bool {
	m := map[table.Key]bool{}
	for _, list := range a.services {
		for i := range list {
			if f := &list[i]; !f.held {
				m[f.key] = f.Programmed
			}
		}
	}
	return m
}

// look notes which Service has each frontend in s, and which of these get packets. Preconditions:
// a.mu is held.
func (a *announcer) look(s *table.Snapshot, steered func(table.Key) bool) {
	for name, list := range a.services {
		for i := range list {
			f := &list[i]
			entry := s.Lookup(&f.key)
			f.held = entry != nil && entry.ServiceName != name
			f.Programmed = entry != nil && !f.held && steered(f.key)
		}
	}
}

// follow takes over a publication that is in effect.
func (a *announcer) follow(put []table.Service) {
	if a == nil {
		return
	}
	unsteered := map[table.Key]bool{}
	for _, f := range a.lb.Unsteered() {
		unsteered[f.Key] = true
	}
	a.published(put, a.lb.Tables().Load(), func(k table.Key) bool { return !unsteered[k] })
}

// published takes over a publication: s is in effect.
func (a *announcer) published(put []table.Service, s *table.Snapshot, steered func(table.Key) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range put {
		a.services[put[i].Name] = frontendsOf(&put[i])
	}
	a.look(s, steered)
	a.decide(&a.node)
}

// decide brings the routers in line. Preconditions: a.mu is held.
func (a *announcer) decide(n *announce.Node) {
	if a.closed || a.holds() {
		return
	}
	clear(a.addresses)
	for _, list := range a.services {
		for i := range list {
			if f := &list[i]; !f.held {
				a.addresses[f.address] = append(a.addresses[f.address], f.Frontend)
			}
		}
	}
	now := time.Now()
	out := a.rule.Decide(n, a.addresses, now)
	a.lingering.follow(a.decisions, out.Decisions, now)
	a.decisions, a.routes, a.next = out.Decisions, out.Routes, out.Next
	a.losses = a.rule.Losses(&out, a.addresses)
	a.settled = a.isSettled(n, out.Decisions)
	a.err = a.set()
}

// holds reports whether a decision would only withdraw what cannot be known yet. Preconditions:
// a.mu is held.
func (a *announcer) holds() bool {
	n := &a.node
	if n.NotSynced && !n.Stopping && !n.Draining && time.Now().Before(a.held) {
		return true
	}
	a.held = time.Time{}
	return false
}

// ask decides for a state of the node, if something may have changed. A stop is for good: n may
// have been read before it.
func (a *announcer) ask(n announce.Node) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n.Stopping = n.Stopping || a.node.Stopping
	if n == a.node && a.err == nil && (a.next.IsZero() || time.Now().Before(a.next)) {
		return
	}
	a.node = n
	a.decide(&a.node)
}

// keeps reports whether routers keep the routes during a restart.
func (a *announcer) keeps() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.speaker.Keeps()
}

// close withdraws everything and ends the sessions. Before a restart routes stay where routers
// keep them.
func (a *announcer) close(restart bool) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed, a.routes = true, nil
	if restart && a.speaker.Keeps() {
		return a.speaker.Leave()
	}
	return errors.Join(a.speaker.Set(nil), a.speaker.Close())
}

// status is what `weir status` shows.
func (a *announcer) status() *api.Announce {
	if a == nil {
		return nil
	}
	out := &api.Announce{Speaker: a.name, Peers: a.peers(), Addresses: []api.AnnouncedAddress{}, Routes: []string{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Objects, out.MaxAddresses = a.objectStatus(), a.rule.MaxAddresses()
	for _, d := range a.decisions {
		x := api.AnnouncedAddress{Address: d.Address, Announced: d.Reason == announce.Announced, Detail: d.Detail, Since: d.Since}
		if !x.Announced {
			x.Reason = d.Reason.String()
		}
		for _, f := range a.addresses[d.Address] {
			x.Services = append(x.Services, f.Service)
		}
		slices.Sort(x.Services)
		x.Services = slices.Compact(x.Services)
		out.Addresses = append(out.Addresses, x)
	}
	for _, r := range a.routes {
		out.Routes = append(out.Routes, r.Prefix.String())
	}
	out.Held = a.rule.Held()
	return out
}

// peers are the routers, with their sessions.
func (a *announcer) peers() []api.AnnouncePeer {
	out := []api.AnnouncePeer{}
	a.mu.Lock()
	speaker := a.speaker
	a.mu.Unlock()
	for _, p := range speaker.Peers() {
		peer := api.AnnouncePeer{Peer: p.Name, ASN: p.ASN, State: p.State, Established: p.Established, BFD: p.BFD, Routes: p.Routes, Ends: p.Ends, Reason: p.Reason}
		if !p.Since.IsZero() {
			peer.Since = &p.Since
		}
		out = append(out, peer)
	}
	return out
}

// announceNode is the state of the node for the rule. Preconditions: d.mu is not held.
func (d *Daemon) announceNode() announce.Node {
	n := announce.Node{Stopping: d.draining.Load() != nil || d.withdraws.Load(), Draining: d.selfDrained.Load() != nil, NotEligible: d.notEligible()}
	if n.NotEligible == "" && d.announcer != nil && d.announcer.cordons.Load() && d.isCordoned() {
		n.NotEligible = fmt.Sprintf("node %s is cordoned (announce.honorCordon)", d.cfg.NodeName)
	}
	n.NotSynced = !d.published.Load() || d.announcer.waits()
	n.Unhealthy = pathFault(d.lb)
	return n
}

// isCordoned reports whether the source says that the node is unschedulable.
func (d *Daemon) isCordoned() bool {
	s, ok := d.source.(interface{ NodeCordoned() bool })
	return ok && s.NodeCordoned()
}

// lookAnnounce decides by the state of the node now. No earlier state is taken for a later one.
func (d *Daemon) lookAnnounce() {
	if d.announcer == nil {
		return
	}
	d.announcer.looking.Lock()
	defer d.announcer.looking.Unlock()
	d.announcer.ask(d.announceNode())
}

// followAnnounce asks for the health of the packet path, and for what time alone changes.
func (d *Daemon) followAnnounce(ctx context.Context) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.lookAnnounce()
		}
	}
}

// withdrawAll withdraws before a stop, and returns how long packets may still come.
func (d *Daemon) withdrawAll() time.Duration {
	if d.announcer == nil {
		return 0
	}
	d.withdraws.Store(true)
	d.announcer.ask(announce.Node{Stopping: true})
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.Announce.Linger()
}
