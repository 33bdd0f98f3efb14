package worker

// storeRelaxed stores a word that orders nothing, as in package conntrack. The race detector
// is not told: readers of the counters may see a count too few.
//
//go:norace
func storeRelaxed(p *uint64, v uint64) { *p = v }
