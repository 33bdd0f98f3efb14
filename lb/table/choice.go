package table

// ChoiceHash is equal for two pools, of any node, that choose the same endpoint for the same
// tuple, unless ChoosesByNode. Slow start is left out: nodes that know an endpoint for about as
// long choose alike.
func (p *PoolEntry) ChoiceHash() uint64 {
	h := mix(p.size^seed0, uint64(p.algorithm)^seed1)
	if p.affinity != 0 {
		h = mix(h^seed2, seed3)
	}
	for i := range p.endpoints {
		e := &p.endpoints[i]
		h1, h2 := endpointHash(e)
		h = mix(h^h1, h2^uint64(e.Weight)^seed4)
	}
	return mix(h^seed6, seed7)
}

// ChoosesByNode reports whether the choice depends on more than the tuple and the endpoints: on
// random numbers, or on the flows of the node.
func (p *PoolEntry) ChoosesByNode() bool {
	return p.affinity == 0 && p.algorithm != Maglev && len(p.endpoints) > 1
}
