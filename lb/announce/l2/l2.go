package l2

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config is what a Speaker is made of.
type Config struct {
	// Node is the name of this node. It need not be unique on a link.
	Node       string
	Interfaces []string
	// Key is the key of AES-GCM that all nodes on the links share; nil: none.
	Key []byte
	// Preempt has this node take back the addresses that it is the first choice for.
	Preempt bool
	// Linger is how long an owner that must give an address up waits for another.
	Linger func() time.Duration
	// Local reports whether the kernel of this node has an address.
	Local func(netip.Addr) bool
	// Event is called for changes, by one goroutine per link.
	Event func(Event)
	// Ran is called at each run of a link's loop, at most 150 ms apart, and must not wait: what
	// else is due then does not wake the process once more. nil: nothing is.
	Ran func()
	Log *slog.Logger
}

// State is what a node is for an address.
type State string

// States.
const (
	Owner      State = "owner"      // it answers
	Standby    State = "standby"    // it would
	Ineligible State = "ineligible" // it must not
)

// Want is an address to announce.
type Want struct {
	Address netip.Addr
	// Interfaces are those to announce it on; nil: all of the Speaker.
	Interfaces []string
}

// AddressStatus is the state of an address on an interface.
type AddressStatus struct {
	Address   netip.Addr
	Interface string
	State     State
	Owner     string // the node that answers, "" if that is not known
	Since     time.Time
	Reason    string
	// Rival is the last host that was heard to claim the address while this node or none was the
	// owner.
	Rival   string
	RivalAt time.Time
}

// LinkStatus is the state of an interface.
type LinkStatus struct {
	Interface string
	Carrier   bool
	Fault     string   // why it cannot be used
	Nodes     []string // the others on the link
	// Taken, GivenUp and Claimed count addresses that this node took, gave up, and heard another
	// claim while it was the owner.
	Taken, GivenUp, Claimed uint64
	// Unjoined are hosts on the link that say they are nodes and could not be joined, with the reason.
	Unjoined map[netip.Addr]string
}

// Speaker announces addresses on interfaces.
type Speaker struct {
	links []*link

	once sync.Once
}

// New starts a Speaker. It follows interfaces that come and go.
func New(c Config) (*Speaker, error) {
	if n := len(c.Key); n != 0 && n != 16 && n != 24 && n != 32 {
		return nil, errors.New("the key must have 16, 24 or 32 bytes")
	}
	if c.Linger == nil {
		c.Linger = func() time.Duration { return 0 }
	}
	if c.Ran == nil {
		c.Ran = func() {}
	}
	s := &Speaker{}
	for _, name := range c.Interfaces {
		s.links = append(s.links, newLink(&c, name))
	}
	return s, nil
}

// Set replaces the addresses to announce. Those that are wanted no more are given up when another
// node has taken them, or after Config.Linger; with atOnce without a wait. why says why.
func (s *Speaker) Set(want []Want, atOnce bool, why func(netip.Addr) string) {
	for _, l := range s.links {
		l.set(want, atOnce, why)
	}
}

func (l *link) set(want []Want, atOnce bool, why func(netip.Addr) string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wants, l.atOnce, l.why = want, atOnce, why
	l.applyWants()
}

// applyWants brings the addresses in line with those that are wanted. Preconditions: l.mu is held.
func (l *link) applyWants() {
	wanted := make(map[netip.Addr]bool, len(l.wants))
	for _, w := range l.wants {
		if Holds(l.subnets, w.Address) && (w.Interfaces == nil || slices.Contains(w.Interfaces, l.name)) {
			wanted[w.Address] = true
		}
	}
	for a, x := range l.addresses {
		if wanted[a] == x.wanted && (x.wanted || !l.atOnce) {
			continue
		}
		x.wanted, l.changed = wanted[a], true
		if x.wanted {
			continue
		}
		x.unwanted = cmp.Or(l.why(a), "no subnet of "+l.name+" has it")
		if l.atOnce && x.owned {
			l.lose(a, x, x.unwanted)
		}
	}
	for a := range wanted {
		if l.addresses[a] == nil {
			l.addresses[a] = &address{wanted: true, since: time.Now()}
			l.changed = true
		}
	}
	if l.changed {
		l.show()
		l.poke()
	}
}

// Reclaim takes back the addresses that this node is the first choice for, once: within d from when it may
// own one, however late that is.
func (s *Speaker) Reclaim(d time.Duration) {
	for _, l := range s.links {
		l.mu.Lock()
		l.reclaimFor, l.reclaimUntil, l.changed = d, time.Time{}, true
		l.say()
		l.mu.Unlock()
		l.poke()
	}
}

// Addresses are the states of addresses, by address and interface.
func (s *Speaker) Addresses() (out []AddressStatus) {
	for _, l := range s.links {
		l.mu.Lock()
		for a, x := range l.addresses {
			st := AddressStatus{Address: a, Interface: l.name, State: x.state, Owner: x.owner, Since: x.since, Reason: x.reason}
			if !x.rivalAt.IsZero() {
				st.Rival, st.RivalAt = x.rival.String(), x.rivalAt
			}
			out = append(out, st)
		}
		l.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b AddressStatus) int { return a.Address.Compare(b.Address) })
	return out
}

// OwnerOf is the other node that answers for an address, "" for none.
func (s *Speaker) OwnerOf(a netip.Addr) string {
	for _, l := range s.links {
		l.mu.Lock()
		for _, o := range l.others {
			if o.peer != nil && o.peer.owned[a] {
				l.mu.Unlock()
				return o.peer.Node
			}
		}
		l.mu.Unlock()
	}
	return ""
}

// Links are the states of the interfaces.
func (s *Speaker) Links() (out []LinkStatus) {
	for _, l := range s.links {
		l.mu.Lock()
		st := LinkStatus{Interface: l.name, Carrier: l.carrier, Fault: l.fault, Nodes: l.names(), Unjoined: l.unjoined(time.Now()),
			Taken: l.took, GivenUp: l.gaveUp, Claimed: l.rivals}
		l.mu.Unlock()
		out = append(out, st)
	}
	return out
}

// Close gives all addresses up, to other nodes where there are some, and leaves the links.
func (s *Speaker) Close() {
	s.once.Do(func() {
		s.Set(nil, false, func(netip.Addr) string { return "the process ends" })
		var links sync.WaitGroup
		for _, l := range s.links {
			links.Go(l.close)
		}
		links.Wait()
	})
}

// close waits for other nodes to take the addresses, and ends.
func (l *link) close() {
	deadline := time.Now().Add(releaseAtLeast)
	for time.Now().Before(deadline) && l.ownsAny() {
		time.Sleep(5 * time.Millisecond)
	}
	close(l.closed)
	l.tasks.Wait()
}

func (l *link) ownsAny() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.others) > 0 && slices.ContainsFunc(slices.Collect(maps.Values(l.addresses)), func(x *address) bool { return x.owned })
}
