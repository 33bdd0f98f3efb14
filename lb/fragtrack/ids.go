package fragtrack

// IDs numbers the datagrams that a worker sends in fragments: a counter per pair of
// addresses (RFC 7739 section 5.3), by a hash of the two.
type IDs struct {
	counters [1 << idBits]uint32
}

const idBits = 8

// NewIDs returns counters that begin at random numbers.
func NewIDs(random func() uint32) (ids IDs) {
	for i := range ids.counters {
		ids.counters[i] = random()
	}
	return ids
}

// Next returns the identification of the next datagram between a pair of addresses,
// mixed into one word. Each of shares workers draws from identifications of its own,
// those of share, from 0.
func (ids *IDs) Next(pair uint64, share, shares uint32) uint32 {
	c := &ids.counters[pair*0x9e3779b97f4a7c15>>(64-idBits)]
	*c++
	return *c*shares + share
}
