package route

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Address is an address of the host that a NodePort may be served on.
type Address struct {
	// Interface is the kernel's index, Name the interface's name, Port the port ID if Weir
	// is attached to it, else -1.
	Interface, Port int
	Name            string
	Prefix          netip.Prefix
	// Secondary says that IPv4 has another address of the same network first;
	// Temporary and Deprecated are IPv6's.
	Secondary, Temporary, Deprecated bool
}

// hostAddresses lists the host's addresses but for loopback, link-local and
// tentative ones and those of the host veth, in the kernel's order.
func (w *Watcher) hostAddresses(k *kernelState) []Address {
	port := make(map[int]int)
	for p, i := range w.nextHops.ports {
		port[i] = p
	}
	var out []Address
	for i := range k.addresses {
		a := &k.addresses[i]
		ip := a.prefix.Addr()
		l := k.links[a.index]
		if l == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
			a.has(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) && !a.has(unix.IFA_F_OPTIMISTIC) ||
			w.cfg.HostVeth != nil && a.index == w.cfg.HostVeth.Index {
			continue
		}
		p, attached := port[a.index]
		if !attached {
			p = -1
		}
		temporary := ip.Is6() && a.has(unix.IFA_F_TEMPORARY)
		out = append(out, Address{
			Interface: a.index, Port: p, Name: l.name, Prefix: a.prefix,
			Secondary: ip.Is4() && a.has(unix.IFA_F_SECONDARY), Temporary: temporary,
			Deprecated: a.has(unix.IFA_F_DEPRECATED),
		})
	}
	return out
}

// Addresses lists the host's addresses that a NodePort may be served on: all
// but loopback, link-local and tentative ones and the host veth's. The slice
// is not to be changed.
func (w *Watcher) Addresses() []Address { return *w.hosts.Load() }

// Local reports whether addr is an address of this host.
func (w *Watcher) Local(addr netip.Addr) bool { return w.Load().Local(addr) }

// Origin is the reason why an address is primary.
type Origin uint8

// Origins.
const (
	OfNode         Origin = iota // the Node object has it
	OfDefaultRoute               // the host's source address towards the default route
	OfInterface                  // the first address of the first attached interface
)

// PrimaryAddress is a primary address of the node.
type PrimaryAddress struct {
	netip.Addr
	Origin Origin
}

// Primary gives the node's primary addresses, at most one per family, as
// kube-proxy's `--nodeport-addresses primary` means it: those of the Node
// object (nodeIPs) where they are known and held by this host; else the host's
// source address towards the default route, as the kubelet takes it; else the
// first address of the first attached interface.
func (w *Watcher) Primary(nodeIPs []netip.Addr) []PrimaryAddress {
	var out []PrimaryAddress
	for _, is4 := range []bool{true, false} {
		if a := w.primary(is4, nodeIPs); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

func (w *Watcher) primary(is4 bool, nodeIPs []netip.Addr) PrimaryAddress {
	addrs := w.Addresses()
	held := func(ip netip.Addr) bool {
		for i := range addrs {
			if addrs[i].Prefix.Addr() == ip {
				return true
			}
		}
		return false
	}
	for _, ip := range nodeIPs {
		if ip.Is4() == is4 && held(ip) {
			return PrimaryAddress{ip, OfNode}
		}
	}
	unspecified := netip.IPv6Unspecified()
	if is4 {
		unspecified = netip.IPv4Unspecified()
	}
	if e, ok := w.Load().main.Get(netip.PrefixFrom(unspecified, 0)); ok && len(e.paths) > 0 && held(e.paths[0].Source) {
		return PrimaryAddress{e.paths[0].Source, OfDefaultRoute}
	}
	best := -1
	for i := range addrs {
		a := &addrs[i]
		if a.Prefix.Addr().Is4() != is4 || a.Secondary || a.Temporary || a.Deprecated || a.Port < 0 {
			continue
		}
		if best < 0 || a.Port < addrs[best].Port {
			best = i
		}
	}
	if best < 0 {
		return PrimaryAddress{}
	}
	return PrimaryAddress{addrs[best].Prefix.Addr(), OfInterface}
}

// In gives the host's addresses in any of the prefixes, as kube-proxy's
// `--nodeport-addresses CIDR,...`.
func (w *Watcher) In(prefixes []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, a := range w.Addresses() {
		for _, p := range prefixes {
			if p.Contains(a.Prefix.Addr()) {
				out = append(out, a.Prefix.Addr())
				break
			}
		}
	}
	return out
}

// OnChange returns a channel on which a value arrives after routes or addresses have
// changed; changes before it is taken are merged.
func (w *Watcher) OnChange() <-chan struct{} { return w.subs.add() }

// OnLinkChange returns a channel on which a value arrives as soon as the kernel tells of a
// change of interfaces, before it is read; changes before the value is taken are merged.
func (w *Watcher) OnLinkChange() <-chan struct{} { return w.linkSubs.add() }
