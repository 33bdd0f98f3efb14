package table

import (
	"net/netip"
	"sync/atomic"
)

// ticksPerSecond is that of the flow table's coarse time.
const ticksPerSecond = 16

// quarantineTicks is how long, in ticks, an endpoint must have been gone before its number
// is given to another. A worker that still works on a batch begun
// with an older snapshot may name the number in a flow that it is about to create;
// a minute is a thousand times the longest batch.
const quarantineTicks = 60 * ticksPerSecond

// shortQuarantineTicks is quarantineTicks while there is no other number.
const shortQuarantineTicks = 5 * ticksPerSecond

// reclaimBudget is the number of removed endpoints that a publication examines, beside twice as
// many as it removes.
const reclaimBudget = 64

// Endpoint numbers are kept in chunks that come into being when used, so that
// a small node does not pay for DefaultMaxEndpoints.
const (
	chunkBits = 12
	chunkSize = 1 << chunkBits
)

// The state of a number is a word: 0 unknown, statePresent, or stateRemoved|tick.
const (
	statePresent = 1 << 63
	stateRemoved = 1 << 62
)

// endpointKey is an endpoint as a Service port lists it. The same address and port has
// a number per Service port, so that leaving a Service port ends the flows of that port
// alone, as in kube-proxy, which compares a flow's endpoint with those of its
// Service port. IPVS counts connections per virtual service in the same way.
type endpointKey struct {
	owner uint64 // the Service port, see servicePort; 0: of none, as after a restart
	addr  [16]byte
	port  uint16
	proto uint8
	is4   bool
}

func makeEndpointKey(owner uint64, ap netip.AddrPort, proto uint8) endpointKey {
	a := ap.Addr().Unmap()
	return endpointKey{owner, a.As16(), ap.Port(), proto, a.Is4()}
}

// servicePort identifies a Service port by the Service's name, the port and the
// protocol: a Service that is deleted and made again has the same flows.
func servicePort(service string, port uint16, proto uint8) uint64 {
	return hashText(service) ^ uint64(port) ^ uint64(proto)<<16
}

func (k *endpointKey) addrPort() netip.AddrPort {
	a := netip.AddrFrom16(k.addr)
	if k.is4 {
		a = a.Unmap()
	}
	return netip.AddrPortFrom(a, k.port)
}

// endpointRecord is the endpoint of a number.
type endpointRecord struct {
	key     endpointKey
	refs    uint32 // publications of the Service that list it: 2 during a replacement
	queued  bool   // is in endpoints.removed
	pending bool   // the change in preparation names it, though the Service does not list it yet
}

// endpointIDs assigns the IDs of endpoints, one for each Service port that lists the
// endpoint. A number stays the endpoint's own as long as the Service port lists it or a
// flow names it. All but the states is guarded by Table.mu.
type endpointIDs struct {
	inUse func(uint32) bool
	tick  func() uint32
	max   int
	// onRemoval is Config.OnRemoval, never nil.
	onRemoval func(n uint32, removed bool)
	onAssign  func(n uint32) // may be nil

	byKey      map[endpointKey]uint32
	records    []endpointRecord // [0] unused
	free       []uint32         // may be given again
	removed    []uint32         // not listed, longest first; some may have come back
	pending    []uint32         // those with the pending mark
	states     []atomic.Pointer[[chunkSize]atomic.Uint64]
	present    atomic.Int64
	numRemoved atomic.Int64 // numbers whose state is stateRemoved
}

func (e *endpointIDs) init(cfg Config) {
	e.onAssign = cfg.OnAssign
	e.inUse, e.tick, e.max = cfg.InUse, cfg.Tick, cfg.MaxEndpoints
	if e.onRemoval = cfg.OnRemoval; e.onRemoval == nil {
		e.onRemoval = func(uint32, bool) {}
	}
	e.byKey = make(map[endpointKey]uint32)
	e.records = make([]endpointRecord, 1)
	e.states = make([]atomic.Pointer[[chunkSize]atomic.Uint64], cfg.MaxEndpoints>>chunkBits+1)
}

// state is the number's state word, nil for a number never used.
func (e *endpointIDs) state(n uint32) *atomic.Uint64 {
	if int(n>>chunkBits) >= len(e.states) {
		return nil
	}
	chunk := e.states[n>>chunkBits].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[n%chunkSize]
}

// setState is for the writer; the count is right before the state can be read, and the
// owner of the flow cache knows of a removal.
func (e *endpointIDs) setState(n uint32, v uint64) {
	s := e.state(n)
	removed := v&stateRemoved != 0
	if removed {
		e.numRemoved.Add(1)
		e.onRemoval(n, true)
	}
	if s.Swap(v)&stateRemoved != 0 {
		e.numRemoved.Add(-1)
		if !removed {
			e.onRemoval(n, false)
		}
	}
}

// assign is the endpoint's number, a new number if it has none. It stays the
// endpoint's own until settle.
func (e *endpointIDs) assign(k endpointKey) (uint32, error) {
	n, ok := e.byKey[k]
	if !ok {
		if n, ok = e.allocate(); !ok {
			return 0, ErrTooManyEndpoints
		}
		if e.onAssign != nil {
			e.onAssign(n)
		}
		e.records[n] = endpointRecord{key: k}
		e.byKey[k] = n
	}
	if id := &e.records[n]; id.refs == 0 && !id.pending {
		id.pending = true
		e.pending = append(e.pending, n)
	}
	return n, nil
}

// allocate returns an unused number.
func (e *endpointIDs) allocate() (uint32, bool) {
	if len(e.free) == 0 && len(e.records) > e.max {
		e.reclaim(len(e.removed), shortQuarantineTicks)
	}
	if last := len(e.free) - 1; last >= 0 {
		n := e.free[last]
		e.free = e.free[:last]
		return n, true
	}
	if len(e.records) > e.max {
		return 0, false
	}
	n := uint32(len(e.records))
	e.records = append(e.records, endpointRecord{})
	if chunk := &e.states[n>>chunkBits]; chunk.Load() == nil {
		chunk.Store(new([chunkSize]atomic.Uint64))
	}
	return n, true
}

// endChange ends a change, published or not: numbers that it made and that no snapshot has
// are free again.
func (e *endpointIDs) endChange() {
	for _, n := range e.pending {
		id := &e.records[n]
		id.pending = false
		if e.state(n).Load() == 0 {
			e.freeID(n)
		}
	}
	e.pending = e.pending[:0]
}

func (e *endpointIDs) freeID(n uint32) {
	id := &e.records[n]
	delete(e.byKey, id.key)
	*id = endpointRecord{}
	e.setState(n, 0)
	e.free = append(e.free, n)
}

// addRef counts another Service that lists the numbers.
func (e *endpointIDs) addRef(numbers []uint32) {
	for _, n := range numbers {
		id := &e.records[n]
		if id.refs++; id.refs == 1 {
			e.setState(n, statePresent)
			e.present.Add(1)
		}
	}
}

// dropRef is the opposite of addRef.
func (e *endpointIDs) dropRef(numbers []uint32) {
	for _, n := range numbers {
		id := &e.records[n]
		if id.refs--; id.refs == 0 {
			e.present.Add(-1)
			e.markRemoved(n)
		}
	}
}

// markRemoved marks the number as gone from now on.
func (e *endpointIDs) markRemoved(n uint32) {
	e.setState(n, stateRemoved|uint64(e.tick()))
	if id := &e.records[n]; !id.queued {
		id.queued = true
		e.removed = append(e.removed, n)
	}
}

// reclaim looks at up to budget gone numbers and frees those that nothing names, and that have
// rested for so long.
func (e *endpointIDs) reclaim(budget int, rest uint32) {
	now := e.tick()
	for range min(budget, len(e.removed)) {
		n := e.removed[0]
		e.removed = e.removed[1:]
		id := &e.records[n]
		switch {
		case id.refs > 0: // came back
			id.queued = false
		case id.pending || now-uint32(e.state(n).Load()) < rest || e.inUse(n):
			e.removed = append(e.removed, n)
		default:
			e.freeID(n)
		}
	}
}

// RestoreEndpoint returns the number of endpoint ap for a flow of frontend f that was
// there before this Table, as after a restart, or before f was this Service port's. f
// is nil if the flow's frontend is no longer served. An endpoint that f's Service port
// does not list gets a number too, and counts as gone from now on. The error is
// ErrTooManyEndpoints.
func (t *Table) RestoreEndpoint(f *FrontendEntry, ap netip.AddrPort, proto uint8) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.endpoints
	var owner uint64
	if f != nil {
		owner, ap = f.servicePort, f.Listed(ap)
	}
	n, err := e.assign(makeEndpointKey(owner, ap, proto))
	if err != nil {
		return 0, err
	}
	if e.state(n).Load() == 0 {
		e.markRemoved(n)
	}
	return n, nil
}

// EndpointID is the ID of an endpoint as a Service port lists it, if it has any.
func (t *Table) EndpointID(service string, port uint16, proto uint8, ap netip.AddrPort) (n uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok = t.endpoints.byKey[makeEndpointKey(servicePort(service, port, proto), ap, proto)]
	return n, ok
}

// Endpoint is the address, port and protocol of an endpoint number.
func (t *Table) Endpoint(n uint32) (ap netip.AddrPort, proto uint8, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.endpoints
	if int(n) >= len(e.records) || e.records[n] == (endpointRecord{}) {
		return netip.AddrPort{}, 0, false
	}
	k := &e.records[n].key
	return k.addrPort(), k.proto, true
}

// EndpointRemoved reports whether the number's Service port has the endpoint no more,
// neither in a pool nor listed, and since which tick. It is false for a number that
// belongs to none. Any goroutine may call it; it costs two loads.
func (t *Table) EndpointRemoved(n uint32) (since uint32, gone bool) {
	s := t.endpoints.state(n)
	if s == nil {
		return 0, false
	}
	v := s.Load()
	return uint32(v), v&stateRemoved != 0
}

// AnyEndpointRemoved reports whether EndpointRemoved could be true of any number: workers
// ask once per batch, and per packet only then.
func (t *Table) AnyEndpointRemoved() bool { return t.endpoints.numRemoved.Load() != 0 }

// PresentEndpoints returns the number of endpoints that Services list. An endpoint
// counts once for each Service port that lists it.
func (t *Table) PresentEndpoints() int { return int(t.endpoints.present.Load()) }
