package l2

import (
	"hash/fnv"
	"net/netip"
)

// standing is what a node has to do with an address.
type standing struct {
	// eligible is true if the node serves the address and would own it.
	eligible bool
	// owned is true if the node answers for the address. An owner that is not eligible goes on to
	// answer until another node does.
	owned bool
	// preempts is true if the node wants the addresses back that it is the first choice for.
	preempts bool
	// leaves is true if the node has told the others that it will not stay the owner.
	leaves bool
	weight uint64
}

// verdict is what a node does about an address.
type verdict uint8

const (
	stand   verdict = iota // nothing changes
	take                   // become the owner
	release                // stay the owner until another node is
	giveUp                 // be the owner no more
)

// elect decides for a node, by what it knows of the others on the link. With the same knowledge at
// most one node takes an address, and of several owners one stays. It is rendezvous hashing with a
// memory: the first choice among the eligible nodes takes an address that nobody has.
func elect(self standing, others []standing) (v verdict, conflict bool) {
	taken, first := false, true // taken: by another node, for good
	owners := false
	for _, o := range others {
		if o.owned {
			owners = true
		}
		if o.owned && o.eligible {
			taken = true
			conflict = conflict || self.owned && self.eligible && !self.leaves
		}
		if o.eligible && o.weight > self.weight {
			first = false
			if o.preempts && self.owned && self.eligible && !o.owned {
				self.eligible = false // it is the other's turn
			}
		}
	}
	switch {
	case !self.owned && self.eligible && !taken && first:
		return take, false
	case !self.owned:
		return stand, false
	case !self.eligible && owners, self.leaves && taken:
		return giveUp, false
	case !self.eligible:
		return release, false
	case !conflict:
		return stand, false
	}
	for _, o := range others {
		if o.owned && o.eligible && o.weight > self.weight {
			return giveUp, true
		}
	}
	return stand, true
}

// weight is the rank of a node for an address: the highest comes first. It is the same on every
// node, and spreads addresses over nodes (rendezvous hashing).
func weight(node string, a netip.Addr) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node))
	b := a.As16()
	_, _ = h.Write(append([]byte{0}, b[:]...))
	return mix(h.Sum64())
}

// mix is the finalizer of MurmurHash3: FNV leaves the bits of the last bytes close together.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
