package table

import "math/bits"

// aliasCell is a column of an alias table (Walker 1977, Vose 1991): with
// probability keep/2^32 the column's own endpoint, else the alias.
type aliasCell struct{ keep, alias uint32 }

// pickAlias takes the column from the hash's upper part and the coin from the rest of the
// multiplication.
func pickAlias(cells []aliasCell, hash uint64) uint32 {
	column, rest := bits.Mul64(hash, uint64(len(cells)))
	c := &cells[column]
	if uint32(rest>>32) < c.keep || c.alias == uint32(column) {
		return uint32(column)
	}
	return c.alias
}

// makeAlias is the alias table of the endpoints' weights, nil when all are equal.
func makeAlias(endpoints []EndpointEntry) []aliasCell {
	n := uint64(len(endpoints))
	var total uint64
	equal := true
	for i := range endpoints {
		total += uint64(endpoints[i].Weight)
		equal = equal && endpoints[i].Weight == endpoints[0].Weight
	}
	if equal {
		return nil
	}
	// left[i] is the part of endpoint i in units of which a column holds total.
	cells, left := make([]aliasCell, n), make([]uint64, n)
	var small, large []uint32
	sort := func(i uint32) {
		if left[i] < total {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for i := range endpoints {
		left[i] = uint64(endpoints[i].Weight) * n
		cells[i].alias = uint32(i)
		sort(uint32(i))
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small, large = small[:len(small)-1], large[:len(large)-1]
		keep, _ := bits.Div64(left[s]>>32, left[s]<<32, total) // left < total: keep < 2^32
		cells[s] = aliasCell{uint32(keep), l}
		left[l] -= total - left[s]
		sort(l)
	}
	return cells // a remaining column is full: the alias is the column itself
}
