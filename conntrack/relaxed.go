//go:build !race

package conntrack

// storeRelaxed stores a word that orders nothing, where a store too many or too late
// does no harm. sync/atomic knows only the ordered kind, which on amd64 is a locked
// instruction and waits for all loads before it: those of the batch.
func storeRelaxed(p *uint32, v uint32) { *p = v }

func storeRelaxed64(p *uint64, v uint64) { *p = v }
