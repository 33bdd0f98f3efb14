package l2

import (
	"cmp"
	"maps"
	"math/rand/v2"
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
	// challenge is to be answered by the next claims that count, 0: none. asked is the last challenge
	// of the node.
	challenge, asked uint64
	// newUntil is until when the node gets the addresses that it is the first choice for, since it
	// has never been on this link; zero: it gets none.
	newUntil time.Time
}

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
	o := &other{node: n, address: a.Unmap(), dirty: true, challenge: challenge()}
	if !l.met[n.Name] { // also for a node that has just begun: the first to serve takes all
		o.newUntil = time.Now().Add(newFor)
	}
	if len(l.met) >= 16*maxMembers {
		clear(l.met)
	}
	l.met[n.Name] = true
	delete(l.strangers, o.address)
	l.others[n.Name], l.changed = o, true
	l.poke()
}

// left forgets a node that is gone, and all that it said.
func (l *link) left(n *memberlist.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.others, n.Name)
	l.changed = true
	l.poke()
}

// told takes over the claims of a node. Claims can be recorded and sent again, with a key too. So
// those of a process that is not known, or with a sequence number that is not higher, count only with
// the answer to a challenge that the node was sent since. No clock of another node has a part in it.
func (l *link) told(b []byte) {
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
	if p.Challenge != 0 && p.Challenge != o.asked {
		o.asked, o.dirty = p.Challenge, true
		l.poke()
	}
	same := o.peer != nil && o.peer.Process == p.Process
	switch {
	case o.challenge != 0 && o.challenge == p.Answer:
		o.challenge = 0
	case same && p.Sequence == o.peer.Sequence:
		return
	case !same || p.Sequence < o.peer.Sequence:
		o.challenge, o.dirty = cmp.Or(o.challenge, challenge()), true
		l.poke()
		return
	}
	o.peer, l.changed = p, true
	l.poke()
}

// challenge is a random number that is not 0.
func challenge() uint64 { return rand.Uint64() | 1 }

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
		Preempts: l.preempts(time.Now()), Eligible: l.eligible, Owned: l.owned,
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
		o.dirty = false
		said := l.said
		said.Challenge, said.Answer = o.challenge, o.asked
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
