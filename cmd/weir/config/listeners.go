package config

import (
	"fmt"
	"net/netip"
)

// Ports that Weir listens on as its announcement needs them.
const (
	linkPort = 7949 // UDP and TCP, of nodes that share a link
	bfdPort  = 3784 // UDP (RFC 5881)
)

// TCPAddress is a field with an address that Weir listens on.
type TCPAddress struct{ Field, Address string }

// TCPAddresses are the fields with addresses that Weir listens on; the address is "" where it does not.
func (c *Configuration) TCPAddresses() []TCPAddress {
	return []TCPAddress{
		{"metricsBindAddress", c.MetricsBindAddress},
		{"healthzBindAddress", c.HealthzBindAddress},
		{"statusPage.bindAddress", c.StatusPage.BindAddress},
	}
}

// Listener is the field that has Weir listen on a TCP port, "" if none does.
func (c *Configuration) Listener(port uint16) string {
	for _, l := range c.TCPAddresses() {
		if a, err := netip.ParseAddrPort(l.Address); err == nil && a.Port() == port {
			return l.Field
		}
	}
	return ""
}

// ListenerAt is the field that has Weir listen on a port of an own address of the node, by UDP or TCP, "" if
// none does. A frontend there would take the packets to Weir itself.
func (c *Configuration) ListenerAt(at netip.AddrPort, udp bool) string {
	if !udp {
		for _, l := range c.TCPAddresses() {
			a, err := netip.ParseAddrPort(l.Address)
			if err == nil && a.Port() == at.Port() && (a.Addr().IsUnspecified() || a.Addr().Unmap() == at.Addr()) {
				return l.Field
			}
		}
	}
	if at.Port() == linkPort && len(c.Announce.L2.Interfaces) > 0 {
		return "announce.l2"
	}
	for i := range c.Announce.Peers {
		if udp && at.Port() == bfdPort && c.Announce.Peers[i].BFD != nil {
			return fmt.Sprintf("announce.peers[%d].bfd", i)
		}
	}
	return ""
}
