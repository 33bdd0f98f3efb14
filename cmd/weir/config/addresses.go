package config

import "net/netip"

// NodePortPrefixes returns nodePortAddresses as prefixes. Primary is true
// when the node's primary addresses are meant; no prefix and not primary
// means every address. Preconditions: Validate found nothing.
func (c *Configuration) NodePortPrefixes() (prefixes []netip.Prefix, primary bool) {
	for _, s := range c.NodePortAddresses {
		if s == Primary {
			return nil, true
		}
		if p, err := netip.ParsePrefix(s); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, false
}

// SNATAddresses returns snat.addresses parsed. Preconditions: Validate found
// nothing.
func (c *Configuration) SNATAddresses() []netip.Addr {
	var as []netip.Addr
	for _, s := range c.SNAT.Addresses {
		if a, err := netip.ParseAddr(s); err == nil {
			as = append(as, a)
		}
	}
	return as
}

// HostVethPrefixes returns hostVeth.prefixes parsed, the zero Prefix for a
// family that has none. Preconditions: Validate found nothing.
func (c *Configuration) HostVethPrefixes() (v4, v6 netip.Prefix) {
	for _, s := range c.HostVeth.Prefixes {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
		case p.Addr().Is4():
			v4 = p
		default:
			v6 = p
		}
	}
	return v4, v6
}

// Listener is the field that has Weir listen on a TCP port, "" if none does.
func (c *Configuration) Listener(port uint16) string {
	for _, l := range []struct{ field, address string }{
		{"metricsBindAddress", c.MetricsBindAddress},
		{"healthzBindAddress", c.HealthzBindAddress},
		{"statusPage.bindAddress", c.StatusPage.BindAddress},
	} {
		if a, err := netip.ParseAddrPort(l.address); err == nil && a.Port() == port {
			return l.field
		}
	}
	return ""
}
