package route

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// nextHops are the adjacencies and the writer's side of them: which next hops have a number, and
// what the kernel knows of them. But for adj, index and counts it is owned by Run's goroutine.
type nextHops struct {
	adj    []Adjacency
	index  atomic.Pointer[hopIndex]
	counts hopCounts

	conn      *conn
	log       *slog.Logger
	limit     int // of adjacencies
	idleAfter time.Duration
	host      *HostVeth     // nil without it
	links     map[int]*link // of the last reading

	neigh     map[neighborKey]neighbor
	noCarrier map[int]bool // attached interfaces without a carrier

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

// hopCounts are totals, see Stats.
type hopCounts struct {
	probes, probeErrors, refused, full, released, displaced atomic.Uint64
}

// init takes over the configuration. No adjacency is in use yet.
func (x *nextHops) init(cfg *Config) {
	limit := cfg.MaxAdjacencies
	x.adj, x.limit, x.idleAfter, x.host = cfg.Adjacencies, limit, cfg.IdleAfter, cfg.HostVeth
	if x.adj == nil {
		x.adj = make([]Adjacency, limit+1)
	}
	x.index.Store(newHopIndex(limit))
	x.firstStamps()
	x.neigh, x.noCarrier = make(map[neighborKey]neighbor), make(map[int]bool)
	x.byKey = make(map[hopKey]*nextHop)
	x.byNeighbor = make(map[neighborKey][]*nextHop)
	x.free = make([]uint32, 0, limit)
	for n := limit; n > 0; n-- {
		x.free = append(x.free, uint32(n))
	}
}

// adoptManaged makes adjacencies of the neighbors that an earlier process had
// the kernel keep fresh: they are used again, or given up like all others.
func (x *nextHops) adoptManaged() {
	now := time.Now()
	for key, n := range x.neigh {
		if !n.managedByWeir() {
			continue
		}
		for port, index := range x.ports {
			if index == key.index {
				x.request(request{hopKey: makeHopKey(port, key.addr)}, now)
			}
		}
	}
}

// setPort writes the port's fields of an adjacency: source MAC and MTU.
func (x *nextHops) setPort(a *Adjacency, k hopKey) {
	port := int(k.port) - 1
	var mac [6]byte
	mtu := 0
	if hp := x.host; hp != nil && hp.Port == port {
		mac, mtu = hp.MAC, hp.MTU
		if n := k.nextHop(); n == hp.Local4 || n == hp.Local6 {
			mac = hp.ReturnPathMAC
		}
	} else if l := x.links[x.ports[port]]; l != nil {
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
func (x *nextHops) refreshPorts() {
	for k, h := range x.byKey {
		x.setPort(&x.adj[h.number], k)
	}
}

// portsChanged takes over which interface holds the neighbors of each port,
// and reports whether that changed. Adjacencies that are void now are given up.
func (x *nextHops) portsChanged(byInterface map[int][]int) bool {
	ports := make(map[int]int)
	for index, ps := range byInterface {
		for _, p := range ps {
			ports[p] = index
		}
	}
	changed := len(ports) != len(x.ports)
	for p, i := range ports {
		changed = changed || x.ports[p] != i
	}
	x.ports = ports
	if !changed {
		return false
	}
	var void []*nextHop
	for _, h := range x.byKey {
		if !h.permanent && ports[int(h.key.port)-1] != h.neighbor.index {
			void = append(void, h)
		}
	}
	x.release(void)
	return true
}

// watched reports whether the neighbors of an interface matter.
func (x *nextHops) watched(index int) bool {
	for _, i := range x.ports {
		if i == index {
			return true
		}
	}
	return false
}

// addHostVethAdjacencies makes the next hops of the host veth, two per family,
// which are known and stay as they are.
func (x *nextHops) addHostVethAdjacencies() {
	hp := x.host
	for k, h := range x.byKey {
		if h.permanent && (hp == nil || int(k.port)-1 != hp.Port) {
			x.release([]*nextHop{h})
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
		h := x.byKey[k]
		fresh := h == nil
		if fresh {
			if h = x.create(request{k, true}, time.Now()); h == nil {
				return
			}
			h.permanent = true
		}
		a := &x.adj[h.number]
		x.setPort(a, k)
		a.dst.Store(MACWord(hp.PeerMAC) | uint64(Valid)<<48)
		if fresh {
			x.index.Load().insert(k, h.number)
		}
	}
}

// setFromNeighbor copies the kernel's neighbor to an adjacency.
func (x *nextHops) setFromNeighbor(h *nextHop) {
	n, known := x.neigh[h.neighbor]
	a := &x.adj[h.number]
	var word uint64
	switch {
	case known && n.usable():
		word = MACWord(n.mac) | uint64(Valid)<<48
		x.setAnswered(h)
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
func (x *nextHops) neighborChanged(c *neighborChange) {
	if !x.watched(c.key.index) {
		return
	}
	before := x.neigh[c.key]
	failed := c.n.state&unix.NUD_FAILED != 0
	if failed && !c.deleted && x.resolvesAgain(c.key) {
		return
	}
	// A neighbor that was good and was not being confirmed has not failed to answer:
	// the kernel announces its removal by this state.
	gone := c.deleted || failed && before.usable() && before.state&unix.NUD_PROBE == 0
	if gone {
		delete(x.neigh, c.key)
	} else {
		x.neigh[c.key] = c.n
	}
	now := time.Now()
	for _, h := range x.byNeighbor[c.key] {
		switch {
		case gone:
			// Flushed with the link, or by hand: the next packet probes it again. Without a
			// packet the probe waits, or two programs that disagree would keep each other
			// busy.
			h.probed, h.failureExpired, h.probeAt = false, false, now.Add(time.Second)
		case failed:
			h.failureExpired, h.failedAt = false, now
		case x.refresh == refreshByProbe && c.n.state&unix.NUD_STALE != 0:
			h.probeAt = now
		}
		x.setFromNeighbor(h)
	}
}

// replaceNeighbors takes over a full reading.
func (x *nextHops) replaceNeighbors(all map[neighborKey]neighbor) {
	x.neigh = all
	for _, h := range x.byKey {
		if h.permanent {
			continue
		}
		if n, known := all[h.neighbor]; !known || x.refresh == refreshByKernel && !n.managed && !n.fixed() {
			h.probed, h.probeAt = false, time.Now()
		}
		x.setFromNeighbor(h)
	}
}

func (x *nextHops) forgetNeighbor(h *nextHop) {
	left := x.byNeighbor[h.neighbor]
	kept := left[:0]
	for _, o := range left {
		if o != h {
			kept = append(kept, o)
		}
	}
	if len(kept) == 0 {
		delete(x.byNeighbor, h.neighbor)
		return
	}
	x.byNeighbor[h.neighbor] = kept
}

// reindex makes a new index without tombstones.
func (x *nextHops) reindex() {
	index := newHopIndex(x.limit)
	for k, h := range x.byKey {
		index.insert(k, h.number)
	}
	x.index.Store(index)
}
