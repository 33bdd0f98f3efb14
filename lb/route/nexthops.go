package route

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// nextHops is the writer's side of the adjacencies. Owned by Run's goroutine.
type nextHops struct {
	byKey map[hopKey]*nextHop
	// byNeighbour lists the adjacencies that one neighbour serves: a bond's
	// has one for every member.
	byNeighbour map[neighbourKey][]*nextHop
	free        []uint32
	// resting are numbers given up a moment ago: a worker in the middle of a
	// batch may still hold one.
	resting []restingNumber
	ports   map[int]int // port -> index of the interface that holds its neighbours
	// kept says whether the kernel keeps neighbours fresh by itself
	// (NTF_EXT_MANAGED): found out with the first request.
	kept  keeping
	swept time.Time
}

type keeping uint8

const (
	keepUnknown keeping = iota
	keepByKernel
	keepByAsking
)

type restingNumber struct {
	n     uint32
	until time.Time
}

// rest is how long a number is not used again after it was given up; far more
// than a batch takes.
const rest = 5 * time.Second

// nextHop is what the writer knows of an adjacency.
type nextHop struct {
	key    hopKey
	number uint32
	// neighbour is zero for the host port.
	neighbour neighbourKey
	permanent bool // the host port's: never resolved, never given up
	asked     bool // the kernel was asked to resolve it
	created   bool // and had not known it before
	askAt     time.Time
	lastTick  uint32
	usedAt    time.Time // when lastTick was seen to change
}

// askAgain is how long a neighbour that Weir keeps fresh by asking goes
// without: below the shortest time (15 s) after which the kernel calls it
// stale by default.
const askAgain = 10 * time.Second

func (x *nextHops) init(limit int) {
	x.byKey = make(map[hopKey]*nextHop)
	x.byNeighbour = make(map[neighbourKey][]*nextHop)
	x.free = make([]uint32, 0, limit)
	for n := limit; n > 0; n-- {
		x.free = append(x.free, uint32(n))
	}
}

// number takes a free one; ok is false when there is none.
func (x *nextHops) number(now time.Time) (uint32, bool) {
	for len(x.resting) > 0 && now.After(x.resting[0].until) {
		x.free = append(x.free, x.resting[0].n)
		x.resting = x.resting[1:]
	}
	if len(x.free) == 0 {
		return 0, false
	}
	n := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	return n, true
}

// drain serves what workers asked for.
func (w *Watcher) drain() {
	w.asked.Store(0) // before the rings are read: a later request wakes again
	now := time.Now()
	for i := range w.rings {
		for {
			k, ok := w.rings[i].take()
			if !ok {
				break
			}
			w.want(k, now)
		}
	}
}

// want creates the adjacency for k unless it exists.
func (w *Watcher) want(k hopKey, now time.Time) {
	if w.nextHops.byKey[k] != nil {
		return
	}
	iface, ok := w.nextHops.ports[int(k.port)-1]
	if !ok || !k.nextHop().IsValid() || k.nextHop().IsMulticast() {
		w.stats.refused.Add(1)
		return
	}
	h := w.create(k, now)
	if h == nil {
		return
	}
	h.neighbour = neighbourKey{iface, k.nextHop()}
	w.nextHops.byNeighbour[h.neighbour] = append(w.nextHops.byNeighbour[h.neighbour], h)
	n, known := w.neigh[h.neighbour]
	// One that an earlier process had the kernel keep was that process's too.
	h.created = !known || n.leftover()
	w.setFromNeighbour(h)
	w.ask(h, now)
	w.index.Load().insert(k, h.number)
}

// adoptLeft makes adjacencies of the neighbours that an earlier process had
// the kernel keep fresh: they are used again, or given up like all others.
func (w *Watcher) adoptLeft() {
	now := time.Now()
	for key, n := range w.neigh {
		if !n.leftover() {
			continue
		}
		for port, index := range w.nextHops.ports {
			if index == key.index {
				w.want(makeHopKey(port, key.addr), now)
			}
		}
	}
}

// create takes a number and fills in the adjacency's words, but the MAC.
func (w *Watcher) create(k hopKey, now time.Time) *nextHop {
	n, ok := w.nextHops.number(now)
	if !ok {
		w.stats.full.Add(1)
		w.nextHops.swept = time.Time{} // look for idle ones at the next tick
		return nil
	}
	a := &w.adj[n]
	a.hop[0].Store(k.w0)
	a.hop[1].Store(k.w1)
	a.dst.Store(uint64(Unresolved) << 48)
	a.used.Store(0)
	a.port.Store(k.port)
	h := &nextHop{key: k, number: n, usedAt: now}
	w.nextHops.byKey[k] = h
	w.setPort(a, k)
	return h
}

// setPort writes what an adjacency has of its port: source MAC and MTU.
func (w *Watcher) setPort(a *Adjacency, k hopKey) {
	port := int(k.port) - 1
	var mac [6]byte
	mtu := 0
	if hp := w.cfg.HostPort; hp != nil && hp.Port == port {
		mac, mtu = hp.MAC, hp.MTU
		if n := k.nextHop(); n == hp.Local4 || n == hp.Local6 {
			mac = hp.ReturnMAC
		}
	} else if l := w.kernel.links[w.nextHops.ports[port]]; l != nil {
		mac, mtu = l.mac, l.mtu
	}
	if word := macWord(mac) | uint64(port)<<48; a.src.Load() != word {
		a.src.Store(word)
	}
	if a.mtu.Load() != uint32(mtu) {
		a.mtu.Store(uint32(mtu))
	}
}

// refreshPorts follows changes of MAC and MTU of the interfaces.
func (w *Watcher) refreshPorts() {
	for k, h := range w.nextHops.byKey {
		w.setPort(&w.adj[h.number], k)
	}
}

// portsChanged takes over which interface holds the neighbours of each port,
// and says whether that changed. Adjacencies that are void now are given up.
func (w *Watcher) portsChanged(byInterface map[int][]int) bool {
	ports := make(map[int]int)
	for index, ps := range byInterface {
		for _, p := range ps {
			ports[p] = index
		}
	}
	changed := len(ports) != len(w.nextHops.ports)
	for p, i := range ports {
		changed = changed || w.nextHops.ports[p] != i
	}
	w.nextHops.ports = ports
	if !changed {
		return false
	}
	var void []*nextHop
	for _, h := range w.nextHops.byKey {
		if !h.permanent && ports[int(h.key.port)-1] != h.neighbour.index {
			void = append(void, h)
		}
	}
	w.giveUp(void)
	return true
}

// watched says whether the neighbours of an interface matter.
func (w *Watcher) watched(index int) bool {
	for _, i := range w.nextHops.ports {
		if i == index {
			return true
		}
	}
	return false
}

// addHostPortAdjacencies makes the next hops of the host port, two per family,
// which are known and stay as they are.
func (w *Watcher) addHostPortAdjacencies() {
	hp := w.cfg.HostPort
	for k, h := range w.nextHops.byKey {
		if h.permanent && (hp == nil || int(k.port)-1 != hp.Port) {
			w.giveUp([]*nextHop{h})
		}
	}
	if hp == nil {
		return
	}
	for _, gw := range []netip.Addr{hp.Gateway4, hp.Gateway6, hp.Local4, hp.Local6} {
		if !gw.IsValid() {
			continue
		}
		k := makeHopKey(hp.Port, gw)
		h := w.nextHops.byKey[k]
		fresh := h == nil
		if fresh {
			if h = w.create(k, time.Now()); h == nil {
				return
			}
			h.permanent = true
		}
		a := &w.adj[h.number]
		w.setPort(a, k)
		a.dst.Store(macWord(hp.PeerMAC) | uint64(Valid)<<48)
		if fresh {
			w.index.Load().insert(k, h.number)
		}
	}
}

// setFromNeighbour makes an adjacency what the kernel knows of its neighbour.
func (w *Watcher) setFromNeighbour(h *nextHop) {
	n, known := w.neigh[h.neighbour]
	var word uint64
	switch {
	case known && n.usable():
		word = macWord(n.mac) | uint64(Valid)<<48
	case known && n.state&unix.NUD_FAILED != 0:
		word = uint64(Failed) << 48
	case known && n.state&unix.NUD_INCOMPLETE != 0, h.asked:
		word = uint64(Resolving) << 48
	default:
		word = uint64(Unresolved) << 48
	}
	if a := &w.adj[h.number]; a.dst.Load() != word {
		a.dst.Store(word)
	}
}

// neighbourChanged takes over one notification.
func (w *Watcher) neighbourChanged(c *neighbourChange) {
	if !w.watched(c.key.index) {
		return
	}
	if c.deleted {
		delete(w.neigh, c.key)
	} else {
		w.neigh[c.key] = c.n
	}
	now := time.Now()
	for _, h := range w.nextHops.byNeighbour[c.key] {
		if c.deleted {
			// Flushed with its link, or by hand: asked for again, but not at
			// once, or two who disagree would keep each other busy.
			h.asked, h.askAt = false, now.Add(time.Second)
		} else if w.nextHops.kept == keepByAsking && c.n.state&unix.NUD_STALE != 0 {
			h.askAt = now
		}
		w.setFromNeighbour(h)
	}
}

// replaceNeighbours takes over a full reading.
func (w *Watcher) replaceNeighbours(all map[neighbourKey]neighbour) {
	w.neigh = all
	for _, h := range w.nextHops.byKey {
		if h.permanent {
			continue
		}
		if n, known := all[h.neighbour]; !known || w.nextHops.kept == keepByKernel && !n.managed && !n.fixed() {
			h.asked, h.askAt = false, time.Now()
		}
		w.setFromNeighbour(h)
	}
}

// giveUpIdle frees the adjacencies that no worker has used for a while, those
// that lead nowhere sooner, and all idle ones sooner when few numbers are left.
func (w *Watcher) giveUpIdle(now time.Time) {
	idle := w.cfg.IdleAfter
	if len(w.nextHops.free) < w.cfg.MaxAdjacencies/10 {
		idle /= 5
	}
	var unused []*nextHop
	for _, h := range w.nextHops.byKey {
		limit := idle
		if w.adj[h.number].State() != Valid {
			limit = min(limit, w.cfg.IdleAfter/10)
		}
		if !h.permanent && now.Sub(h.usedAt) > limit {
			unused = append(unused, h)
		}
	}
	w.giveUp(unused)
}

// giveUp frees adjacencies. Their numbers rest for a while, and the epoch
// changes, so that flows that hold one look it up again.
func (w *Watcher) giveUp(hs []*nextHop) {
	if len(hs) == 0 {
		return
	}
	now := time.Now()
	x := w.index.Load()
	for _, h := range hs {
		x.remove(h.key, h.number)
		if err := w.restore(h); err != nil {
			w.log.Debug("release a neighbour", "address", h.neighbour.addr, "error", err)
		}
		delete(w.nextHops.byKey, h.key)
		w.forgetNeighbour(h)
		w.adj[h.number].dst.Store(uint64(Unresolved) << 48)
		w.adj[h.number].port.Store(0)
		w.nextHops.resting = append(w.nextHops.resting, restingNumber{h.number, now.Add(rest)})
	}
	w.stats.released.Add(uint64(len(hs)))
	if x.tombs > len(x.slots)/4 {
		w.reindex()
	}
	old := w.table.Load()
	w.publishTable(&Table{first: old.first, main: old.main})
}

func (w *Watcher) forgetNeighbour(h *nextHop) {
	left := w.nextHops.byNeighbour[h.neighbour]
	kept := left[:0]
	for _, o := range left {
		if o != h {
			kept = append(kept, o)
		}
	}
	if len(kept) == 0 {
		delete(w.nextHops.byNeighbour, h.neighbour)
		return
	}
	w.nextHops.byNeighbour[h.neighbour] = kept
}

// reindex makes a new index without tombstones.
func (w *Watcher) reindex() {
	x := newHopIndex(w.cfg.MaxAdjacencies)
	for k, h := range w.nextHops.byKey {
		x.insert(k, h.number)
	}
	w.index.Store(x)
}
