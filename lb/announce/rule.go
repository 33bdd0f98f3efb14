package announce

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	flapWindow   = 5 * time.Minute
	flapsAllowed = 3
	maxSettle    = time.Minute

	notAllowed  = "no prefix of announce.prefixes has it"
	notSelected = "no advertisement selects it"
	noPeer      = "the advertisements that select it are for routers that this node does not have (peers)"
)

// Rule decides. The zero value has no settings and announces nothing.
type Rule struct {
	settings  Settings
	all       []Advertisement // of settings
	allowing  *allowing       // of all
	addresses map[netip.Addr]*history
	adopted   map[netip.Prefix]bool
	held      uint64
}

// history is what the rule remembers of an address.
type history struct {
	announced bool
	by        []int       // advertisements that select it, by their place in Rule.all
	since     time.Time   // of the present answer
	reason    Reason      // the present answer
	well      time.Time   // since when nothing but time is missing; zero: it is
	owner     Frontend    // see claims
	tooMany   string      // the limit that refused it last
	empty     time.Time   // since when no node has an endpoint; zero: some has
	falls     []time.Time // withdrawals by a state of the address or the packet path, in flapWindow
}

// Decision is the answer for an address.
type Decision struct {
	Address netip.Addr
	Reason  Reason
	Detail  string    // text for the operator, "" if Reason says all
	Since   time.Time // of Reason
}

// Outcome are the answers for all addresses.
type Outcome struct {
	Decisions []Decision // by address
	Routes    []Route    // by prefix
	// Next is when time alone may change an answer; zero: never.
	Next time.Time
}

// SetSettings replaces the settings.
func (r *Rule) SetSettings(s Settings) {
	r.settings = s
	r.all = s.all()
	r.allowing = newAllowing(r.all)
	for _, h := range r.addresses {
		h.by = nil // until the next Decide
	}
}

// MaxAddresses is that of the settings.
func (r *Rule) MaxAddresses() int { return r.settings.MaxAddresses }

// Adopt takes over what was announced before the first Decide, and adds to earlier calls.
// Addresses in these prefixes need not settle.
func (r *Rule) Adopt(prefixes []netip.Prefix) {
	if r.adopted == nil {
		r.adopted = map[netip.Prefix]bool{}
	}
	for _, p := range prefixes {
		r.adopted[p] = true
	}
}

// Decide answers for all addresses of frontends. It remembers: now must not go back. Addresses
// that have no frontends any more are forgotten, but for their falls.
func (r *Rule) Decide(n *Node, frontends map[netip.Addr][]Frontend, now time.Time) Outcome {
	if r.addresses == nil {
		r.addresses = map[netip.Addr]*history{}
	}
	var out Outcome
	for a, h := range r.addresses {
		if len(frontends[a]) == 0 {
			h.withdraw(now)
			if h.forget(now); len(h.falls) == 0 {
				delete(r.addresses, a)
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(frontends), netip.Addr.Compare) {
		if len(frontends[a]) == 0 {
			continue
		}
		h, c := r.addresses[a], claimsOf(frontends[a])
		if h == nil {
			h = &history{by: r.selecting(nil, a, c.own)}
			h.announced = r.wasAnnounced(a, h)
			r.addresses[a] = h
		} else {
			h.by = r.selecting(h.by[:0], a, c.own)
		}
		d := Decision{Address: a}
		d.Reason, d.Detail = r.decide(a, h, n, &c, now, &out.Next)
		out.Decisions = append(out.Decisions, d)
	}
	r.limit(out.Decisions, &out.Next)
	for i := range out.Decisions {
		d := &out.Decisions[i]
		h := r.addresses[d.Address]
		if h.since.IsZero() || h.reason != d.Reason {
			h.since = now
		}
		h.reason, h.announced, d.Since = d.Reason, d.Reason == Announced, h.since
	}
	out.Routes = r.routes(out.Decisions)
	r.adopted = nil
	return out
}

// decide answers for an address, apart from the limit.
func (r *Rule) decide(a netip.Addr, h *history, n *Node, c *claims, now time.Time, next *time.Time) (Reason, string) {
	h.forget(now)
	if len(h.by) == 0 {
		why := r.unselected(a, c.own)
		if why != notAllowed { // labels may change at any rate
			h.withdraw(now)
		}
		h.well, h.empty = time.Time{}, time.Time{}
		return NotAllowed, why
	}
	if reason, detail := n.reason(); reason != Announced {
		if reason == Unhealthy {
			h.withdraw(now)
		}
		h.well, h.empty = time.Time{}, time.Time{}
		return reason, detail
	}
	h.owner = c.owner
	reason, detail, anywhere := c.state()
	if anywhere {
		h.empty = time.Time{}
	} else if h.empty.IsZero() {
		h.empty = now
	}
	if reason == NotServed && !anywhere && h.announced && now.Before(h.empty.Add(r.settings.EmptyFor)) {
		sooner(next, h.empty.Add(r.settings.EmptyFor))
		return Announced, detail
	}
	if reason != Announced {
		h.withdraw(now)
		return reason, detail
	}
	if h.well.IsZero() {
		if h.well = now; r.holds(h) {
			r.held++
		}
	}
	if until := h.well.Add(r.settle(h)); !h.announced && (n.Publishing || now.Before(until)) {
		sooner(next, until)
		return Settling, r.untilText(h)
	}
	return Announced, ""
}

// withdraw notes that the state of the address or of the packet path forbids an announcement.
func (h *history) withdraw(now time.Time) {
	if h.announced {
		h.falls = append(h.falls, now)
	}
	h.announced, h.well = false, time.Time{}
}

// forget drops falls that are too old to count.
func (h *history) forget(now time.Time) {
	h.falls = slices.DeleteFunc(h.falls, func(t time.Time) bool { return now.Sub(t) >= flapWindow })
}

// settle is how long an address must be well.
func (r *Rule) settle(h *history) time.Duration {
	d := r.settings.Settle
	for i := flapsAllowed; i < len(h.falls) && d < maxSettle; i++ {
		d *= 2
	}
	return max(r.settings.Settle, min(d, maxSettle))
}

// holds reports whether an address that comes and goes must be well for longer than others.
func (r *Rule) holds(h *history) bool { return r.settle(h) > r.settings.Settle }

// Held is how often an address that was well again has been held back for longer than
// Settings.Settle, since it came and went.
func (r *Rule) Held() uint64 { return r.held }

// untilText says how long an address settles. Preconditions: h.well is not zero.
func (r *Rule) untilText(h *history) string {
	text := "until " + h.well.Add(r.settle(h)).UTC().Format(time.RFC3339Nano)
	if r.holds(h) {
		text += fmt.Sprintf(", withdrawn %d times in %d minutes", len(h.falls), int(flapWindow.Minutes()))
	}
	return text
}

// limit refuses addresses beyond the limits: those first that were given to no Service, then those
// of the youngest Services, whatever was announced before. So it is on every node, and after a
// restart. Of the addresses of a Service those that are not announced yet come last. An address
// that settles, or fell within flapWindow, keeps its place: others would come and go with it.
func (r *Rule) limit(list []Decision, next *time.Time) {
	var order []*Decision
	var free time.Time // when an address gives its place up
	for i := range list {
		if d := &list[i]; d.Reason == Announced || r.keepsPlace(d, &free) {
			order = append(order, d)
		}
	}
	slices.SortStableFunc(order, func(a, b *Decision) int {
		x, y := r.addresses[a.Address], r.addresses[b.Address]
		if c := byRight(x.owner, y.owner); c != 0 || x.announced == y.announced {
			return c
		}
		if x.announced {
			return -1
		}
		return 1
	})
	total := 0
	services, namespaces := map[string]int{}, map[string]int{}
	over := func(n, limit int) bool { return limit > 0 && n >= limit }
	for _, d := range order {
		owner := &r.addresses[d.Address].owner
		limit := ""
		switch s := &r.settings; {
		case over(services[owner.Service], s.MaxPerService):
			limit = fmt.Sprintf("a Service may have %d (limits.servicePercent)", s.MaxPerService)
		case over(namespaces[owner.Namespace], s.MaxPerNamespace):
			limit = fmt.Sprintf("the Services of a namespace may have %d (limits.namespacePercent)", s.MaxPerNamespace)
		case over(total, s.MaxAddresses):
			limit = fmt.Sprintf("announce.maxAddresses is %d", s.MaxAddresses)
		default:
			total++
			services[owner.Service]++
			namespaces[owner.Namespace]++
			continue
		}
		if d.Reason != Announced {
			continue // it has no place to keep
		}
		d.Reason, d.Detail, r.addresses[d.Address].tooMany = TooMany, limit, limit
		if !free.IsZero() {
			sooner(next, free)
		}
	}
}

// keepsPlace reports whether an address that is not announced counts in the limits, and sets free to
// when it does so no more, if that is sooner.
func (r *Rule) keepsPlace(d *Decision, free *time.Time) bool {
	falls := r.addresses[d.Address].falls
	switch {
	case d.Reason == Settling:
		return true
	case d.Reason != NotServed && d.Reason != NotProgrammed || len(falls) == 0:
		return false
	}
	sooner(free, falls[len(falls)-1].Add(flapWindow))
	return true
}

// prefix is the prefix of the route to an address.
func (x *Advertisement) prefix(a netip.Addr) netip.Prefix {
	bits := x.Aggregate6
	if a.Is4() {
		bits = x.Aggregate4
	}
	if bits == 0 {
		bits = a.BitLen()
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// reason is the first reason why the node announces nothing.
func (n *Node) reason() (Reason, string) {
	for _, c := range n.conditions() {
		if !c.Met {
			return c.Reason, c.Detail
		}
	}
	return Announced, ""
}

// sooner sets next to t if that is sooner.
func sooner(next *time.Time, t time.Time) {
	if next.IsZero() || t.Before(*next) {
		*next = t
	}
}
