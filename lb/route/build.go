package route

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// builder turns the kernel's state into table entries. It does no I/O.
type builder struct {
	k    *kernelState
	host *HostVeth
	// ports lists the ports that a route through an interface may use.
	ports map[int][]int
	// addrs lists the addresses of an interface in the kernel's order.
	addrs map[int][]*address
	// shared holds the entries with a single path, so that the thousands of prefixes behind
	// a router share an entry.
	shared map[Path]*entry
}

func newBuilder(k *kernelState, cfg *Config) *builder {
	b := &builder{
		k: k, host: cfg.HostVeth,
		ports:  attachedPorts(k.links, cfg.Interfaces),
		addrs:  make(map[int][]*address),
		shared: make(map[Path]*entry),
	}
	for i := range k.addresses {
		a := &k.addresses[i]
		b.addrs[a.index] = append(b.addrs[a.index], a)
	}
	return b
}

// attachedPorts maps each interface that routes name to the ports that lead
// there: the interface's own, and for a bond those of its attached members
// that are up.
func attachedPorts(links map[int]*link, ifaces []Interface) map[int][]int {
	ports := make(map[int][]int, len(ifaces))
	for _, i := range ifaces {
		l := links[i.Index]
		if l == nil {
			continue
		}
		if m := links[l.master]; m != nil && m.kind == "bond" {
			if l.up {
				ports[m.index] = append(ports[m.index], i.Port)
			}
			continue
		}
		ports[i.Index] = append(ports[i.Index], i.Port)
	}
	return ports
}

// contents are the entries of the routing tables by their numbers.
type contents map[int]map[netip.Prefix]*entry

// build returns the entries of the tables. There is always a local and a main table.
func (b *builder) build() contents {
	all := contents{
		unix.RT_TABLE_LOCAL: make(map[netip.Prefix]*entry),
		unix.RT_TABLE_MAIN:  make(map[netip.Prefix]*entry, len(b.k.routes)),
	}
	routes := slices.Clone(b.k.routes)
	// Best first; the sort is stable, so equal ones stay in the kernel's order.
	slices.SortStableFunc(routes, compareRoutes)
	for i := range routes {
		r := &routes[i]
		if r.tos != 0 || r.sourced {
			continue
		}
		table := r.table
		if table == unix.RT_TABLE_LOCAL && !b.separateLocal(r.dst) {
			table = unix.RT_TABLE_MAIN
		}
		into := all[table]
		if into == nil {
			into = make(map[netip.Prefix]*entry)
			all[table] = into
		}
		if into[r.dst] != nil {
			continue
		}
		if e := b.entry(r); e != nil {
			into[r.dst] = e
		}
	}
	for table, entries := range all {
		if table != unix.RT_TABLE_LOCAL {
			markDefaults(entries)
		}
	}
	return all
}

// separateLocal reports whether the local table is separate. For IPv4 without custom rules
// the kernel keeps local and main in the same trie, where the longest prefix wins whichever
// table it is from.
func (b *builder) separateLocal(dst netip.Prefix) bool {
	return dst.Addr().Is6() || b.k.rules.custom4
}

// compareRoutes orders the routes of a prefix by precedence: the local table
// over main, then the lower metric, then the router's preference.
func compareRoutes(a, b kernelRoute) int {
	return cmp.Or(
		cmp.Compare(b.table, a.table),
		cmp.Compare(a.metric, b.metric),
		cmp.Compare(preferenceRank(a.preference), preferenceRank(b.preference)),
	)
}

// preferenceRank orders RFC 4191 preferences: high, medium, low.
func preferenceRank(p uint8) int {
	switch p {
	case 1:
		return 0
	case 3:
		return 2
	}
	return 1
}

// entry makes the entry of r's prefix; nil when no next hop is alive, so that the next best
// route is taken.
func (b *builder) entry(r *kernelRoute) *entry {
	switch r.kind {
	case unix.RTN_UNICAST:
		e := b.unicast(r)
		if e != nil && r.dst.Addr().Is6() && r.dst.Addr().IsLinkLocalUnicast() {
			own := *e // not shared with other prefixes of the path
			own.reverse.everyLink, own.reverse.inside = true, false
			return &own
		}
		return e
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		return b.local(r)
	case unix.RTN_BLACKHOLE:
		return &entry{kind: Blackhole}
	case unix.RTN_UNREACHABLE:
		return &entry{kind: Unreachable}
	case unix.RTN_PROHIBIT:
		return &entry{kind: Prohibit}
	case unix.RTN_BROADCAST, unix.RTN_MULTICAST:
		return &entry{kind: NotUnicast}
	default: // throw: the lookup ends without a route
		return &entry{kind: NoRoute}
	}
}

func (b *builder) local(r *kernelRoute) *entry {
	if b.host == nil {
		return &entry{kind: NoHostVeth, local: true}
	}
	p := b.hostPath(r.dst.Addr().Is4())
	p.Local = true
	// The answer of a process on this host returns by the route to the host
	// veth: nothing must be masqueraded.
	p.Source = p.LocalSource
	if len(r.hops) > 0 {
		p.Interface = r.hops[0].index
	}
	return b.single(p)
}

// hostPath is the path through the host veth, as far as it is the same for all destinations
// of a family.
func (b *builder) hostPath(is4 bool) Path {
	p := Path{
		Kind: Host, Port: b.host.Port, MTU: uint32(b.host.MTU),
		NextHop: b.host.Gateway6, Source: b.host.Forward6, LocalSource: b.host.Local6,
	}
	if is4 {
		p.NextHop, p.Source, p.LocalSource = b.host.Gateway4, b.host.Forward4, b.host.Local4
	}
	return p
}

func (b *builder) unicast(r *kernelRoute) *entry {
	hops := liveHops(r.hops)
	if len(hops) == 0 {
		return nil
	}
	var paths []Path
	var weights []int
	missing := false
	for i := range hops {
		ps, ok := b.hopPaths(r, &hops[i])
		missing = missing || !ok
		for _, p := range ps {
			paths = append(paths, p)
			weights = append(weights, hops[i].weight)
		}
	}
	switch {
	case len(paths) == 0 && missing:
		return &entry{kind: NoHostVeth, reverse: b.reverse(indexes(hops)...)}
	case len(paths) == 0:
		return nil
	case len(paths) == 1:
		return b.single(paths[0])
	}
	return &entry{kind: paths[0].Kind, paths: paths, cumWeight: cumulativeWeights(weights), reverse: b.reverse(indexes(hops)...)}
}

func (b *builder) single(p Path) *entry {
	if e := b.shared[p]; e != nil {
		return e
	}
	e := &entry{kind: p.Kind, local: p.Local, paths: []Path{p}, reverse: b.reverse(p.Interface)}
	b.shared[p] = e
	return e
}

// liveHops leaves out next hops that the kernel calls dead, and those without
// a carrier as long as there are others.
func liveHops(hops []hop) []hop {
	live := slices.DeleteFunc(slices.Clone(hops), func(h hop) bool { return h.dead() })
	carrier := slices.DeleteFunc(slices.Clone(live), func(h hop) bool { return h.linkDown() })
	if len(carrier) > 0 {
		return carrier
	}
	return live
}

// hopPaths returns the paths to a next hop: those by the ports of the interface, or the
// host veth. ok is false when it needs a host veth and there is none.
func (b *builder) hopPaths(r *kernelRoute, h *hop) (paths []Path, ok bool) {
	if b.host != nil && h.index == b.host.Index {
		return nil, true // leads back to Weir
	}
	l := b.k.links[h.index]
	mtu := r.mtu
	if l != nil && (mtu == 0 || mtu > uint32(l.mtu)) {
		mtu = uint32(l.mtu)
	}
	is4 := r.dst.Addr().Is4()
	ports := b.ports[h.index]
	// A next hop of the other family (RFC 5549) is a plain neighbor on an
	// attached interface: only the MAC is taken from it.
	if len(ports) == 0 || h.encap {
		if b.host == nil {
			return nil, false
		}
		p := b.hostPath(is4)
		p.Interface = h.index
		if mtu != 0 && mtu < p.MTU {
			p.MTU = mtu
		}
		return []Path{p}, true
	}
	source := b.source(r, h)
	for _, port := range ports {
		paths = append(paths, Path{
			Kind: Attached, Port: port, Interface: h.index, MTU: mtu,
			NextHop: h.gateway, Source: source, LocalSource: source,
		})
	}
	return paths, true
}

// cumulativeWeights spreads the 32-bit hash space over next hops by weight, as the
// kernel's hash-threshold does (RFC 2992).
func cumulativeWeights(weights []int) []uint32 {
	var total uint64
	for _, w := range weights {
		total += uint64(max(w, 1))
	}
	upTo := make([]uint32, len(weights))
	var sum uint64
	for i, w := range weights {
		sum += uint64(max(w, 1))
		upTo[i] = uint32(sum<<32/total - 1)
	}
	return upTo
}
