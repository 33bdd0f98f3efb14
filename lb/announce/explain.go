package announce

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// Condition is a condition of an announcement.
type Condition struct {
	Reason Reason // why an address is not announced if it is not met
	Met    bool
	Detail string // text for the operator, "" if there is nothing to say
}

var conditions = [...]string{
	"", "allowed", "not stopping", "not drained", "synced", "healthy", "eligible", "programmed", "served", "settled", "within the limit",
}

// String is the condition in the affirmative.
func (c *Condition) String() string { return conditions[c.Reason] }

// Explain returns all conditions for an address, in the order of their Reasons. The first that is
// not met is the Reason of Decide. It remembers nothing; n and frontends are those of the last
// Decide.
func (r *Rule) Explain(a netip.Addr, n *Node, frontends []Frontend, now time.Time) []Condition {
	claims := claimsOf(frontends)
	allowed := Condition{Reason: NotAllowed, Met: len(r.selecting(nil, a, claims.own)) > 0}
	if !allowed.Met {
		allowed.Detail = r.unselected(a, claims.own)
	}
	out := append([]Condition{allowed}, n.conditions()...)
	h := r.addresses[a]
	if h == nil {
		h = &history{}
	}
	missing := claims.unprogrammed()
	if len(frontends) == 0 {
		missing = "no frontend has this address"
	}
	out = append(out, Condition{NotProgrammed, missing == "", missing}, r.served(h, &claims, now))
	settled := Condition{Reason: Settling, Met: h.announced || !h.well.IsZero() && !now.Before(h.well.Add(r.settle(h)))}
	switch {
	case settled.Met:
	case h.well.IsZero():
		settled.Detail = fmt.Sprintf("for %v after all others are met", r.settle(h))
	default:
		settled.Detail = r.untilText(h)
	}
	limit := Condition{Reason: TooMany, Met: h.reason != TooMany}
	if !limit.Met {
		limit.Detail = h.tooMany
	}
	return append(out, settled, limit)
}

// served is the condition about endpoints. An announced address without any endpoint anywhere
// stays announced for a while.
func (r *Rule) served(h *history, claims *claims, now time.Time) Condition {
	detail, anywhere := claims.unserved()
	c := Condition{NotServed, detail == "", cmp.Or(detail, claims.ignored())}
	if detail == "" || anywhere || !h.announced || h.empty.IsZero() {
		return c
	}
	if until := h.empty.Add(r.settings.EmptyFor); now.Before(until) {
		c.Met, c.Detail = true, detail+", on no node: announced until "+until.UTC().Format(time.RFC3339Nano)
	}
	return c
}

// conditions are those of the node, in the order of their Reasons.
func (n *Node) conditions() []Condition {
	when := func(unmet bool, detail string) string {
		if unmet {
			return detail
		}
		return ""
	}
	return []Condition{
		{Stopping, !n.Stopping, ""},
		{Draining, !n.Draining, when(n.Draining, "weir drain self")},
		{NotSynced, !n.NotSynced, when(n.NotSynced, "the first full view of Services is not there")},
		{Unhealthy, n.Unhealthy == "", n.Unhealthy},
		{NotEligible, n.NotEligible == "", n.NotEligible},
	}
}
