package firewall

import (
	"cmp"
	"net/netip"
	"slices"
)

// index finds the packets that a rule may concern by their ports, or else by their addresses.
type index struct {
	frontends []Frontend
	own, all  []class // the packets of frontends alone, and those to endpoints too
	counted   []int   // by frontend: the rule that counted it last
}

// class is packets that differ in ports and addresses alone. What depends on neither is asked of the
// first.
type class struct {
	byPort, byAddr []located
	wide           []located // several ports, or any address
	frontends      int       // that have a packet here
}

type located struct {
	packet   *Packet
	frontend int
}

func newIndex(frontends []Frontend) *index {
	x := &index{frontends: frontends, counted: make([]int, len(frontends))}
	var own, all []located
	for i := range frontends {
		f := &frontends[i]
		own, all = append(own, located{&f.Packet, i}), append(all, located{&f.Packet, i})
		for j := range f.Endpoints {
			all = append(all, located{&f.Endpoints[j], i})
		}
	}
	x.own, x.all = classes(own), classes(all)
	return x
}

// classes sorts packets, by frontend, into classes.
func classes(list []located) (out []class) {
	alike := func(a, b *Packet) bool {
		return a.Protocol == b.Protocol && a.To.Addr().BitLen() == b.To.Addr().BitLen() && slices.Equal(a.Interfaces, b.Interfaces)
	}
	for _, l := range list {
		at := slices.IndexFunc(out, func(c class) bool { return alike(c.first(), l.packet) })
		if at < 0 {
			at, out = len(out), append(out, class{})
		}
		c := &out[at]
		to := &c.byPort
		if l.packet.LastPort > 0 || !l.packet.To.Addr().IsValid() {
			to = &c.wide
		}
		if n := len(*to); n == 0 || (*to)[n-1].frontend != l.frontend {
			c.frontends++
		}
		*to = append(*to, l)
	}
	for i := range out {
		c := &out[i]
		c.byAddr = slices.Clone(c.byPort)
		slices.SortStableFunc(c.byPort, func(a, b located) int { return cmp.Compare(a.packet.To.Port(), b.packet.To.Port()) })
		slices.SortStableFunc(c.byAddr, func(a, b located) int { return a.packet.To.Addr().Compare(b.packet.To.Addr()) })
	}
	return out
}

func (c *class) first() *Packet {
	if len(c.byPort) > 0 {
		return c.byPort[0].packet
	}
	return c.wide[0].packet
}

// concerned is the first frontend whose packets a rule may concern, and their number. number is that
// of the rule, from 1.
func (x *index) concerned(r *Rule, number int) (first, n int) {
	list := x.own
	if r.Hook == "input" || r.Hook == "forward" {
		list = x.all
	}
	first = len(x.frontends)
	for i := range list {
		c := &list[i]
		if !r.concernsClass(c.first()) {
			continue
		}
		left := c.frontends
		for _, part := range c.candidates(r) {
			for _, l := range part {
				if left == 0 {
					break // all are counted
				}
				if x.counted[l.frontend] == number || !r.Concerns(l.packet) {
					continue
				}
				x.counted[l.frontend] = number
				first, n, left = min(first, l.frontend), n+1, left-1
			}
		}
	}
	return first, n
}

// concernsClass reports whether the conditions are met that depend on neither port nor address.
func (r *Rule) concernsClass(p *Packet) bool {
	for _, c := range r.conditions {
		if c.met != nil && !c.located && !c.met(p) {
			return false
		}
	}
	return true
}

// candidates are the packets that a rule may concern by its first condition that names ports, or
// else addresses.
func (c *class) candidates(r *Rule) [][]located {
	parts := [][]located{c.wide}
	for _, q := range r.conditions {
		if q.ports == nil {
			continue
		}
		for _, p := range q.ports {
			from, _ := slices.BinarySearchFunc(c.byPort, p[0], func(l located, port uint16) int { return cmp.Compare(l.packet.To.Port(), port) })
			to, _ := slices.BinarySearchFunc(c.byPort, int(p[1])+1, func(l located, port int) int { return cmp.Compare(int(l.packet.To.Port()), port) })
			parts = append(parts, c.byPort[from:max(from, to)])
		}
		return parts
	}
	for _, q := range r.conditions {
		if q.addrs == nil {
			continue
		}
		for _, a := range q.addrs {
			from, _ := slices.BinarySearchFunc(c.byAddr, a[0], func(l located, addr netip.Addr) int { return l.packet.To.Addr().Compare(addr) })
			to, _ := slices.BinarySearchFunc(c.byAddr, a[1], func(l located, addr netip.Addr) int {
				return cmp.Or(l.packet.To.Addr().Compare(addr), -1) // after the last that is equal
			})
			parts = append(parts, c.byAddr[from:max(from, to)])
		}
		return parts
	}
	return append(parts, c.byPort)
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
