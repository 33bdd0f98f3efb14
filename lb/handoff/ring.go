// Package handoff passes frames from one worker to another.
package handoff

import (
	"sync/atomic"

	"github.com/weirlb/weir/lb/xsk"
)

// Ring is a ring of frames with a single producer and a single consumer
// (Lamport 1983). The store of tail publishes the frames' contents, the store
// of head releases their slots. Neither side ever waits.
//
// The producer calls Free and Put, the consumer Take. Empty and All are for
// both; All must not run beside Take.
type Ring struct {
	_    [64]byte
	head atomic.Uint32 // written by the consumer
	_    [60]byte
	tail atomic.Uint32 // written by the producer
	_    [60]byte
	slot []Slot
	mask uint32
}

// Slot is one frame on a ring.
type Slot struct {
	Desc xsk.Desc
	// Tag is the producer's word to the consumer; the ring does not read it.
	Tag int32
}

// New returns an empty ring. Preconditions: size is a power of two.
func New(size int) *Ring {
	return &Ring{slot: make([]Slot, size), mask: uint32(size - 1)}
}

// Free returns the number of slots that the producer may fill.
func (r *Ring) Free() int { return len(r.slot) - int(r.tail.Load()-r.head.Load()) }

// Empty reports whether there is nothing to take.
func (r *Ring) Empty() bool { return r.tail.Load() == r.head.Load() }

// Put adds the frames of one packet at once, so that the consumer never finds a
// part of it. It reports false, and adds none, when there is no room for all.
func (r *Ring) Put(tag int32, frames ...xsk.Desc) bool {
	t := r.tail.Load()
	if int(t-r.head.Load())+len(frames) > len(r.slot) {
		return false
	}
	for i, d := range frames {
		r.slot[(t+uint32(i))&r.mask] = Slot{d, tag}
	}
	r.tail.Store(t + uint32(len(frames)))
	return true
}

// Take removes one frame. It reports false when the ring is empty.
func (r *Ring) Take() (Slot, bool) {
	i := r.head.Load()
	if i == r.tail.Load() {
		return Slot{}, false
	}
	s := r.slot[i&r.mask]
	r.head.Store(i + 1)
	return s, true
}

// All yields the frames on the ring, from the front, and takes none.
func (r *Ring) All(yield func(Slot) bool) {
	for i := r.head.Load(); i != r.tail.Load(); i++ {
		if !yield(r.slot[i&r.mask]) {
			return
		}
	}
}
