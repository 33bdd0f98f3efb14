package l2

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// address is what a link knows of an address.
type address struct {
	wanted   bool
	unwanted string // why not
	owned    bool
	eligible bool
	// release is until when an owner waits for another that takes over; zero: it does not.
	release time.Time
	// probes are those that were sent to find who has the address, decided from when it may be
	// taken. foreign is who has it, until foreignUntil.
	probes       int
	probed       time.Time
	foreign      hardware
	foreignUntil time.Time
	// round is the number of the next announcement, at announce.
	round    int
	announce time.Time
	rival    hardware // the last that claimed the address, of this owner or of none
	rivalAt  time.Time
	defended time.Time
	joined   bool // a member of the solicited-node group

	before string // the last node that owned it

	state  State
	since  time.Time
	owner  string
	reason string
}

// Times of probes and announcements.
const (
	probeCount   = 3
	probePause   = 100 * time.Millisecond
	foreignTime  = 12 * time.Second
	foreignProbe = 5 * time.Second
	defendEvery  = time.Second
	// agreeWithin is until nodes that start at the same time agree who has an address: until then each
	// may take it for its own.
	agreeWithin = 2 * time.Second
	slowly      = time.Minute
	// perStep bounds the addresses that are announced or probed at once, stepPause is until the
	// next.
	perStep   = 250
	stepPause = 5 * time.Millisecond
)

// rounds are when the announcements after a change come, from the one before.
var rounds = []time.Duration{0, 100 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second}

// step decides about all addresses, if something has changed, and sends what is due. It returns when
// time alone changes something.
func (l *link) step(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owing(now)
	due := !l.next.IsZero() && !now.Before(l.next)
	if l.changed || due {
		l.next, l.changed = time.Time{}, false
		l.decide(now)
		l.sendDue(now)
	}
	l.hellos(now)
	return l.next
}

// decide takes, releases and gives up addresses. Preconditions: l.mu is held.
func (l *link) decide(now time.Time) {
	var eligible, owned []netip.Addr
	for _, a := range slices.SortedFunc(maps.Keys(l.addresses), netip.Addr.Compare) {
		x := l.addresses[a]
		l.decideAbout(a, x, now)
		if x.eligible {
			eligible = append(eligible, a)
		}
		if x.owned {
			owned = append(owned, a)
		}
		if !x.wanted && !x.owned {
			l.setGroup(a, x, false)
			delete(l.addresses, a)
		}
	}
	ended := l.preemptEnded(len(eligible) > 0, now)
	if ended || !slices.Equal(eligible, l.eligible) || !slices.Equal(owned, l.owned) {
		l.eligible, l.owned = eligible, owned
		l.say()
	}
	l.show()
	l.report()
}

// decideAbout decides about an address.
func (l *link) decideAbout(a netip.Addr, x *address, now time.Time) {
	why, waits := l.obstacle(a, x, now)
	if waits != "" {
		why = ""
	}
	self := standing{
		eligible: why == "", owned: x.owned, preempts: l.preempts(), leaves: x.owned && !x.eligible, weight: weight(l.member(), a),
	}
	var others []standing
	owner := ""
	for _, o := range l.others {
		if o.peer == nil {
			continue
		}
		s := o.peer.standing(a)
		if s.owned {
			owner, x.before = o.peer.Node, o.peer.Node
		}
		s.preempts = s.preempts || now.Before(o.newUntil)
		others = append(others, s)
	}
	v, conflict := elect(self, others)
	if conflict && x.state == Owner && now.Sub(x.since) > agreeWithin {
		l.news.rivals = append(l.news.rivals, a)
	}
	x.eligible = self.eligible && v != release
	switch v {
	case take:
		if waits == "" {
			l.take(a, x, now)
		}
	case giveUp:
		l.lose(a, x, owner+" has it")
		x.probes = probeCount // its owner has asked
	case release:
		switch {
		case !l.carrier || l.socket == nil: // nobody hears it
			l.lose(a, x, why)
		case why == "": // a node that takes it back is there
			x.release = time.Time{}
		case x.release.IsZero():
			x.release = now.Add(max(l.Linger(), releaseAtLeast))
		case !now.Before(x.release):
			l.lose(a, x, why)
		}
		if x.owned && why != "" {
			l.sooner(x.release)
		}
	case stand:
		if x.owned {
			x.release = time.Time{}
			if conflict { // the other one's frames came last
				x.round, x.announce = 0, now
			}
		}
	}
	l.note(x, owner, cmp.Or(why, waits), now)
}

// obstacle is why this node may not own an address, and waits why it may not take it yet although the
// others are to leave it to this node; "" if it may. Preconditions: l.mu is held.
func (l *link) obstacle(a netip.Addr, x *address, now time.Time) (why, waits string) {
	switch {
	case !x.wanted:
		return x.unwanted, ""
	case l.socket == nil:
		return l.name + ": " + l.fault, ""
	case !l.carrier:
		return l.name + " has no carrier", ""
	case l.Local != nil && l.Local(a):
		return "the kernel of this node has the address", ""
	case x.owned:
		return "", ""
	case now.Before(l.ready):
		l.sooner(l.ready)
		return "listening for other nodes on " + l.name, ""
	}
	if at := l.joining(now); at.IsValid() {
		return fmt.Sprintf("the node %s on %s has not said yet which addresses it owns", at, l.name), ""
	}
	return l.inUse(a, x, now)
}

// inUse looks for a host that has the address, unless a member owns it.
func (l *link) inUse(a netip.Addr, x *address, now time.Time) (why, waits string) {
	for _, o := range l.others {
		if o.peer != nil && o.peer.owned[a] {
			x.probes = probeCount // its owner has asked
			return "", ""
		}
	}
	if now.Before(x.foreignUntil) {
		if now.Sub(x.probed) >= foreignProbe {
			x.probed = now
			l.socket.send(probe(a, l.mac))
		}
		l.sooner(now.Add(foreignProbe))
		return "another host has the address: " + x.foreign.String(), ""
	}
	if again := x.probed.Add(probePause); now.Before(again) {
		l.sooner(again)
		return "", l.asking()
	}
	if x.probes < probeCount {
		x.probes++
		x.probed = now
		l.socket.send(probe(a, l.mac))
		l.sooner(now.Add(probePause))
		return "", l.asking()
	}
	return "", ""
}

func (l *link) asking() string { return "asking who has the address on " + l.name }

func (l *link) take(a netip.Addr, x *address, now time.Time) {
	why := "no node had it"
	switch {
	case x.before == "" || x.before == l.node:
	case slices.Contains(l.names(), x.before):
		why = x.before + " gave it up"
	default:
		why = x.before + ", its owner, is gone"
	}
	x.owned, x.release, x.round, x.announce, x.before = true, time.Time{}, 0, now, l.node
	l.setGroup(a, x, true)
	l.news.took.add(why, a)
}

// lose gives an address up at once. Another host may take it: what was asked before counts no more.
func (l *link) lose(a netip.Addr, x *address, why string) {
	x.owned, x.release, x.probes = false, time.Time{}, 0
	l.setGroup(a, x, false)
	l.news.lost.add(why, a)
}

func (l *link) setGroup(a netip.Addr, x *address, member bool) {
	if l.socket == nil || x.joined == member {
		return
	}
	x.joined = member
	if !member {
		l.socket.leave(a)
	} else if err := l.socket.join(a); err != nil {
		l.log.Warn("announce: multicast group of an address", "interface", l.name, "address", a, "err", err)
	}
}

// note keeps the state for status. Preconditions: l.mu is held.
func (l *link) note(x *address, owner, why string, now time.Time) {
	state := Standby
	switch {
	case x.owned:
		state, owner = Owner, l.node
		if !x.release.IsZero() && why != "" {
			why = "until another node takes it: " + why
		}
	case !x.eligible:
		state = Ineligible
	case why == "" && owner != "":
		why = owner + " has it"
	case why == "":
		why = "another node is the first choice for it"
	}
	if state != x.state || x.since.IsZero() {
		x.state, x.since = state, now
	}
	x.owner, x.reason = owner, why
}

// show has the addresses answered that are owned. Preconditions: l.mu is held.
func (l *link) show() {
	answers, known := make(map[netip.Addr]bool), make(map[netip.Addr]bool, len(l.addresses))
	for a, x := range l.addresses {
		known[a] = true
		if x.owned {
			answers[a] = true
		}
	}
	l.answers.Store(&answers)
	l.known.Store(&known)
}

// sendDue sends the announcements that are due. Preconditions: l.mu is held.
func (l *link) sendDue(now time.Time) {
	if l.socket == nil {
		return
	}
	if !l.fence.open() {
		l.sooner(now.Add(stepPause))
		return
	}
	sent := 0
	for a, x := range l.addresses {
		if !x.owned {
			continue
		}
		if now.Before(x.announce) {
			l.sooner(x.announce)
			continue
		}
		if sent++; sent > perStep {
			l.sooner(now.Add(stepPause))
			continue
		}
		l.socket.send(announcements(a, l.mac)...)
		x.round++
		pause := slowly
		if x.round < len(rounds) {
			pause = rounds[x.round]
		}
		x.announce = now.Add(pause)
		l.sooner(x.announce)
	}
}

// hear takes a frame.
func (l *link) hear(f []byte) {
	h, ok := parse(f)
	if !ok {
		return
	}
	if h.question && (*l.answers.Load())[h.target] && l.fence.open() {
		l.mu.Lock()
		if s := l.socket; s != nil {
			s.send(h.answer(l.mac))
		}
		l.mu.Unlock()
	}
	if h.claimed.IsValid() && (*l.known.Load())[h.claimed] {
		l.claimed(h.claimed, h.mac, time.Now())
	}
}

// claimed notes that a frame says that another host has an address.
func (l *link) claimed(a netip.Addr, mac hardware, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.addresses[a]
	if x == nil || mac == l.mac {
		return
	}
	for _, o := range l.others {
		if o.peer != nil && o.peer.mac == mac {
			if x.owned && now.Sub(x.defended) > defendEvery { // it may not know better
				x.defended, o.dirty = now, true
				l.poke()
			}
			return
		}
	}
	if !x.owned {
		if now.Sub(x.probed) < 2*probePause || x.foreign == mac {
			x.foreign, x.foreignUntil, l.changed = mac, now.Add(foreignTime), true
			x.rival, x.rivalAt = mac, now
		}
		return
	}
	if x.rival, x.rivalAt = mac, now; now.Sub(x.defended) > defendEvery {
		x.defended, x.round, x.announce, l.changed = now, 0, now, true
		l.news.foreign = append(l.news.foreign, a)
		l.poke()
	}
}
