package announce

import "net/netip"

// Aggregates are the prefixes with other addresses that routers are told in place of an address.
// A node announces a prefix while it serves any address in it, and gets the packets to all of them.
// No advertisement of selected Services has such prefixes.
func (s *Settings) Aggregates(a netip.Addr) (out []netip.Prefix) {
	for _, x := range s.all() {
		if p := x.prefix(a); x.allows(a) && !p.IsSingleIP() {
			out = append(out, p)
		}
	}
	return out
}

// all are the advertisements, with that of the settings first.
func (s *Settings) all() []Advertisement {
	return append([]Advertisement{{Allow: s.Allow, Aggregate4: s.Aggregate4, Aggregate6: s.Aggregate6, Attributes: s.Attributes}}, s.Advertisements...)
}

// Loss is an address whose packets this node gets and loses: an aggregate is announced, and other
// nodes alone have endpoints (externalTrafficPolicy: Local).
type Loss struct {
	Address   netip.Addr
	Aggregate netip.Prefix
	Service   string // that has no endpoint here
}

// Losses are those of an outcome, by address.
func (r *Rule) Losses(out *Outcome, frontends map[netip.Addr][]Frontend) (list []Loss) {
	announced := map[netip.Prefix]bool{}
	for i := range out.Routes {
		announced[out.Routes[i].Prefix] = true
	}
	for i := range out.Decisions {
		d := &out.Decisions[i]
		if d.Reason != NotServed {
			continue
		}
		service := elsewhere(frontends[d.Address])
		if service == "" {
			continue
		}
		for _, i := range r.allowing.of(d.Address) {
			if p := r.all[i].prefix(d.Address); !p.IsSingleIP() && announced[p] {
				list = append(list, Loss{d.Address, p, service})
				break
			}
		}
	}
	return list
}

// elsewhere is the first Service that has endpoints on other nodes alone, "" for none.
func elsewhere(list []Frontend) string {
	for i := range list {
		if list[i].Elsewhere {
			return list[i].Service
		}
	}
	return ""
}
