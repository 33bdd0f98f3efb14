package l2

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/notice"
)

// Times of a link.
const (
	// listenFor is how long a node listens for others before it takes an address: at the start, and
	// when a carrier is back.
	listenFor = 600 * time.Millisecond
	// atLatest is how often the carrier is looked at without members, with them at each probe.
	atLatest = 2 * probeEvery
	// releaseAtLeast is how long an owner waits for another at least.
	releaseAtLeast = 300 * time.Millisecond
	// refreshEvery is how often the interface is looked over at least, refreshAgain how often while it
	// changes or cannot be used.
	refreshEvery = 10 * time.Second
	refreshAgain = time.Second
	// newFor is how long a node is new that may own an address: until then its others have settled.
	newFor = 30 * time.Second
)

// link is an interface on which addresses are announced.
type link struct {
	*Config
	name string
	node string
	key  []byte
	log  *slog.Logger
	// process is of this one: see claims.
	process uint64

	wake   chan struct{}
	closed chan struct{}
	tasks  sync.WaitGroup
	// answers are the addresses that are answered for, known those that are looked for in frames.
	answers, known atomic.Pointer[map[netip.Addr]bool]
	fence          fence

	mu        sync.Mutex // guards the fields below; nothing of memberlist is called with it
	fault     string     // why the interface cannot be used, "" if it can
	socket    *socket
	members   *members
	index     int // of socket
	seen      int // of the interface at the last look, 0: it is not there
	mac       hardware
	local     netip.Addr // by which the others reach this node
	subnets   []netip.Prefix
	carrier   bool
	ready     time.Time // from when addresses are taken
	refreshed time.Time
	stale     bool            // the interface may have changed since refreshed
	notices   *notice.Notices // of the interface; of run
	greet     []time.Time     // when to say hello, before each second
	greeted   time.Time
	others    map[string]*other
	// challenges prove claims to be new.
	challenges challenges
	met        acquaintances
	strangers  map[netip.Addr]*stranger
	crowded    time.Time // when a host was heard that there is no room for in strangers
	addresses  map[netip.Addr]*address
	wants      []Want
	atOnce     bool // as of Speaker.Set
	why        func(netip.Addr) string
	changed    bool
	next       time.Time // when time alone changes something; zero: never
	sequence   uint64
	said       claims // of now
	eligible   []netip.Addr
	owned      []netip.Addr
	news       news
	// Counts of addresses since the start.
	took, gaveUp, rivals uint64
	// reclaimFor is for how long addresses are taken back, 0: not. reclaimUntil is until when, zero while
	// this node may own none.
	reclaimFor   time.Duration
	reclaimUntil time.Time
}

// Values of link.fault.
const (
	absent   = "the interface is not there, or has no address"
	starting = "it is starting"
)

func newLink(c *Config, name string) *link {
	l := &link{
		Config: c, name: name, node: c.Node, key: c.Key, log: c.Log, process: rand.Uint64(), challenges: newChallenges(),
		wake: make(chan struct{}, 1), closed: make(chan struct{}), fence: fence{start: time.Now()},
		others: map[string]*other{}, met: acquaintances{}, strangers: map[netip.Addr]*stranger{}, addresses: map[netip.Addr]*address{},
	}
	none := map[netip.Addr]bool{}
	l.answers.Store(&none)
	l.known.Store(&none)
	l.fault = starting
	l.why = func(netip.Addr) string { return "" }
	l.say()
	var err error
	if l.notices, err = notice.Open(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR); err != nil {
		l.log.Warn("announce: the interface is looked over more often", "interface", name, "err", err)
	}
	l.tasks.Go(l.run)
	return l
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run follows the link until it is closed.
func (l *link) run() {
	defer l.notices.Close()
	late := time.NewTimer(0)
	defer late.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	for {
		select {
		case <-l.closed:
			l.shut()
			return
		case <-l.wake:
		case <-late.C:
		case <-soon.C:
		}
		late.Reset(atLatest)
		if gap := l.fence.pass(); gap > 0 {
			l.mu.Lock()
			l.greetSoon(time.Now())
			l.mu.Unlock()
			l.log.Warn("announce: the process did not run, its addresses may be another node's", "interface", l.name, "for", gap)
		}
		l.refresh(time.Now())
		if again := l.step(time.Now()); !again.IsZero() {
			soon.Reset(max(time.Until(again), time.Millisecond))
		}
		l.tell()
		l.Ran()
	}
}

// refresh follows the interface: its carrier at each notice of the kernel's, all else after a change, once
// a second while there are notices, and at intervals. It is called by run alone.
func (l *link) refresh(now time.Time) {
	l.mu.Lock()
	noticed, age := l.notices.Changed(), now.Sub(l.refreshed)
	l.stale = l.stale || noticed || l.socket == nil
	due := age >= refreshEvery || l.stale && age >= refreshAgain
	if !noticed && !due {
		l.mu.Unlock()
		return
	}
	index, carrier := carrierOf(l.name)
	changed := index != l.seen || carrier != l.carrier
	if !changed && !due {
		l.mu.Unlock()
		return
	}
	l.seen, l.refreshed, l.stale = index, now, false
	if changed {
		l.changed, l.carrier, l.ready = true, carrier, now.Add(listenFor)
		l.greetSoon(now)
	}
	l.mu.Unlock()
	mac, subnets, local := look(l.name)
	l.mu.Lock()
	open, usable := l.socket != nil, index != 0 && local.IsValid()
	switch {
	case !open && !usable:
		l.fault = absent
	case !open && l.fault == absent:
		l.fault = starting
	}
	other := open && (index != l.index || mac != l.mac || local != l.local)
	if !slices.Equal(subnets, l.subnets) {
		l.subnets = subnets
		l.applyWants()
	}
	l.mu.Unlock()
	if other {
		l.shut()
	}
	if (other || !open) && usable {
		l.open(index, mac, local, now)
	}
}

// open begins on an interface. It is called by run alone.
func (l *link) open(index int, mac hardware, local netip.Addr, now time.Time) {
	s, err := openSocket(index)
	var m *members
	if err == nil {
		l.mu.Lock()
		l.mac, l.local = mac, local // told to the members
		l.say()
		l.mu.Unlock()
		if m, err = startMembers(l, local); err != nil {
			s.close()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fault = err.Error()
		return
	}
	l.fault, l.socket, l.members, l.index = "", s, m, index
	l.ready, l.changed = now.Add(listenFor), true
	l.greetSoon(now)
	l.tasks.Go(func() {
		s.receive(l.hear)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.socket == s { // it has ended by itself, and is opened again
			l.index, l.stale = -1, true
		}
	})
}

// shut ends on an interface that is gone, or another.
func (l *link) shut() {
	l.mu.Lock()
	s, m := l.socket, l.members
	l.socket, l.members, l.index = nil, nil, 0
	l.fault = absent
	for a, x := range l.addresses {
		x.joined = false
		if x.owned {
			l.lose(a, x, "the interface changes")
		}
	}
	for name := range l.others {
		l.gone(name)
	}
	l.changed = true
	l.show()
	l.report()
	l.mu.Unlock()
	if s != nil {
		s.close()
	}
	if m != nil {
		m.close()
	}
}

// greetSoon says hello several times from now on. Preconditions: l.mu is held.
func (l *link) greetSoon(now time.Time) {
	l.greet = nil
	for _, ms := range []int{0, 30, 100, 200, 400} {
		l.greet = append(l.greet, now.Add(time.Duration(ms)*time.Millisecond))
	}
}

// hellos says hello if it is time to. Preconditions: l.mu is held.
func (l *link) hellos(now time.Time) {
	due := now.Sub(l.greeted) >= time.Second
	for len(l.greet) > 0 && !now.Before(l.greet[0]) {
		l.greet, due = l.greet[1:], true
	}
	if len(l.greet) > 0 {
		l.sooner(l.greet[0])
	}
	if due && l.members != nil && l.carrier {
		l.greeted = now
		l.members.tr.hello()
	}
}

func (l *link) sooner(t time.Time) {
	if l.next.IsZero() || t.Before(l.next) {
		l.next = t
	}
}
