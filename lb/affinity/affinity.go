// Package affinity remembers which endpoint a client used last: the memory of
// session affinity, which must outlast changes of the endpoints. It also stores the
// endpoints of server names.
//
// A Store has fixed memory without pointers, shared by all workers. A client is a word: 22
// bits of the key's hash, a bit for clients that came back, the endpoint's number and the
// second of the last new connection. Words live in buckets of eight, a cache line. A full
// bucket forgets, of the clients that came once, the client that has been away the longest,
// and others only if there is none: forged packets come from ever other addresses. All
// changes are single compare-and-swaps, so that no reader ever sees half of a change.
//
// Two clients may share a word, once in 500,000: then either is sent to the other's
// endpoint, which serves it as well.
package affinity

import (
	"math/bits"
	"sync/atomic"
)

const (
	ways = 8

	secondBits   = 17 // 36 hours; timeouts are at most 24
	endpointBits = 24
	secondMask   = 1<<secondBits - 1
	endpointMask = 1<<endpointBits - 1
	cameBack     = 1 << (secondBits + endpointBits)
	markShift    = secondBits + endpointBits + 1

	// keepSeconds is for how long a client that came back goes after those that came
	// once: the time of session affinity unless a Service says otherwise.
	keepSeconds = 3 * 3600
)

// MaxEndpoint is the largest endpoint number that can be remembered.
const MaxEndpoint = endpointMask

type bucket [ways]atomic.Uint64

// Store is the memory. Methods may be called from any goroutine; they do not block or
// allocate.
type Store struct {
	buckets []bucket
	seed    [2]uint64
}

// New makes a Store for clients clients at the most, at least 8. The seed keeps
// outsiders from choosing addresses that push others out of the memory.
func New(clients int, seed [2]uint64) *Store {
	return &Store{buckets: make([]bucket, max(1, clients/ways)), seed: seed}
}

// Clients is for how many there is room.
func (s *Store) Clients() int { return len(s.buckets) * ways }

// bucketOf is a key's bucket, and the key's mark in the upper bits of a word.
func (s *Store) bucketOf(key [3]uint64) (*bucket, uint64) {
	hash := mix(mix(key[0]^s.seed[0], key[1]^s.seed[1])^key[2], s.seed[0]|1)
	at, rest := bits.Mul64(hash, uint64(len(s.buckets)))
	return &s.buckets[at], rest >> markShift << markShift
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b^0x9e3779b97f4a7c15)
	return hi ^ lo
}

// Get is the endpoint of the client's last connection, 0 if none is known. ok is true if that began
// at most timeout seconds before now. now is a count of seconds from anywhere.
func (s *Store) Get(key [3]uint64, now, timeout uint32) (endpoint uint32, ok bool) {
	b, mark := s.bucketOf(key)
	for i := range b {
		w := b[i].Load()
		if w == 0 || w>>markShift<<markShift != mark {
			continue
		}
		endpoint = uint32(w>>secondBits) & endpointMask
		if age(w, now) <= timeout {
			return endpoint, true
		}
	}
	return endpoint, false
}

// age is how many seconds ago the word was written. A word from a worker whose clock is a
// little ahead is new.
func age(w uint64, now uint32) uint32 {
	a := (now - uint32(w)) & secondMask
	if a > secondMask-16 {
		return 0
	}
	return a
}

// attempts bounds how often Put begins again when another worker was quicker.
const attempts = 4

// Put remembers that the client begins a connection to the endpoint.
func (s *Store) Put(key [3]uint64, endpoint, now uint32) { s.put(key, endpoint, now, now) }

// Restore is Put of a connection that began at a time before now. It replaces no later one, of no client.
func (s *Store) Restore(key [3]uint64, endpoint, began, now uint32) { s.put(key, endpoint, began, now) }

func (s *Store) put(key [3]uint64, endpoint, began, now uint32) {
	if endpoint == 0 || endpoint > MaxEndpoint {
		return
	}
	b, mark := s.bucketOf(key)
	for range attempts {
		word := mark | uint64(endpoint)<<secondBits | uint64(began&secondMask)
		at, old := b.slot(mark, now)
		if old != 0 && age(old, now) < now-began {
			return
		}
		if old>>markShift<<markShift == mark && old != 0 {
			if word |= old & cameBack; age(old, now) > now-began {
				word |= cameBack
			}
		}
		if old == word || b[at].CompareAndSwap(old, word) {
			return
		}
	}
}

// slot is where the client with the mark is, or else where it may be put: a free
// word, or that of the client to be forgotten.
func (b *bucket) slot(mark uint64, now uint32) (at int, old uint64) {
	oldest := uint32(0)
	for i := range b {
		w := b[i].Load()
		if w != 0 && w>>markShift<<markShift == mark {
			return i, w
		}
		a := uint32(1 << 31)
		if w != 0 {
			if a = age(w, now) + 1; w&cameBack == 0 || a > keepSeconds {
				a += secondMask + 1
			}
		}
		if a > oldest {
			oldest, at, old = a, i, w
		}
	}
	return at, old
}
