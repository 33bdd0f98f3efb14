package route

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// source chooses the address from which Weir sends to the destinations of r
// by h: the route's preferred source, or the egress address that the kernel would take for
// a packet of its own.
func (b *builder) source(r *kernelRoute, h *hop) netip.Addr {
	if r.prefsrc.IsValid() {
		return r.prefsrc
	}
	dst := h.gateway
	is4 := r.dst.Addr().Is4()
	if !dst.IsValid() || dst.Is4() != is4 {
		dst = r.dst.Addr()
	}
	if is4 {
		return b.source4(h.index, dst)
	}
	return b.source6(h.index, r.dst.Addr(), dst)
}

// source4 follows inet_select_addr: of the interface's primary addresses the address in the
// destination's network, else the first; an interface without any borrows an address of
// another.
func (b *builder) source4(index int, dst netip.Addr) netip.Addr {
	if a := pick4(b.addrs[index], dst, unix.RT_SCOPE_LINK); a.IsValid() {
		return a
	}
	for i := range b.k.addresses {
		a := &b.k.addresses[i]
		if a.prefix.Addr().Is4() && a.scope < unix.RT_SCOPE_LINK && !a.has(unix.IFA_F_SECONDARY) && !b.isHostVeth(a.index) {
			return a.prefix.Addr()
		}
	}
	return netip.Addr{}
}

func pick4(addrs []*address, dst netip.Addr, scope int) netip.Addr {
	var first netip.Addr
	for _, a := range addrs {
		if !a.prefix.Addr().Is4() || a.scope > scope || a.has(unix.IFA_F_SECONDARY) {
			continue
		}
		if a.network().Contains(dst) {
			return a.prefix.Addr()
		}
		if !first.IsValid() {
			first = a.prefix.Addr()
		}
	}
	return first
}

// network is the network that the address puts on the link.
func (a *address) network() netip.Prefix {
	if a.peer.IsValid() {
		return a.peer.Masked()
	}
	return a.prefix.Masked()
}

func (b *builder) isHostVeth(index int) bool { return b.host != nil && index == b.host.Index }

// source6 is RFC 6724's source selection as far as it matters to a router's
// own address: usable before tentative, matching scope, not deprecated, on the egress
// interface, not temporary (a flow may outlive it), in the next hop's network.
func (b *builder) source6(index int, dst, nextHop netip.Addr) netip.Addr {
	var best *address
	bestScore := -1
	for i := range b.k.addresses {
		a := &b.k.addresses[i]
		if s := b.score6(a, index, dst, nextHop); s > bestScore {
			best, bestScore = a, s
		}
	}
	if best == nil {
		return netip.Addr{}
	}
	return best.prefix.Addr()
}

// score6 is higher for the better source; -1 for an unusable source.
func (b *builder) score6(a *address, index int, dst, nextHop netip.Addr) int {
	ip := a.prefix.Addr()
	if !ip.Is6() || ip.IsLoopback() || ip.IsMulticast() || a.has(unix.IFA_F_DADFAILED) {
		return -1
	}
	if a.has(unix.IFA_F_TENTATIVE) && !a.has(unix.IFA_F_OPTIMISTIC) {
		return -1
	}
	onLink := a.index == index
	if ip.IsLinkLocalUnicast() && (!onLink || !dst.IsLinkLocalUnicast()) {
		return -1 // means nothing beyond the link
	}
	if !onLink && b.isHostVeth(a.index) {
		return -1
	}
	score := 0
	for _, rule := range [...]bool{
		ip.IsLinkLocalUnicast() == dst.IsLinkLocalUnicast(),
		!a.has(unix.IFA_F_DEPRECATED),
		!a.has(unix.IFA_F_OPTIMISTIC),
		onLink,
		dst.IsPrivate() == ip.IsPrivate(), // unique local to unique local, global to global
		!a.has(unix.IFA_F_TEMPORARY),
		a.network().Contains(nextHop),
	} {
		score <<= 1
		if rule {
			score |= 1
		}
	}
	return score
}
