package xsk

// Prefetch asks for the cache line at the start of every buffer of descs: that of a
// packet's headers, when no buffer is but a packet's first.
func (a *Umem) Prefetch(descs []Desc) {
	if len(descs) > 0 {
		prefetch(&a.mem[0], &descs[0], len(descs))
	}
}
