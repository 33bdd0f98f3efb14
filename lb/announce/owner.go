package announce

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// claims are the frontends of an address by the right of their Services to it. The owner is the
// Service that was given the address; of several, and of none, the oldest whose policy is still
// that for which it was given: so it is on every node. Only Services of the namespace of the
// owner can forbid the announcement. Services of other namespaces that were given the address
// as well (a shared address) can be what it is announced for. Those that claim it by spec.externalIPs count for nothing: each author of a
// Service can claim any address.
type claims struct {
	owner  Frontend // of several the first
	own    []Frontend
	shared []Frontend // of other namespaces
	others []Frontend // those that count for nothing
}

func claimsOf(list []Frontend) (c claims) {
	if len(list) == 0 {
		return c
	}
	c.owner = slices.MinFunc(list, byRight)
	for _, f := range list {
		switch {
		case f.Namespace == c.owner.Namespace:
			c.own = append(c.own, f)
		case f.External:
			c.others = append(c.others, f)
		default:
			c.shared = append(c.shared, f)
		}
	}
	return c
}

// byRight orders frontends as lb/table orders the claims to a frontend: external IPs last, then
// by age, then by name. But Services that have changed their policy since they were given the
// address come after the others: else the oldest that shares it could have it withdrawn by Local.
func byRight(a, b Frontend) int {
	rank := func(f Frontend) int {
		switch {
		case f.External:
			return 2
		case f.Changed:
			return 1
		}
		return 0
	}
	made := func(f Frontend) int64 { return cmp.Or(f.Created, math.MaxInt64) }
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(made(a), made(b)), cmp.Compare(a.Service, b.Service))
}

// state is what the frontends of an address forbid. anywhere is false if no Service on it has
// an endpoint on any node.
func (c *claims) state() (reason Reason, detail string, anywhere bool) {
	detail, anywhere = c.unserved()
	switch missing := c.unprogrammed(); {
	case missing != "":
		return NotProgrammed, missing, anywhere
	case detail != "":
		return NotServed, detail, anywhere
	}
	return Announced, "", anywhere
}

// unprogrammed says of which frontend packets do not reach the packet path, "" if they do.
func (c *claims) unprogrammed() string {
	for i := range slices.Backward(c.own) {
		if !c.own[i].Programmed {
			return "a frontend of Service " + c.own[i].Service
		}
	}
	return ""
}

// NoEndpoint is the detail of NotServed where other nodes have no endpoints either, or may not announce them.
const NoEndpoint = "no Service on it has an endpoint"

// unserved says why a new connection would get no endpoint, "" if it would.
func (c *claims) unserved() (detail string, anywhere bool) {
	type service struct{ here, elsewhere bool }
	services := map[string]service{}
	here := false
	for i := range c.own {
		f := &c.own[i]
		s := services[f.Service]
		s.here = s.here || f.Endpoints > 0
		s.elsewhere = s.elsewhere || f.away()
		services[f.Service] = s
		here = here || s.here
		anywhere = anywhere || s.here || s.elsewhere
	}
	for i := range c.shared {
		f := &c.shared[i]
		here = here || f.Programmed && f.Endpoints > 0
		anywhere = anywhere || f.Endpoints > 0 || f.Elsewhere
	}
	away := ""
	for name, s := range services {
		if s.elsewhere && !s.here && (away == "" || name < away) {
			away = name
		}
	}
	switch {
	case away != "":
		return fmt.Sprintf("Service %s has endpoints on other nodes only", away), anywhere
	case !here:
		return NoEndpoint, anywhere
	}
	return "", anywhere
}

func (f *Frontend) away() bool { return f.Endpoints == 0 && f.Elsewhere }

// ignored names the Services that do not count although they would forbid an announcement, or
// be announced, as the only ones; "" for none.
func (c *claims) ignored() string {
	var names []string
	for _, f := range c.others {
		names = append(names, f.Service)
	}
	for _, f := range c.shared {
		if !f.Programmed || f.away() {
			names = append(names, f.Service)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("the address is that of Service %s, and those of other namespaces do not count: %s",
		c.owner.Service, strings.Join(slices.Compact(names), ", "))
}
