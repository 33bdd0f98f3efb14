package lb

import (
	"sync/atomic"

	"github.com/weirlb/weir/lb/xsk"
)

// handoff passes frames from one worker to another: a ring with a single
// producer and a single consumer (Lamport 1983). The frames' contents are
// published by the store of tail, their release by the store of head.
type handoff struct {
	_    [64]byte
	head atomic.Uint32 // written by the consumer
	_    [60]byte
	tail atomic.Uint32 // written by the producer
	_    [60]byte
	slot []handoffSlot
	mask uint32
}

type handoffSlot struct {
	desc xsk.Desc
	port int32 // the port to leave by; returned is a free frame given back, arrived and below see there
}

const returned = -1

func newHandoff(size int) *handoff {
	return &handoff{slot: make([]handoffSlot, size), mask: uint32(size - 1)}
}

// room is how many slots the producer may fill.
func (h *handoff) room() int { return len(h.slot) - int(h.tail.Load()-h.head.Load()) }

// put adds the frames of one packet at once, so that the consumer never finds a
// part of it; false when there is no room for all.
func (h *handoff) put(port int32, frames ...xsk.Desc) bool {
	t := h.tail.Load()
	if int(t-h.head.Load())+len(frames) > len(h.slot) {
		return false
	}
	for i, d := range frames {
		h.slot[(t+uint32(i))&h.mask] = handoffSlot{d, port}
	}
	h.tail.Store(t + uint32(len(frames)))
	return true
}

// take removes one frame; false when the ring is empty.
func (h *handoff) take() (handoffSlot, bool) {
	i := h.head.Load()
	if i == h.tail.Load() {
		return handoffSlot{}, false
	}
	s := h.slot[i&h.mask]
	h.head.Store(i + 1)
	return s, true
}
