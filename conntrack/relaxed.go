//go:build !race

package conntrack

import "unsafe"

// storeRelaxed stores a word that orders nothing, where a store too many or too late
// does no harm. sync/atomic knows only the ordered kind, which on amd64 is a locked
// instruction and waits for all loads before it: those of the batch.
func storeRelaxed(p *uint32, v uint32) { *p = v }

func storeRelaxed64(p *uint64, v uint64) { *p = v }

// setTag sets the tag of slot i, which the caller owns. The store that makes the slot live
// orders it.
func (b *bucket) setTag(i uint32, tag uint8) {
	(*[slotsPerBucket]uint8)(unsafe.Pointer(&b.tag))[i] = tag
}
