package route

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// StaticHop is a resolved next hop of a static Watcher.
type StaticHop struct {
	Port     int
	NextHop  netip.Addr
	MAC, Src [6]byte
	MTU      uint32
}

// Static makes a Watcher of the routes and next hops given, which follows no kernel: for
// the packet path in memory, in tests and benchmarks. The only effect of Resolve is on the
// result of Requested. Run and Close must not be called.
func Static(routes map[netip.Prefix]Path, hops []StaticHop) *Watcher {
	w := &Watcher{nextHops: nextHops{adj: make([]Adjacency, len(hops)+1)}}
	w.requests.init(64)
	w.nextHops.firstStamps()
	x := newHopIndex(len(hops) + 1)
	for i, h := range hops {
		n := uint32(i + 1)
		k := makeHopKey(h.Port, h.NextHop)
		a := &w.nextHops.adj[n]
		a.hop[0].Store(k.w0)
		a.hop[1].Store(k.w1)
		a.port.Store(k.port)
		a.mtu.Store(h.MTU)
		a.src.Store(MACWord(h.Src) | uint64(h.Port)<<48)
		a.dst.Store(MACWord(h.MAC) | uint64(Valid)<<48)
		x.insert(k, n)
	}
	w.nextHops.index.Store(x)
	t := &Table{epoch: 1, local: new(bart.Table[*entry]), main: new(bart.Table[*entry])}
	for p, path := range routes {
		t.main.Insert(p, staticEntry(p, path))
	}
	w.table.Store(t)
	w.hosts.Store(&[]Address{})
	return w
}

// staticEntry has routes through the host veth lead into the node's own networks.
func staticEntry(p netip.Prefix, path Path) *entry {
	return &entry{kind: path.Kind, local: path.Local, paths: []Path{path}, reverse: reverse{
		leadsToDefault: isDefault(p), inside: path.Kind == Host && !isDefault(p), interfaces: []int{path.Interface},
	}}
}

// Requested takes the next hops for which a worker called Resolve since the last call.
func (w *Watcher) Requested(worker int) (hops []netip.Addr) {
	for {
		r, ok := w.requests.rings[worker].take()
		if !ok {
			return hops
		}
		hops = append(hops, r.nextHop())
	}
}

// SetRoute adds or changes a static route.
func (w *Watcher) SetRoute(p netip.Prefix, path Path) {
	old, e := w.Load(), staticEntry(p, path)
	was, _ := old.main.Get(p)
	t := &Table{local: old.local, main: old.main.InsertPersist(p, e)}
	w.publishTable(t, affectedBy(old, t, nil, []routeChange{{p, was, e}}))
}

// SetState changes the state of a static next hop. Resolving counts as a probe, and Failed is the
// result of the last.
func (w *Watcher) SetState(port int, nextHop netip.Addr, s State) {
	if n, ok := w.Adjacency(port, nextHop); ok {
		a := &w.nextHops.adj[n]
		if s == Resolving {
			a.probes.Add(1)
		}
		if s == Valid {
			a.silent.Store(false)
		}
		if s == Failed {
			a.failed.Store(a.probes.Load())
			a.silent.Store(true)
		}
		a.dst.Store(a.dst.Load()&macMask | uint64(s)<<48)
	}
}
