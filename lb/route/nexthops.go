package route

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// nextHops is the writer's side of the adjacencies. Owned by Run's goroutine.
type nextHops struct {
	byKey map[hopKey]*nextHop
	// byNeighbor lists the adjacencies of a neighbor: a bond's has an adjacency for every
	// member.
	byNeighbor map[neighborKey][]*nextHop
	free       []uint32
	// quarantined are numbers given up a moment ago that flows may hold: a worker in the
	// middle of a batch may have looked at the stamp before.
	quarantined []quarantinedNumber
	// unproven are next hops that are not needed and have not answered, the oldest
	// first; some are none any more, or have been given up.
	unproven    []*nextHop
	numUnproven int
	tokens      float64 // requests for clients' next hops that may be made at once
	filled      time.Time
	ports       map[int]int // port -> index of the interface that holds its neighbors
	// refresh reports whether the kernel keeps neighbors fresh by itself
	// (NTF_EXT_MANAGED): found out with the first request.
	refresh refreshMode
	swept   time.Time
}

type refreshMode uint8

const (
	refreshUnknown refreshMode = iota
	refreshByKernel
	refreshByProbe
)

type quarantinedNumber struct {
	n     uint32
	until time.Time
}

// quarantineTime is how long a number is not used again after it was given up; far more
// than a batch takes.
const quarantineTime = 5 * time.Second

// nextHop is the writer's state of an adjacency.
type nextHop struct {
	key    hopKey
	number uint32
	// neighbor is zero for the host veth.
	neighbor       neighborKey
	permanent      bool // the host veth's: never resolved, never given up
	needed         bool // an endpoint or a gateway is there
	answered       bool // it has been Valid: flows may hold the number
	probed         bool // the kernel was asked to resolve it
	created        bool // and had not known it before
	failureExpired bool // it failed a while ago: the next packet asks again
	// begun is the probe, as Adjacency.Probes counts them, that began the resolution under way.
	// 0: none did, so that no packet is to hear of a failure.
	begun     uint32
	failedAt  time.Time
	refusedAt time.Time // when the kernel last refused to resolve it
	probeAt   time.Time
	lastTick  uint32
	usedAt    time.Time // when lastTick was seen to change
}

// probeInterval is how long a neighbor that Weir keeps fresh by asking goes
// without: below the shortest time (15 s) after which the kernel calls it
// stale by default.
const probeInterval = 10 * time.Second

func (x *nextHops) init(limit int) {
	x.byKey = make(map[hopKey]*nextHop)
	x.byNeighbor = make(map[neighborKey][]*nextHop)
	x.free = make([]uint32, 0, limit)
	for n := limit; n > 0; n-- {
		x.free = append(x.free, uint32(n))
	}
}

// serveRequests serves the requests of workers.
func (w *Watcher) serveRequests() {
	w.requested.Store(0) // before the rings are read: a later request wakes again
	now := time.Now()
	for i := range w.rings {
		for {
			k, ok := w.rings[i].take()
			if !ok {
				break
			}
			w.request(k, now)
		}
	}
}

// adoptManaged makes adjacencies of the neighbors that an earlier process had
// the kernel keep fresh: they are used again, or given up like all others.
func (w *Watcher) adoptManaged() {
	now := time.Now()
	for key, n := range w.neigh {
		if !n.managedByWeir() {
			continue
		}
		for port, index := range w.nextHops.ports {
			if index == key.index {
				w.request(request{hopKey: makeHopKey(port, key.addr)}, now)
			}
		}
	}
}

// setPort writes the port's fields of an adjacency: source MAC and MTU.
func (w *Watcher) setPort(a *Adjacency, k hopKey) {
	port := int(k.port) - 1
	var mac [6]byte
	mtu := 0
	if hp := w.cfg.HostVeth; hp != nil && hp.Port == port {
		mac, mtu = hp.MAC, hp.MTU
		if n := k.nextHop(); n == hp.Local4 || n == hp.Local6 {
			mac = hp.ReturnPathMAC
		}
	} else if l := w.kernel.links[w.nextHops.ports[port]]; l != nil {
		mac, mtu = l.mac, l.mtu
	}
	if word := MACWord(mac) | uint64(port)<<48; a.src.Load() != word {
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

// portsChanged takes over which interface holds the neighbors of each port,
// and reports whether that changed. Adjacencies that are void now are given up.
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
		if !h.permanent && ports[int(h.key.port)-1] != h.neighbor.index {
			void = append(void, h)
		}
	}
	w.release(void)
	return true
}

// watched reports whether the neighbors of an interface matter.
func (w *Watcher) watched(index int) bool {
	for _, i := range w.nextHops.ports {
		if i == index {
			return true
		}
	}
	return false
}

// addHostVethAdjacencies makes the next hops of the host veth, two per family,
// which are known and stay as they are.
func (w *Watcher) addHostVethAdjacencies() {
	hp := w.cfg.HostVeth
	for k, h := range w.nextHops.byKey {
		if h.permanent && (hp == nil || int(k.port)-1 != hp.Port) {
			w.release([]*nextHop{h})
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
			if h = w.create(request{k, true}, time.Now()); h == nil {
				return
			}
			h.permanent = true
		}
		a := &w.adj[h.number]
		w.setPort(a, k)
		a.dst.Store(MACWord(hp.PeerMAC) | uint64(Valid)<<48)
		if fresh {
			w.index.Load().insert(k, h.number)
		}
	}
}

// setFromNeighbor copies the kernel's neighbor to an adjacency.
func (w *Watcher) setFromNeighbor(h *nextHop) {
	n, known := w.neigh[h.neighbor]
	a := &w.adj[h.number]
	var word uint64
	switch {
	case known && n.usable():
		word = MACWord(n.mac) | uint64(Valid)<<48
		w.setAnswered(h)
		a.silent.Store(false)
	case known && n.state&unix.NUD_FAILED != 0 && !h.failureExpired:
		word = uint64(Failed) << 48
		a.failed.Store(h.begun)
		a.silent.Store(true)
	case known && n.state&unix.NUD_INCOMPLETE != 0, h.probed && !h.failureExpired:
		word = uint64(Resolving) << 48
	default:
		word = uint64(Unresolved) << 48
	}
	if a.dst.Load() != word {
		a.dst.Store(word)
	}
}

// neighborChanged takes over a notification.
func (w *Watcher) neighborChanged(c *neighborChange) {
	if !w.watched(c.key.index) {
		return
	}
	before := w.neigh[c.key]
	failed := c.n.state&unix.NUD_FAILED != 0
	if failed && !c.deleted && w.resolvesAgain(c.key) {
		return
	}
	// A neighbor that was good and was not being confirmed has not failed to answer:
	// the kernel announces its removal by this state.
	gone := c.deleted || failed && before.usable() && before.state&unix.NUD_PROBE == 0
	if gone {
		delete(w.neigh, c.key)
	} else {
		w.neigh[c.key] = c.n
	}
	now := time.Now()
	for _, h := range w.nextHops.byNeighbor[c.key] {
		switch {
		case gone:
			// Flushed with the link, or by hand: the next packet probes it again. Without a
			// packet the probe waits, or two programs that disagree would keep each other
			// busy.
			h.probed, h.failureExpired, h.probeAt = false, false, now.Add(time.Second)
		case failed:
			h.failureExpired, h.failedAt = false, now
		case w.nextHops.refresh == refreshByProbe && c.n.state&unix.NUD_STALE != 0:
			h.probeAt = now
		}
		w.setFromNeighbor(h)
	}
}

// replaceNeighbors takes over a full reading.
func (w *Watcher) replaceNeighbors(all map[neighborKey]neighbor) {
	w.neigh = all
	for _, h := range w.nextHops.byKey {
		if h.permanent {
			continue
		}
		if n, known := all[h.neighbor]; !known || w.nextHops.refresh == refreshByKernel && !n.managed && !n.fixed() {
			h.probed, h.probeAt = false, time.Now()
		}
		w.setFromNeighbor(h)
	}
}

func (w *Watcher) forgetNeighbor(h *nextHop) {
	left := w.nextHops.byNeighbor[h.neighbor]
	kept := left[:0]
	for _, o := range left {
		if o != h {
			kept = append(kept, o)
		}
	}
	if len(kept) == 0 {
		delete(w.nextHops.byNeighbor, h.neighbor)
		return
	}
	w.nextHops.byNeighbor[h.neighbor] = kept
}

// reindex makes a new index without tombstones.
func (w *Watcher) reindex() {
	x := newHopIndex(w.cfg.MaxAdjacencies)
	for k, h := range w.nextHops.byKey {
		x.insert(k, h.number)
	}
	w.index.Store(x)
}
