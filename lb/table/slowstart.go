package table

// Slow start leaves the tables alone: a new endpoint has its slots from the
// beginning, and during slow start it turns away a shrinking part of their new flows. A
// flow that is turned away goes to the endpoint of another slot, which the hash chooses
// too: so nodes that know
// the endpoint for about as long choose alike.

const (
	// slowStartMin is the part that a new endpoint takes at once, in 1/65536:
	// with none at all it would never warm up.
	slowStartMin = fullPart / 20
	fullPart     = 1 << 16
	// slowStartPicks bounds how often a flow is turned away.
	slowStartPicks = 4
)

// startsSlowly reports whether an endpoint of the pool may have less than the full part of
// new flows.
func (p *PoolEntry) startsSlowly(tick uint32) bool {
	return p.starting && int32(p.slowUntil-tick) > 0
}

// slowStartWeight is the part of the endpoint's share that it takes at tick, in 1/65536.
func (p *PoolEntry) slowStartWeight(e *EndpointEntry, tick uint32) uint64 {
	if e.since == 0 {
		return fullPart
	}
	age := max(0, int32(tick-e.since))
	if uint32(age) >= p.slowStart {
		return fullPart
	}
	return max(slowStartMin, uint64(age)*fullPart/uint64(p.slowStart))
}

// Share is the endpoint's weight at tick, in 1/65536.
func (p *PoolEntry) Share(e *EndpointEntry, tick uint32) uint64 {
	if !p.startsSlowly(tick) {
		return uint64(e.Weight) * fullPart
	}
	return uint64(e.Weight) * p.slowStartWeight(e, tick)
}

// pickStarted is Pick of a pool in which endpoints start slowly. Where all are
// new none is favoured: the last pick stands.
func (p *PoolEntry) pickStarted(hash uint64, tick uint32) *EndpointEntry {
	e := p.Pick(hash)
	for range slowStartPicks {
		if e == nil || e.since == 0 {
			return e
		}
		hash = mix(hash^seed2, seed3)
		if hash>>48 < p.slowStartWeight(e, tick) {
			return e
		}
		hash = mix(hash^seed4, seed5)
		e = p.Pick(hash)
	}
	return e
}

// setStarts notes the start of each endpoint. Endpoints that the Service had, in any pool,
// keep their start; all of a new Service, or of a Service without endpoints before, count
// as old: no other endpoint can relieve them.
func (b *poolBuilder) setStarts(p *PoolEntry) {
	if p.slowStart == 0 || b.old == nil {
		return
	}
	known := b.starts()
	if len(known) == 0 {
		return
	}
	now := max(1, b.from.endpoints.tick())
	for i := range p.endpoints {
		e := &p.endpoints[i]
		since, ok := known[makeEndpointKey(0, e.AddrPort, p.proto)]
		if !ok {
			since = now
		}
		if e.since = since; since != 0 && int32(now-since) < int32(p.slowStart) {
			if until := since + p.slowStart; !p.starting || int32(until-p.slowUntil) > 0 {
				p.starting, p.slowUntil = true, until
			}
		} else {
			e.since = 0
		}
	}
}

// starts are the starts of the published endpoints, of any Service port.
func (b *poolBuilder) starts() map[endpointKey]uint32 {
	if b.since == nil {
		b.since = make(map[endpointKey]uint32)
		for _, q := range b.old.pools {
			for i := range q.endpoints {
				b.since[makeEndpointKey(0, q.endpoints[i].AddrPort, q.proto)] = q.endpoints[i].since
			}
		}
	}
	return b.since
}
