package pcapfilter

import "net/netip"

// Filter is a compiled expression. It never changes, so that any number of goroutines may
// use it.
type Filter struct {
	nodes []node // operands before operators
	root  int32  // -1: every frame matches
	text  string
}

// kind is the kind of a node.
type kind uint8

const (
	kindAnd kind = iota
	kindOr
	kindNot
	kindEtherType // lo
	kindFamily    // lo
	kindProto     // lo
	kindPrefix    // prefix, dir
	kindPort      // lo to hi, dir
	kindLess      // lo
	kindGreater   // lo
	kindVLAN      // lo to hi
	kindFlags     // mask, lo; not: hi == 1
)

// dir is the end of a packet that a test is about.
type dir uint8

const (
	either dir = iota
	source
	destination
	both
)

type node struct {
	kind        kind
	dir         dir
	mask        uint8
	left, right int32
	lo, hi      uint32
	prefix      netip.Prefix
}

// String is the expression.
func (f *Filter) String() string { return f.text }

// Match reports whether a packet passes the filter.
func (f *Filter) Match(p *Packet) bool { return f.root < 0 || f.match(f.root, p) }

func (f *Filter) match(at int32, p *Packet) bool {
	n := &f.nodes[at]
	switch n.kind {
	case kindAnd:
		return f.match(n.left, p) && f.match(n.right, p)
	case kindOr:
		return f.match(n.left, p) || f.match(n.right, p)
	case kindNot:
		return !f.match(n.left, p)
	}
	return n.test(p)
}

// test is match of a primitive.
func (n *node) test(p *Packet) bool {
	switch n.kind {
	case kindEtherType:
		return uint32(p.EtherType) == n.lo
	case kindFamily:
		return uint32(p.Family) == n.lo
	case kindProto:
		return p.Family != 0 && uint32(p.Proto) == n.lo
	case kindPrefix:
		return p.Family != 0 && n.dir.of(n.prefix.Contains(p.Src), n.prefix.Contains(p.Dst))
	case kindPort:
		return p.Ports && n.dir.of(n.has(p.SrcPort), n.has(p.DstPort))
	case kindLess:
		return p.Len <= int(n.lo)
	case kindGreater:
		return p.Len >= int(n.lo)
	case kindVLAN:
		return p.Tagged && n.has(p.VLAN)
	case kindFlags:
		return p.HasFlags && (uint32(p.Flags&n.mask) == n.lo) == (n.hi == 0)
	}
	return false
}

func (n *node) has(v uint16) bool { return uint32(v) >= n.lo && uint32(v) <= n.hi }

func (d dir) of(src, dst bool) bool {
	switch d {
	case source:
		return src
	case destination:
		return dst
	case both:
		return src && dst
	}
	return src || dst
}
