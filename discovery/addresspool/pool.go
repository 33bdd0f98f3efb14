package addresspool

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Range is the addresses From to To, both included, of a family.
type Range struct{ From, To netip.Addr }

// Contains reports whether the address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return !a.Less(r.From) && !r.To.Less(a) && a.Is4() == r.From.Is4()
}

func (r Range) overlaps(o Range) bool {
	return r.From.Is4() == o.From.Is4() && !r.To.Less(o.From) && !o.To.Less(r.From)
}

// size is the number of addresses.
func (r Range) size() float64 {
	a, b := r.From.As16(), r.To.As16()
	var hi, lo [2]uint64
	for i := range 8 {
		hi[0], hi[1] = hi[0]<<8|uint64(a[i]), hi[1]<<8|uint64(b[i])
		lo[0], lo[1] = lo[0]<<8|uint64(a[8+i]), lo[1]<<8|uint64(b[8+i])
	}
	l, borrow := bits.Sub64(lo[1], lo[0], 0)
	h, _ := bits.Sub64(hi[1], hi[0], borrow)
	return float64(h)*(1<<64) + float64(l) + 1
}

// ParseRange reads "192.0.2.0/24" or "192.0.2.1-192.0.2.9".
func ParseRange(s string) (Range, error) {
	if from, to, ok := strings.Cut(s, "-"); ok {
		a, err := netip.ParseAddr(strings.TrimSpace(from))
		if err != nil {
			return Range{}, fmt.Errorf("%q: %w", s, err)
		}
		b, err := netip.ParseAddr(strings.TrimSpace(to))
		switch {
		case err != nil:
			return Range{}, fmt.Errorf("%q: %w", s, err)
		case a.Zone() != "" || b.Zone() != "" || a.Is4() != b.Is4() || a.Is4In6() || b.Is4In6():
			return Range{}, fmt.Errorf("%q: both ends must be IPv4 or both IPv6, without a zone", s)
		case b.Less(a):
			return Range{}, fmt.Errorf("%q: the end is before the begin", s)
		}
		return Range{a, b}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return Range{}, fmt.Errorf("%q: neither a prefix nor a range of addresses", s)
	}
	return Range{p.Masked().Addr(), last(p)}, nil
}

// Pool is a set of addresses.
type Pool struct {
	Name   string
	Labels map[string]string
	Ranges []Range
	// AutoAssign is false for a pool whose addresses are given on request alone.
	AutoAssign bool
	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 or .255: some equipment drops
	// their packets.
	AvoidBuggyIPs bool
	// Allocation restricts the Services; nil: every Service.
	Allocation *Allocation
}

// Allocation is the Services that a pool is for.
type Allocation struct {
	Priority           int // the lower the earlier; 0 is last
	Namespaces         []string
	NamespaceSelectors []Selector
	ServiceSelectors   []Selector
}

// Selector is a label selector as in metav1.LabelSelector.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []Requirement     `json:"matchExpressions"`
}

// Requirement is an expression of a Selector.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

// Matches reports whether labels satisfy the selector. An empty selector matches all.
func (s *Selector) Matches(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		got, ok := labels[r.Key]
		switch r.Operator {
		case "In":
			if !ok || !slices.Contains(r.Values, got) {
				return false
			}
		case "NotIn":
			if ok && slices.Contains(r.Values, got) {
				return false
			}
		case "Exists":
			if !ok {
				return false
			}
		case "DoesNotExist":
			if ok {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// AnyMatches reports whether labels satisfy a selector of several.
func AnyMatches(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// admits reports whether the pool is for the Service.
func (p *Pool) admits(s *Service) bool {
	a := p.Allocation
	if a == nil {
		return true
	}
	if len(a.Namespaces)+len(a.NamespaceSelectors) > 0 &&
		!slices.Contains(a.Namespaces, s.Namespace) && !AnyMatches(a.NamespaceSelectors, s.NamespaceLabels) {
		return false
	}
	return len(a.ServiceSelectors) == 0 || AnyMatches(a.ServiceSelectors, s.Labels)
}

// avoids reports whether the pool leaves out an address that it has.
func (p *Pool) avoids(a netip.Addr) bool { return p.AvoidBuggyIPs && buggy(a) }

func buggy(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	last := a.As4()[3]
	return last == 0 || last == 255
}

// buggyIn is the number of buggy addresses in an IPv4 range.
func buggyIn(r Range) float64 {
	if !r.From.Is4() {
		return 0
	}
	below := func(a netip.Addr, inclusive uint64) uint64 {
		b := a.As4()
		n := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
		n += inclusive // addresses 0 to n-1
		whole, rest := n/256*2, n%256
		return whole + min(rest, 1)
	}
	return float64(below(r.To, 1) - below(r.From, 0))
}

// order sorts pools as automatic allocation tries them: those that are for some Services before
// those for all, by priority, where 0 is last, then by name.
func order(pools []Pool) []*Pool {
	out := make([]*Pool, len(pools))
	for i := range pools {
		out[i] = &pools[i]
	}
	rank := func(p *Pool) (int, uint) {
		if p.Allocation == nil {
			return 1, 0
		}
		return 0, uint(p.Allocation.Priority) - 1 // 0 becomes the largest
	}
	slices.SortFunc(out, func(a, b *Pool) int {
		ga, pa := rank(a)
		gb, pb := rank(b)
		return cmp.Or(cmp.Compare(ga, gb), cmp.Compare(pa, pb), strings.Compare(a.Name, b.Name))
	})
	return out
}

// Prefixes are the fewest prefixes that have the addresses of the range and no others.
func (r Range) Prefixes() (out []netip.Prefix) {
	for a := r.From; ; {
		// Whether a prefix fits is monotonic in its length.
		bits := sort.Search(a.BitLen(), func(bits int) bool {
			p := netip.PrefixFrom(a, bits)
			return p.Masked().Addr() == a && !r.To.Less(last(p))
		})
		p := netip.PrefixFrom(a, bits)
		out = append(out, p)
		if a = last(p); !a.Less(r.To) {
			return out
		}
		a = a.Next()
	}
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As16()
	host := p.Addr().BitLen() - p.Bits()
	for i := len(b) - 1; host > 0; i, host = i-1, host-8 {
		b[i] |= byte(1<<min(host, 8) - 1)
	}
	if p.Addr().Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}
