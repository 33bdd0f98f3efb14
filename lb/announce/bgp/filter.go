package bgp

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/weirlb/weir/lb/announce"
)

// The names of policies: own is of routes of routers, limits of routes to some of them.
const (
	importPolicy = "own"
	exportPolicy = "limits"
)

// filter is what routers are told of some prefixes.
type filter struct {
	prefixes []netip.Prefix // of a single family
	told     []told
	limited  bool // nobody else is told of them
	// foreign are neighbors that are told nothing if they have the node's own number, and no more is
	// in such a filter.
	foreign []netip.Addr
}

// told are the attributes for some addresses of routers.
type told struct {
	to         []netip.Addr
	attributes announce.Attributes
}

// filters are those of routes, in an order of their own. The first is of neighbors whose number is
// not known before the session.
func (s *Speaker) filters(routes map[netip.Prefix]announce.Route) []filter {
	var out []filter
	if x := s.anyNumber(); x != nil {
		out = append(out, filter{foreign: x})
	}
	classes := map[string][]announce.Route{}
	for _, r := range routes {
		if len(r.Peers) > 0 || r.Limited {
			text, _ := json.Marshal([]any{r.Prefix.Addr().Is4(), r.Limited, r.Peers}) // it has nothing that cannot be text
			classes[string(text)] = append(classes[string(text)], r)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		list := classes[class]
		f := filter{limited: list[0].Limited, told: s.toldOf(list[0].Peers)}
		for _, r := range list {
			f.prefixes = append(f.prefixes, r.Prefix)
		}
		slices.SortFunc(f.prefixes, netip.Prefix.Compare)
		out = append(out, f)
	}
	return out
}

// anyNumber are the addresses of neighbors of any number but the node's own.
func (s *Speaker) anyNumber() (out []netip.Addr) {
	present := s.present()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range present {
		if a := s.addressOf(i, n); n.ASN == 0 && a.IsValid() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// addressOf is the address of a neighbor without its zone, invalid for an unnumbered one that is not
// known yet. Preconditions: mu is held.
func (s *Speaker) addressOf(i int, n *Neighbor) netip.Addr {
	if n.Interface == "" {
		return n.Address
	}
	return s.neighbors[i].address.WithZone("")
}

// toldOf are the addresses of neighbors with each of the attributes. Two unnumbered neighbors may
// have the same link-local address, which is all that GoBGP tells them apart by: then both are told,
// or none.
func (s *Speaker) toldOf(peers map[string]announce.Attributes) (out []told) {
	present := s.present()
	s.mu.Lock()
	defer s.mu.Unlock()
	others := map[netip.Addr]bool{}
	addresses := map[string]netip.Addr{}
	for i, n := range present {
		a := s.addressOf(i, n)
		if _, is := peers[n.Name()]; is && a.IsValid() {
			addresses[n.Name()] = a
		} else {
			others[a] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		x, a := peers[name], addresses[name]
		if others[a] {
			continue
		}
		i := slices.IndexFunc(out, func(t told) bool { return equal(&t.attributes, &x) })
		if i < 0 {
			i, out = len(out), append(out, told{attributes: x})
		}
		out[i].to = append(out[i].to, a)
	}
	return out
}

// limit makes the filters those of routes, and has neighbors told again where again is true. They
// are told nothing twice if nothing has changed. Preconditions: setting is held.
func (s *Speaker) limit(routes map[netip.Prefix]announce.Route, again bool) error {
	filters := s.filters(routes)
	if reflect.DeepEqual(filters, s.limits) {
		return nil
	}
	if err := s.server.SetPolicies(s.ctx, policiesOf(filters)); err != nil {
		return fmt.Errorf("limit routes to peers: %w", err)
	}
	s.limits = filters
	if !again {
		return nil
	}
	err := s.server.ResetPeer(s.ctx, &api.ResetPeerRequest{Address: "all", Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT})
	if err != nil {
		return fmt.Errorf("tell peers again: %w", err)
	}
	return nil
}

// limitAgain follows the address of an unnumbered neighbor.
func (s *Speaker) limitAgain() error {
	s.setting.Lock()
	defer s.setting.Unlock()
	return s.limit(s.set, true)
}

// policiesOf are the policies of both directions in GoBGP's form. A neighbor set without addresses
// would be all neighbors.
func policiesOf(filters []filter) *api.SetPoliciesRequest {
	out := &api.SetPoliciesRequest{}
	export := &api.Policy{Name: exportPolicy}
	any := func(name string) *api.MatchSet { return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name} }
	neighbors := func(name string, list []netip.Addr) *api.MatchSet {
		set := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name}
		for _, a := range list {
			set.List = append(set.List, netip.PrefixFrom(a, a.BitLen()).String())
		}
		out.DefinedSets = append(out.DefinedSets, set)
		return any(name)
	}
	reject := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT}
	for i, f := range filters {
		if f.foreign != nil { // the policy sees the path as it is sent, which is empty inside of an autonomous system
			export.Statements = append(export.Statements, &api.Statement{
				Name:       "foreign",
				Conditions: &api.Conditions{NeighborSet: neighbors("foreign", f.foreign), AsPathLength: &api.AsPathLength{Type: api.Comparison_COMPARISON_EQ}},
				Actions:    reject,
			})
			continue
		}
		prefixes := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: fmt.Sprintf("prefixes%d", i)}
		for _, p := range f.prefixes {
			n := uint32(p.Bits())
			prefixes.Prefixes = append(prefixes.Prefixes, &api.Prefix{IpPrefix: p.String(), MaskLengthMin: n, MaskLengthMax: n})
		}
		out.DefinedSets = append(out.DefinedSets, prefixes)
		for j, t := range f.told {
			export.Statements = append(export.Statements, &api.Statement{
				Name:       fmt.Sprintf("told%d-%d", i, j),
				Conditions: &api.Conditions{PrefixSet: any(prefixes.Name), NeighborSet: neighbors(fmt.Sprintf("neighbors%d-%d", i, j), t.to)},
				Actions:    actionsOf(&t.attributes),
			})
		}
		if f.limited {
			export.Statements = append(export.Statements, &api.Statement{
				Name:       fmt.Sprintf("others%d", i),
				Conditions: &api.Conditions{PrefixSet: any(prefixes.Name)},
				Actions:    reject,
			})
		}
	}
	out.Policies = []*api.Policy{importOwn(), export}
	return out
}

// actionsOf are the actions of a route to some neighbors.
func actionsOf(a *announce.Attributes) *api.Actions {
	out := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	var list, large []string
	for _, c := range a.Communities {
		list = append(list, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range a.LargeCommunities {
		large = append(large, strings.Trim(strings.ReplaceAll(fmt.Sprint(c), " ", ":"), "[]"))
	}
	if list != nil {
		out.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: list}
	}
	if large != nil {
		out.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: large}
	}
	if a.LocalPref != nil {
		out.LocalPref = &api.LocalPrefAction{Value: *a.LocalPref}
	}
	return out
}

// limitedAlike reports whether the neighbors that are told of a route are the same.
func limitedAlike(a, b *announce.Route) bool {
	return a.Limited == b.Limited && maps.EqualFunc(a.Peers, b.Peers, func(x, y announce.Attributes) bool { return equal(&x, &y) })
}

// importOwn is the policy that takes routes of the server itself alone.
func importOwn() *api.Policy {
	return &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		Name:       importPolicy,
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
}

// startPolicies has the server take routes of its own alone, and export by limits. GoBGP applies the
// import policy also to its own routes.
func (s *Speaker) startPolicies() error {
	for _, x := range []*api.PolicyAssignment{
		{Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT, Policies: []*api.Policy{importOwn()}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT},
		{Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT, Policies: []*api.Policy{{Name: exportPolicy}}, DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	} {
		x.Name = "global"
		if err := s.server.AddPolicy(s.ctx, &api.AddPolicyRequest{Policy: x.Policies[0]}); err != nil {
			return err
		}
		if err := s.server.SetPolicyAssignment(s.ctx, &api.SetPolicyAssignmentRequest{Assignment: x}); err != nil {
			return err
		}
	}
	return nil
}
