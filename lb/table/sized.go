package table

import (
	"errors"
	"fmt"
	"math/big"
)

// SizedPool is a Maglev pool whose table has size slots, for simulations of sizes that a
// [Table] does not choose. Everything else is as in a published snapshot: the same
// endpoints in a table of the same size give the same choices. There must be two
// endpoints or more; size is a prime, at least their number and at most 1,048,573.
func SizedPool(endpoints []Endpoint, size int) (*PoolEntry, error) {
	b := &New(Config{}).builder
	members, err := b.checked(endpoints)
	if err != nil {
		return nil, err
	}
	most := ladder[len(ladder)-1]
	switch {
	case len(members) < 2:
		return nil, errors.New("fewer than two endpoints need no table")
	case size < len(members) || size > most:
		return nil, fmt.Errorf("%d slots for %d endpoints: must be between their number and %d", size, len(members), most)
	case !big.NewInt(int64(size)).ProbablyPrime(0): // exact below 2^64
		return nil, fmt.Errorf("%d slots: not a prime", size)
	}
	p := &PoolEntry{}
	if p.endpoints, err = b.entries(members, 0, 0); err != nil {
		return nil, err
	}
	p.slots, p.size, p.shift = b.population.buildSize(p.endpoints, size)
	p.mask = uint32(1<<(8<<p.shift) - 1)
	return p, nil
}
