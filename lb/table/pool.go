package table

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/valyala/fastrand"
)

// EndpointEntry is an endpoint as workers see it, immutable.
type EndpointEntry struct {
	ID     uint32 // from 1; the EndpointID of the endpoint's connections
	Port   uint16 // raw: little-endian load of the network-order bytes
	Family uint8  // 4 or 6
	Local  bool   // runs on this node
	W0, W1 uint64 // little-endian loads of Addr; IPv4: W1 = 0
	Addr   [16]byte
	// AddrPort and Weight say the same to the control plane.
	AddrPort netip.AddrPort
	Weight   uint32 // as given, 0 shown as 1
	// since is the tick at which it came to the Service, or any tick long ago.
	since uint32
}

// PoolEntry is a pool as workers see it, immutable.
type PoolEntry struct {
	// slots is the Maglev table: size numbers of endpoints, each in
	// 1<<shift bytes, little-endian, with padding at the end so that a
	// four-byte load and a mask read any width without a branch. Empty for
	// a pool that needs none (fewer than two endpoints, or Random).
	slots     []byte
	size      uint64
	mask      uint32
	shift     uint8
	algorithm Algorithm
	onEmpty   OnEmpty
	proto     uint8
	owner     uint64 // the Service port of the endpoints' numbers
	affinity  int32
	endpoints []EndpointEntry // in order of address, port
	alias     []aliasCell     // Random or LeastConn with unequal weights
	tier      string
	slowStart uint32    // ticks
	slowUntil uint32    // tick from which no endpoint starts slowly
	starting  bool      // slowUntil means something
	byID      []idIndex // with affinity; ascending
	members   uint64    // see hashMembers
}

// idIndex is where the endpoint with a number is.
type idIndex struct{ id, index uint32 }

// Pick is the endpoint for a hash, nil when the pool is empty. In a Maglev
// pool the hash is that of [Hash], or [HashClient] for affinity; in a Random pool it is any
// random number.
func (p *PoolEntry) Pick(hash uint64) *EndpointEntry {
	if p.size != 0 {
		slot, _ := bits.Mul64(hash, p.size) // hash/2^64 * size, without a division
		at := slot << (p.shift & 3)
		i := binary.LittleEndian.Uint32(p.slots[at:at+4]) & p.mask
		return &p.endpoints[i]
	}
	return p.pickWithoutTable(hash)
}

func (p *PoolEntry) pickWithoutTable(hash uint64) *EndpointEntry {
	switch {
	case len(p.endpoints) == 0:
		return nil
	case p.alias != nil:
		return &p.endpoints[pickAlias(p.alias, hash)]
	}
	i, _ := bits.Mul64(hash, uint64(len(p.endpoints)))
	return &p.endpoints[i]
}

// Select is the endpoint for a new flow with tuple w (as for [Hash]) at tick, nil
// when the pool is empty: by the client's address if the pool has session affinity,
// else by the pool's algorithm. rng is the worker's own. A LeastConn pool, whose loads the
// table does not know, is treated as Random.
//
// The choice by the client's address needs no memory, survives a restart, and all
// nodes agree on it. A change of the pool moves about the changed endpoints' share of
// clients: a caller with a memory of clients' endpoints looks there first.
func (p *PoolEntry) Select(w *[5]uint64, rng *fastrand.RNG, tick uint32) *EndpointEntry {
	var hash uint64
	switch {
	case p.affinity != 0:
		hash = HashClient(w)
	case p.algorithm != Maglev:
		hash = random(rng)
	default:
		hash = Hash(w)
	}
	return p.pickAt(hash, tick)
}

// SelectAnew is Select for a client that comes back after the time of its session affinity: by the client's
// address and the period of time, so that all connections that it begins have the same endpoint.
func (p *PoolEntry) SelectAnew(w *[5]uint64, period, tick uint32) *EndpointEntry {
	return p.pickAt(mix(HashClient(w)^uint64(period), seed3), tick)
}

// pickAt is Pick while endpoints may start slowly.
func (p *PoolEntry) pickAt(hash uint64, tick uint32) *EndpointEntry {
	if !p.startsSlowly(tick) {
		return p.Pick(hash)
	}
	return p.pickStarted(hash, tick)
}

// PickRandom is an endpoint at random, by the weights; nil when the pool is empty.
func (p *PoolEntry) PickRandom(rng *fastrand.RNG) *EndpointEntry { return p.Pick(random(rng)) }

func random(rng *fastrand.RNG) uint64 { return uint64(rng.Uint32())<<32 | uint64(rng.Uint32()) }

// otherPicks bounds how often PickOther picks by the tables.
const otherPicks = 8

// PickOther is an endpoint for a hash with another number than one that does not answer, nil if there is
// none.
func (p *PoolEntry) PickOther(hash uint64, number uint32) *EndpointEntry {
	for range otherPicks {
		hash = mix(hash^seed2, seed3)
		if e := p.Pick(hash); e == nil || e.ID != number {
			return e
		}
	}
	for i := range p.endpoints { // it has nearly all of the weight
		if p.endpoints[i].ID != number {
			return &p.endpoints[i]
		}
	}
	return nil
}

// Lists reports whether the pool offers an endpoint to new flows.
func (p *PoolEntry) Lists(endpoint netip.AddrPort) bool {
	lo, hi := 0, len(p.endpoints)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch c := p.endpoints[mid].AddrPort.Compare(endpoint); {
		case c == 0:
			return true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return false
}

// Find is the endpoint with a number in a pool with session affinity, nil when
// it is not in the pool.
func (p *PoolEntry) Find(number uint32) *EndpointEntry {
	lo, hi := 0, len(p.byID)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if p.byID[mid].id < number {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(p.byID) && p.byID[lo].id == number {
		return &p.endpoints[p.byID[lo].index]
	}
	return nil
}

// Len is the number of endpoints.
func (p *PoolEntry) Len() int { return len(p.endpoints) }

// Endpoints are the pool's endpoints in order of address and port. They must not be written.
func (p *PoolEntry) Endpoints() []EndpointEntry { return p.endpoints }

// Algorithm is how the pool chooses.
func (p *PoolEntry) Algorithm() Algorithm { return p.algorithm }

// OnEmpty is the answer to new flows while the pool is empty.
func (p *PoolEntry) OnEmpty() OnEmpty { return p.onEmpty }

// AffinitySeconds is the ClientIP affinity timeout, 0 without affinity.
func (p *PoolEntry) AffinitySeconds() int { return int(p.affinity) }

// Tier is which endpoints these are, in the words of topology.Tier.
func (p *PoolEntry) Tier() string { return p.tier }

// TableSize is the number of Maglev slots, 0 without a table.
func (p *PoolEntry) TableSize() int { return int(p.size) }
