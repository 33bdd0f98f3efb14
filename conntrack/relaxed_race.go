//go:build race

package conntrack

import "sync/atomic"

// storeRelaxed is an atomic store where the race detector watches.
func storeRelaxed(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

func storeRelaxed64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func (b *bucket) setTag(i uint32, tag uint8) {
	b.tag[i/4].And(^(uint32(0xff) << (i % 4 * 8)))
	b.tag[i/4].Or(uint32(tag) << (i % 4 * 8))
}
