package announce

import (
	"net/netip"
	"slices"
)

// OnLink reports whether an address is announced on links, and on which interfaces; nil: on all. An
// address that only routers are told of is not.
func (s *Settings) OnLink(a netip.Addr) (interfaces []string, ok bool) {
	if slices.ContainsFunc(s.Allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil, true
	}
	for _, x := range s.Advertisements {
		switch {
		case !x.Link || !x.allows(a):
		case len(x.Interfaces) == 0:
			return nil, true
		default:
			interfaces, ok = append(interfaces, x.Interfaces...), true
		}
	}
	return interfaces, ok
}

// OnLink is that of the settings.
func (r *Rule) OnLink(a netip.Addr) (interfaces []string, ok bool) { return r.settings.OnLink(a) }
