package announce

import "net/netip"

// OnLink reports whether an address is announced on links, and on which interfaces; nil: on all. An
// address that only routers are told of is not. It is for the frontends of the last Decide.
func (r *Rule) OnLink(a netip.Addr) (interfaces []string, ok bool) {
	h := r.addresses[a]
	if h == nil {
		return nil, false
	}
	for _, i := range h.by {
		switch x := &r.all[i]; {
		case i == 0: // of Settings.Allow
			return nil, true
		case !x.Link:
		case len(x.Interfaces) == 0:
			return nil, true
		default:
			interfaces, ok = append(interfaces, x.Interfaces...), true
		}
	}
	return interfaces, ok
}
