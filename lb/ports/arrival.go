package ports

import "slices"

// Arrival is how a packet comes by a port.
type Arrival struct {
	Port int     // by whose queue it comes: of a VLAN the device's
	Tag  uint32  // EtherType and number of the VLAN; 0 for none
	MAC  [6]byte // its destination
	// Index is the interface that the steering program is attached to.
	Index int
}

// Arrival returns how a packet comes by a port that is open.
func (ps *Ports) Arrival(id int) (a Arrival, ok bool) {
	if id < 0 || id >= len(ps.list.ports) || ps.list.ports[id].state != open {
		return a, false
	}
	p := ps.list.ports[id]
	d := ps.list.deviceOf(p)
	a = Arrival{Port: slices.Index(ps.list.ports, d), Tag: p.tag, MAC: p.mac, Index: d.index}
	return a, true
}

// Named returns the ID of the first open port that an interface of the name is, or that
// belongs to the configured interface of the name; -1 for none.
func (ps *Ports) Named(name string) int {
	for _, matches := range []func(*port) bool{
		func(p *port) bool { return p.name == name },
		func(p *port) bool { return p.parent == name },
	} {
		at := slices.IndexFunc(ps.list.ports, func(p *port) bool {
			return matches(p) && p.state == open && (p.host || p.routeIndex != 0)
		})
		if at >= 0 {
			return at
		}
	}
	return -1
}
