// Package kubeproxy reads the endpoints that kube-proxy has programmed into the kernel, in
// each of its modes: nftables, iptables, IPVS. It changes nothing, and asks no API server.
package kubeproxy

import (
	"errors"
	"net/netip"
	"slices"
)

// Modes of kube-proxy.
const (
	NFTables = "nftables"
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Frontend is a destination of packets that kube-proxy translates.
type Frontend struct {
	// Addr is the zero Addr for a node port, which all addresses of the node have.
	Addr     netip.Addr
	IPv6     bool
	Port     uint16
	Protocol string // TCP, UDP or SCTP
}

// Target is where packets of a Frontend go.
type Target struct {
	// External is true where the rules are those for clients outside of the cluster, as far
	// as the mode tells.
	External bool
	// Endpoints get new connections, sorted; none: these are refused.
	Endpoints []netip.AddrPort
}

// Rules are those of a mode.
type Rules struct {
	Mode      string
	Frontends map[Frontend]Target
	// NodePorts are the addresses that have node ports. A family without any has them on all
	// addresses of the node.
	NodePorts []netip.Addr
}

// Read reads the rules of every mode, in the network namespace of the calling thread. A mode
// without frontends is left out. The error is about modes that could not be read, and the others
// are returned.
func Read() ([]Rules, error) {
	var all []Rules
	var errs []error
	for _, m := range []struct {
		mode string
		read func(*Rules) error
	}{{NFTables, readNFTables}, {IPTables, readIPTables}, {IPVS, readIPVS}} {
		found := Rules{Mode: m.mode, Frontends: map[Frontend]Target{}}
		errs = append(errs, m.read(&found))
		if len(found.Frontends) > 0 {
			all = append(all, found)
		}
	}
	return all, errors.Join(errs...)
}

// Find returns the target of packets to an address. nodePort is that of the node, and a node port
// serves it if no frontend of that address does.
func (r *Rules) Find(to netip.AddrPort, protocol string, nodePort bool) (Frontend, Target, bool) {
	f := Frontend{Addr: to.Addr(), IPv6: to.Addr().Is6(), Port: to.Port(), Protocol: protocol}
	t, ok := r.Frontends[f]
	if !ok && nodePort && r.hasNodePorts(to.Addr()) {
		f.Addr = netip.Addr{}
		t, ok = r.Frontends[f]
	}
	return f, t, ok
}

// hasNodePorts reports whether an address of the node has node ports.
func (r *Rules) hasNodePorts(a netip.Addr) bool {
	limited := slices.ContainsFunc(r.NodePorts, func(n netip.Addr) bool { return n.Is6() == a.Is6() })
	return !limited || slices.Contains(r.NodePorts, a)
}

// sorted are endpoints in order, each once.
func sorted(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}
