package route

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"
)

// Packet has the facts of a packet by which routing rules select a table.
type Packet struct {
	// Src and Dst are those with which the packet is looked up. An invalid source is that of a
	// packet of the host, whose source the route decides.
	Src, Dst netip.AddrPort
	Proto    uint8
	// In is the kernel's index of the interface by which the packet came; 0: none.
	In int
}

// rule is a routing rule that Weir follows (ip-rule(8)), as far as it concerns packets without a
// firewall mark that the node forwards. It is comparable.
type rule struct {
	is4 bool
	not bool // the rule is for packets that do not match the conditions
	// Conditions: invalid or zero for none.
	src, dst       netip.Prefix
	proto          uint8
	sports, dports portRange
	in             int // an interface
	// table is the routing table that is looked up, unless the look-up ends: with end.
	table int
	end   Kind
	ends  bool
	// suppress is the length up to which prefixes of the table do not count; -1: all count.
	suppress int
}

type portRange struct{ first, last uint16 }

func (r portRange) has(port uint16) bool {
	return r == portRange{} || r.first <= port && port <= r.last
}

// plain reports whether the rule is for all packets and has all routes of a table.
func (r *rule) plain() bool {
	return *r == rule{is4: r.is4, table: r.table, suppress: -1}
}

// matches reports whether the rule is for a packet.
func (r *rule) matches(p *Packet) bool {
	met := (!r.src.IsValid() || r.src.Contains(p.Src.Addr())) &&
		(!r.dst.IsValid() || r.dst.Contains(p.Dst.Addr())) &&
		(r.proto == 0 || r.proto == p.Proto) &&
		r.sports.has(p.Src.Port()) && r.dports.has(p.Dst.Port()) &&
		(r.in == 0 || r.in == p.In)
	return met != r.not
}

// may reports whether the rule is for some packets with the destination and protocol of p, and whether it
// is for all of them.
func (r *rule) may(p *Packet) (may, all bool) {
	known := *r
	known.not, known.src, known.sports, known.in = false, netip.Prefix{}, portRange{}, 0
	met := known.matches(p)
	if open := r.src.IsValid() || r.sports != (portRange{}) || r.in != 0; met && open {
		return true, false
	}
	return met != r.not, met != r.not
}

// policy has the rules of a family in their order.
type policy []policyRule

type policyRule struct {
	rule
	routes *bart.Table[*entry] // of the table that the rule names; nil if the look-up ends
}

// find is the entry of a packet: that of the first rule whose table has a route. final is the
// result in place of an entry where a rule ends the look-up.
func (y policy) find(p *Packet) (e *entry, final Kind) {
	for i := range y {
		r := &y[i]
		if !r.matches(p) {
			continue
		}
		if r.ends {
			return nil, r.end
		}
		if e := lookUp(r.routes, p.Dst.Addr(), r.suppress); e != nil {
			return e, 0
		}
	}
	return nil, NoRoute
}

// lookUp is the entry of a table, nil if there is none, if its prefix does not count, or if it is a
// throw route: then the next rule decides.
func lookUp(routes *bart.Table[*entry], addr netip.Addr, suppress int) *entry {
	if suppress < 0 {
		if e, ok := routes.Lookup(addr); ok && e.kind != NoRoute {
			return e
		}
		return nil
	}
	p, e, ok := routes.LookupPrefixLPM(netip.PrefixFrom(addr, addr.BitLen()))
	if !ok || e.kind == NoRoute || p.Bits() <= suppress {
		return nil
	}
	return e
}

// HasRules reports whether routing rules beyond the default ones decide: then answers depend on more
// of a packet than its destination, and none may be kept for another packet.
func (t *Table) HasRules() bool { return t.policy4 != nil || t.policy6 != nil }

// ByArrival reports whether rules select by the interface by which a packet came.
func (t *Table) ByArrival() bool {
	byArrival := func(r policyRule) bool { return r.in != 0 }
	return slices.ContainsFunc(t.policy4, byArrival) || slices.ContainsFunc(t.policy6, byArrival)
}

// tables are the routing tables that answers may come from.
func (t *Table) tables() []*bart.Table[*entry] {
	list := []*bart.Table[*entry]{t.local, t.main}
	for _, r := range slices.Concat(t.policy4, t.policy6) {
		if r.routes != nil && !slices.Contains(list, r.routes) {
			list = append(list, r.routes)
		}
	}
	return list
}

func (t *Table) policyOf(a netip.Addr) policy {
	if a.Is4() {
		return t.policy4
	}
	return t.policy6
}

// findFor is the entry of a packet. final is the result in place of an entry.
func (t *Table) findFor(p *Packet) (e *entry, final Kind) {
	if y := t.policyOf(p.Dst.Addr()); y != nil {
		return y.find(p)
	}
	return t.find(p.Dst.Addr()), NoRoute
}

// Lookup finds the path of a packet by the routing rules. Where several next hops share a route, hash
// chooses among them by their weights: all packets of a flow should give the same hash. If there is no path
// ok is false and Path.Kind says why. It does not allocate.
func (t *Table) Lookup(p *Packet, hash uint32) (path Path, ok bool) {
	e, final := t.findFor(p)
	if e == nil {
		return Path{Kind: final}, false
	}
	return e.path(p.Dst.Addr(), hash)
}

// Paths are the paths of all packets to a destination, whatever their sources and the interfaces by which
// they come: those of each rule that a packet may match, in the order of the rules.
func (t *Table) Paths(dst netip.AddrPort, proto uint8) (list []Path) {
	p := Packet{Dst: dst, Proto: proto}
	add := func(e *entry) {
		for i := range e.paths {
			path := e.paths[i]
			if !path.NextHop.IsValid() {
				path.NextHop = dst.Addr()
			}
			if !slices.Contains(list, path) {
				list = append(list, path)
			}
		}
	}
	y := t.policyOf(dst.Addr())
	if e := t.find(dst.Addr()); y == nil && e != nil {
		add(e)
	}
	for i := range y {
		r := &y[i]
		may, all := r.may(&p)
		if !may {
			continue
		}
		var e *entry
		if !r.ends {
			if e = lookUp(r.routes, dst.Addr(), r.suppress); e != nil {
				add(e)
			}
		}
		if all && (r.ends || e != nil) {
			break
		}
	}
	return list
}

// Reverse finds the route of an answer, back to a packet's source. It does not allocate.
func (t *Table) Reverse(answer *Packet) Reverse {
	e, _ := t.findFor(answer)
	return Reverse{e}
}

// policyOf makes the policy of a family: nil if the default rules give the same answers. A rule for a
// table without routes changes none.
func (b *builder) policyOf(is4 bool, tables map[int]*bart.Table[*entry]) (y policy) {
	var others bool
	var seen []int
	for _, r := range b.k.rules.followed {
		routes := tables[r.table]
		if r.is4 != is4 || !r.ends && routes == nil {
			continue
		}
		others = others || !r.plain()
		seen = append(seen, r.table)
		y = append(y, policyRule{r, routes})
	}
	if !others && (seen == nil || slices.Equal(seen, []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN})) {
		return nil
	}
	return y
}
