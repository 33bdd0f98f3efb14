package l2

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// other is a member.
type other struct {
	node    *memberlist.Node
	address netip.Addr
	peer    *peer // nil: it has said nothing yet that proves to be new
	dirty   bool  // it has not been sent the claims of now
	sending bool
	// challenge is the first of the challenges that the node owes an answer to, 0: it owes none.
	// challenged is since when, and asked when it was last asked.
	challenge         uint64
	challenged, asked time.Time
	// answers are the last challenges of the node. replied is when it was last sent claims because of
	// its own, and owed is true if it is to be sent them again for that: see replyEvery.
	answers []uint64
	replied time.Time
	owed    bool
	// newUntil is until when the node gets the addresses that it is the first choice for, since it
	// has never served on this link before; zero: it gets none.
	newUntil time.Time
	// serves is since when it might own an address; zero: not yet.
	serves time.Time
}

const (
	// replyEvery bounds how often a node is sent the claims because of its own: they may be recorded
	// ones that any host sends again, and the claims are large.
	replyEvery = 100 * time.Millisecond
	// answerWithin is for how long the claims of a member count that answers no challenge. It is asked
	// again every askEvery.
	answerWithin = 2 * time.Second
	askEvery     = 500 * time.Millisecond
)

func (l *link) onLink(a netip.Addr) bool {
	return a.Is6() && a.IsLinkLocalUnicast() || slices.ContainsFunc(l.subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

// admits reports whether a node may be a member.
func (l *link) admits(name string, a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := l.others[name]
	return l.onLink(a) && len(name) <= maxName && (is || len(l.others) < maxMembers-1)
}

// came takes a node among the members.
func (l *link) came(self string, n *memberlist.Node) {
	if n.Name == self {
		return
	}
	a, _ := netip.AddrFromSlice(n.Addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &other{node: n, address: a.Unmap(), dirty: true}
	o.doubt(&l.challenges, time.Now())
	delete(l.strangers, o.address)
	l.others[n.Name], l.changed = o, true
	l.poke()
}

// left forgets a node that is gone, and all that it said.
func (l *link) left(n *memberlist.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone(n.Name)
	l.changed = true
	l.poke()
}

// told takes over the claims of a node. Claims can be recorded and sent again, with a key too. So
// those of a process that is not known, or with a sequence number that is not higher, count only with
// the answer to a challenge that the node was sent since. No clock of another node has a part in it.
func (l *link) told(b []byte, now time.Time) {
	if len(b) == 0 {
		return
	}
	p, err := decode(b)
	if err != nil {
		l.log.Debug("announce: claims of another node", "interface", l.name, "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.others[p.Member]
	if o == nil {
		return // it is sent a challenge when it comes
	}
	same := o.peer != nil && o.peer.Process == p.Process
	proved := o.challenge != 0 && l.challenges.answered(p.Answers, o.challenge)
	fresh := proved || same && p.Sequence > o.peer.Sequence
	late := !fresh && (!same || p.Sequence < o.peer.Sequence)
	asks := l.challenges.take(p.Process, p.Challenge, l.isProcess)
	if asks {
		o.answer(p.Challenge)
	}
	if late && o.challenge == 0 {
		o.doubt(&l.challenges, now)
	}
	switch {
	case asks && fresh: // no recorded claims
		o.dirty = true
		l.poke()
	case asks || late:
		o.owed = true
		o.reply(now)
		l.poke()
	}
	if !fresh {
		return
	}
	if proved {
		o.challenge = 0
	}
	o.peer, l.changed = p, true
	if len(p.eligible) > 0 && o.serves.IsZero() {
		o.serves = now
		if l.met.meet(p.Member, l.isMember) { // also for a node that has just begun: the first to serve takes all
			o.newUntil = now.Add(newFor)
		}
	}
	for _, x := range l.addresses {
		if x.foreign == p.mac { // this node had it, before it was known
			x.foreignUntil = time.Time{}
		}
		if x.rival == p.mac {
			x.rivalAt = time.Time{}
		}
	}
	l.poke()
}

// gone forgets a member, and keeps for how long it has served. Preconditions: l.mu is held.
func (l *link) gone(name string) {
	if o := l.others[name]; o != nil && !o.serves.IsZero() {
		l.met.left(name, time.Since(o.serves))
	}
	delete(l.others, name)
}

// isMember reports whether a name is that of a member. Preconditions: l.mu is held.
func (l *link) isMember(name string) bool { return l.others[name] != nil }

// isProcess reports whether a process is that of a member. Preconditions: l.mu is held.
func (l *link) isProcess(process uint64) bool {
	for _, o := range l.others {
		if o.peer != nil && o.peer.Process == process {
			return true
		}
	}
	return false
}

// reply has a node sent the claims that it is owed, if it was not just now. Preconditions: link.mu is held.
func (o *other) reply(now time.Time) {
	if o.owed && now.Sub(o.replied) >= replyEvery {
		o.owed, o.dirty, o.replied = false, true, now
	}
}

// owing sends claims that are owed, and forgets those of a member that does not answer: of a build that
// knows no challenges, the claims of the build before it would count for ever. A slow member may be taken
// for such a one. That is safe: its answer counts also later, and before this node takes an address that
// the member owned, three probes ask for it, which an owner answers. Preconditions: l.mu is held.
func (l *link) owing(now time.Time) {
	for _, o := range l.others {
		if o.challenge != 0 && now.Sub(o.asked) >= askEvery {
			o.owed = true
		}
		o.reply(now)
		if o.challenge == 0 || now.Sub(o.challenged) < answerWithin {
			continue
		}
		o.challenged = now
		if o.peer == nil {
			continue
		}
		for a, x := range l.addresses {
			if o.peer.owned[a] && !x.owned {
				x.probes = 0
			}
		}
		l.log.Warn("announce: a node does not prove that its claims are new", "interface", l.name, "node", o.peer.Node)
		o.peer, l.changed = nil, true
	}
}

// current are the claims for a member that asks for them.
func (l *link) current() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.encode()
}

// say makes new claims. Preconditions: l.mu is held, or nobody else has l.
func (l *link) say() {
	l.sequence++
	l.said = claims{
		Member: l.member(), Node: l.node, MAC: net.HardwareAddr(l.mac[:]).String(), Process: l.process, Sequence: l.sequence,
		Preempts: l.preempts(), Eligible: l.eligible, Owned: l.owned,
	}
	for _, o := range l.others {
		o.dirty = true
	}
}

// tell sends the claims to the members that do not have them.
func (l *link) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members == nil {
		return
	}
	for name, o := range l.others {
		if o.dirty && !o.sending {
			o.sending = true
			m := l.members
			m.tasks.Go(func() { l.sendTo(m, name, o) })
		}
	}
}

// sendTo sends the claims to a member until it has those of now, or is gone.
func (l *link) sendTo(m *members, name string, o *other) {
	for {
		l.mu.Lock()
		if !o.dirty || l.others[name] != o || l.members != m {
			o.sending = false
			l.mu.Unlock()
			return
		}
		said := o.saying(l.said, &l.challenges, time.Now())
		l.mu.Unlock()
		if err := m.send(o.node, said.encode()); err != nil {
			l.mu.Lock()
			o.dirty = true
			l.mu.Unlock()
			if !m.tr.pause() {
				return
			}
		}
	}
}

// names are the other nodes on the link, by name. Preconditions: l.mu is held.
func (l *link) names() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(l.others)) {
		o := l.others[name]
		if o.peer == nil {
			list = append(list, o.address.String())
			continue
		}
		list = append(list, cmp.Or(o.peer.Node, name))
	}
	return list
}
