package conntrack

// PortSet is a set of ports; nil is the empty set.
type PortSet [1 << 16 / 64]uint64

// Has reports whether the port is in the set.
func (s *PortSet) Has(port uint16) bool { return s != nil && s[port/64]>>(port%64)&1 != 0 }

// Add adds the ports lo to hi, both included.
func (s *PortSet) Add(lo, hi uint16) {
	for p := uint32(lo); p <= uint32(hi); p++ {
		s[p/64] |= 1 << (p % 64)
	}
}

// AddAll adds the ports of another set.
func (s *PortSet) AddAll(o *PortSet) {
	for i := range s {
		s[i] |= o[i]
	}
}
