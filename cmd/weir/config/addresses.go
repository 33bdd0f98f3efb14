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

// SNAT is the source addresses and ports of connections to endpoints in mode nat.
type SNAT struct {
	// Addresses are the source addresses. For addresses that the host does not
	// own Weir uses ports 1024-65535: use them if an endpoint gets more than
	// 30,000 connections at the same time. They must be routed to this
	// node. The empty list means the address of the outgoing interface.
	Addresses []string `json:"addresses"`
	// Ports is the port range on addresses of the host, or auto. The number of its ports is that of
	// simultaneous connections per endpoint and SNAT address.
	//
	// auto is 61000-65535 and 1024-29999, without ports that the host uses: those of sockets (a new
	// socket counts after 5 s at most), of frontends on its addresses, of protectedPorts,
	// ephemeral and reserved ones. Packets to all these ports stay the host's unless they belong to a
	// connection of Weir's. Only a connection that the host begins or masquerades from the port of
	// such a connection to the same endpoint meanwhile has to be begun again; of UDP the answer goes to
	// that connection's client. Masquerade rules with random-fully meet a port in use the more often,
	// the more connections the endpoint has.
	//
	// That takes a BPF program that finds connections (see flowCache). Without it auto is 61000-65535,
	// all packets to which are Weir's; weir status and weir check give the reason. That range, or the
	// configured, must overlap neither the ephemeral ports of the kernel nor the node ports.
	Ports PortRange `json:"ports"`
}

// autoPorts is the range of auto where packets are told by a range alone.
var autoPorts = PortRange{61000, 65535}

// Range returns the ports on addresses of the host that are Weir's where packets are told by a range
// alone.
func (s *SNAT) Range() PortRange {
	if s.Ports == (PortRange{}) {
		return autoPorts
	}
	return s.Ports
}

// OwnPorts are the ports of the host that Weir must not translate from.
func (c *Configuration) OwnPorts() []uint16 {
	ports := append([]uint16{}, c.ProtectedPorts...)
	for _, address := range []string{c.MetricsBindAddress, c.HealthzBindAddress, c.StatusPage.BindAddress} {
		if a, err := netip.ParseAddrPort(address); err == nil {
			ports = append(ports, a.Port())
		}
	}
	return ports
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
