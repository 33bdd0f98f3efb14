// Package announcer announces the addresses of frontends to routers, as far as the rule of
// lb/announce says so for the state of the node, the frontends, the configuration, and objects of
// files and of the API server.
package announcer

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

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// Announcer announces the addresses of frontends to routers. A publication withdraws before it
// takes anything away (leaving), and announces afterwards (follow).
type Announcer struct {
	name     string // of the speaker
	path     packetPath
	state    Node
	nodeName string
	events   *event.Ring
	log      *slog.Logger
	looking  sync.Mutex  // orders Look
	cordons  atomic.Bool // announce.honorCordon

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
	links     *links // nil: nothing is announced on links
}

// healthEvery is how often the health of the packet path is asked for. With links that is when
// their loops run, and at the latest after healthAtLatest.
const (
	healthEvery    = 100 * time.Millisecond
	healthAtLatest = 250 * time.Millisecond
)

// holdWithoutView is how long routes that were there before this process stay without a view of
// Services.
const holdWithoutView = 10 * time.Second

// Node says how this node is.
type Node interface {
	// State is the state for the rule, but for what the announcer knows itself.
	State() announce.Node
	// Cordoned reports whether the source says that the node is unschedulable.
	Cordoned() bool
}

// packetPath is the part of lb.LB that an announcer looks at.
type packetPath interface {
	Router() *route.Watcher
	Tables() *table.Table
	// Unsteered are the frontends whose packets go to the kernel.
	Unsteered() []*table.FrontendEntry
}

// Config is what an announcer is made of.
type Config struct {
	*config.Configuration
	PacketPath *lb.LB
	Node       Node
	Source     source.Source // of Services: it may know the labels of the node
	Events     *event.Ring
	Log        *slog.Logger
}

// New starts the speaker of the configuration, with the objects of an earlier process; nil where
// nothing is to be announced.
func New(c Config) (*Announcer, error) {
	if !c.Announce.On() {
		return nil, nil
	}
	a, err := newAnnouncer(c.Configuration, c.PacketPath, c.Log)
	if err != nil {
		return nil, err
	}
	a.state, a.events = c.Node, c.Events
	linger := func() time.Duration { return time.Duration(a.lingering.time.Load()) }
	if a.links, err = newLinks(c.Configuration, c.PacketPath, linger, c.Events, c.Log); err != nil {
		return nil, errors.Join(err, a.Close(false))
	}
	objects, err := newObjectSource(c.Configuration, c.Source, c.Log)
	if err != nil {
		return nil, errors.Join(err, a.Close(false))
	}
	a.startObjects(objects, c.Log)
	return a, nil
}

func newAnnouncer(cfg *config.Configuration, path packetPath, log *slog.Logger) (*Announcer, error) {
	c := &cfg.Announce
	in := objectInput{addresses: path.Router().Addresses()}
	in.readFiles(c)
	o := newObjects(cfg, &in)
	o.checkPrepend(c)
	base, session, speaker, err := startSpeaker(c, o, in.addresses, log)
	if err != nil {
		return nil, fmt.Errorf("announce: %w", err)
	}
	a := startAnnouncer(speaker, path, o.settings(c))
	a.cfg, a.input, a.configured, a.session = *cfg, in, base, session
	a.cordons.Store(cfg.Announce.HonorCordon)
	a.lingering.time.Store(int64(cfg.Announce.AfterWithdrawal()))
	a.name, a.nodeName, a.log, a.objects, a.passwords = c.Speaker, cfg.NodeName, log, o, passwordsOf(c.Peers)
	if _, none := speaker.(silent); none && c.Speaker == config.AnnounceBGP {
		a.unheard = []error{errNoRouter}
	}
	return a, nil
}

// startAnnouncer makes an announcer that waits for Services. What a killed process has announced
// stays meanwhile.
func startAnnouncer(s announce.Speaker, path packetPath, settings announce.Settings) *Announcer {
	a := &Announcer{
		speaker: s, path: path, services: map[string][]announcedFrontend{}, addresses: map[netip.Addr][]announce.Frontend{},
		node: announce.Node{NotSynced: true}, lingering: lingering{begun: make(chan struct{}, 1)},
	}
	a.rule.SetSettings(settings)
	if prefixes := s.Adopted(); len(prefixes) > 0 {
		a.rule.Adopt(prefixes)
		a.held = time.Now().Add(holdWithoutView)
		a.next = a.held
	}
	return a
}

// Leaving withdraws addresses that a publication is about to take away, or that will not be served
// after it, and announces none. Frontends that it adds do not count yet. The publication is to be
// the one returned, with which those of withdrawn addresses linger. prepared is that publication,
// nil if the caller is to prepare it.
func (a *Announcer) Leaving(put []table.Service, del []string, tables *table.Table) (_ []table.Service, _ []string, prepared *table.Change) {
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
	if slices.ContainsFunc(a.decisions, announced) { // else nothing can be withdrawn
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

func announced(d announce.Decision) bool { return d.Reason == announce.Announced }

// programmed says of the frontends that are published whether packets reach the packet path.
// Preconditions: a.mu is held.
func (a *Announcer) programmed() map[table.Key]bool {
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
func (a *Announcer) look(s *table.Snapshot, steered func(table.Key) bool) {
	for name, list := range a.services {
		for i := range list {
			f := &list[i]
			entry := s.Lookup(&f.key)
			f.held = entry != nil && entry.ServiceName != name
			f.Programmed = entry != nil && !f.held && steered(f.key)
		}
	}
}

// Follow takes over a publication that is in effect.
func (a *Announcer) Follow(put []table.Service) {
	if a == nil {
		return
	}
	unsteered := map[table.Key]bool{}
	for _, f := range a.path.Unsteered() {
		unsteered[f.Key] = true
	}
	a.published(put, a.path.Tables().Load(), func(k table.Key) bool { return !unsteered[k] })
}

// published takes over a publication: s is in effect.
func (a *Announcer) published(put []table.Service, s *table.Snapshot, steered func(table.Key) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range put {
		a.services[put[i].Name] = frontendsOf(&put[i])
	}
	a.look(s, steered)
	a.decide(&a.node)
}

// decide brings the routers in line. Preconditions: a.mu is held.
func (a *Announcer) decide(n *announce.Node) {
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
	a.links.set(n, &a.rule, a.decisions)
}

// holds reports whether a decision would only withdraw what cannot be known yet. Preconditions:
// a.mu is held.
func (a *Announcer) holds() bool {
	n := &a.node
	if n.NotSynced && !n.Stopping && !n.Draining && time.Now().Before(a.held) {
		return true
	}
	a.held = time.Time{}
	return false
}

// ask decides for a state of the node, if something may have changed. A stop is for good: n may
// have been read before it.
func (a *Announcer) ask(n announce.Node) {
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

// Keeps reports whether routers keep the routes during a restart.
func (a *Announcer) Keeps() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.speaker.Keeps()
}

// Close withdraws everything and ends the sessions. Before a restart routes stay where routers
// keep them.
func (a *Announcer) Close(restart bool) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed, a.routes = true, nil
	a.links.close()
	if restart && a.speaker.Keeps() {
		return a.speaker.Leave()
	}
	return errors.Join(a.speaker.Set(nil), a.speaker.Close())
}

// nodeNow is the state of the node for the rule.
func (a *Announcer) nodeNow() announce.Node {
	n := a.state.State()
	if n.NotEligible == "" && a.cordons.Load() && a.state.Cordoned() {
		n.NotEligible = fmt.Sprintf("node %s is cordoned (announce.honorCordon)", a.nodeName)
	}
	n.NotSynced = n.NotSynced || a.waits()
	return n
}

// Look decides by the state of the node now. No earlier state is taken for a later one.
func (a *Announcer) Look() {
	if a == nil {
		return
	}
	a.looking.Lock()
	defer a.looking.Unlock()
	a.ask(a.nodeNow())
}

// Reclaim takes back the addresses on links that this node is the first choice for, once.
func (a *Announcer) Reclaim() {
	if a != nil && a.links != nil {
		a.links.speaker.Reclaim(reclaimFor)
	}
}

// Withdraw withdraws everything, for good.
func (a *Announcer) Withdraw() { a.ask(announce.Node{Stopping: true}) }

// Run follows the state of the node, the objects, and the time of frontends of withdrawn addresses,
// until ctx ends. endLingering is to publish what EndLingering returns.
func (a *Announcer) Run(ctx context.Context, endLingering func(now time.Time)) error {
	if a == nil {
		return nil
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { a.followLingering(ctx, endLingering) })
	if a.source != nil {
		tasks.Go(func() { a.followObjects(ctx) })
	}
	every, ran := healthEvery, (<-chan time.Time)(nil)
	if a.links != nil {
		every, ran = healthAtLatest, a.links.ran
	}
	tick := aligned.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-ran:
		}
		a.Look()
	}
}
