package hostveth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/route"
)

// Names of the pair's ends.
const (
	KernelEnd = "weir-host"
	XDPEnd    = "weir-xdp"
)

// Offsets of the addresses in the prefixes.
const (
	gatewayHost = 1
	localHost   = 2
	forwardHost = 3
	firstSource = 16 // and on: one per address of the node
)

// prefixes are Weir's own; the zero Prefix leaves a family out.
type prefixes struct{ v4, v6 netip.Prefix }

// list are those that are configured.
func (ps prefixes) list() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{ps.v4, ps.v6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// of is the prefix of an address's family.
func (ps prefixes) of(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return ps.v6
	}
	return ps.v4
}

// isGateway reports whether an address belongs on the kernel's end.
func (ps prefixes) isGateway(p netip.Prefix) bool {
	for _, own := range ps.list() {
		if p == netip.PrefixFrom(address(own, gatewayHost), own.Bits()) {
			return true
		}
	}
	return false
}

// address is address number host of a prefix; invalid for the zero Prefix.
func address(p netip.Prefix, host int) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	a := p.Masked().Addr()
	for range host {
		a = a.Next()
	}
	return a
}

// mostSources bounds the numbers of sources that are gone on with.
const mostSources = 1 << 12

// sourceNumber is the number of an address in a prefix, if it may be that of a source.
func sourceNumber(p netip.Prefix, a netip.Addr) (int, bool) {
	if !p.Contains(a) {
		return 0, false
	}
	low := func(a netip.Addr) uint32 {
		b := a.AsSlice()
		return binary.BigEndian.Uint32(b[len(b)-4:])
	}
	n := low(a) - low(p.Masked().Addr())
	if n < firstSource || n > mostSources {
		return 0, false
	}
	return int(n), address(p, int(n)) == a
}

// check refuses prefixes that the host uses for something else.
func (ps prefixes) check() error {
	for _, p := range ps.list() {
		if p.Addr().BitLen()-p.Bits() < 2 {
			return fmt.Errorf("hostVeth.prefixes: %s: too small, at least 4 addresses are needed", p)
		}
		routes, err := netlink.RouteList(nil, familyOf(p.Addr()))
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("host veth: list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			ones, _ := r.Dst.Mask.Size()
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			dst := netip.PrefixFrom(a.Unmap(), ones)
			// A wider route, such as the default route, may contain the prefix.
			if ones == 0 || !p.Overlaps(dst) || ones < p.Bits() {
				continue
			}
			if dev, err := netlink.LinkByIndex(r.LinkIndex); err != nil || dev.Attrs().Name == KernelEnd {
				continue
			}
			return fmt.Errorf("hostVeth.prefixes: %s: the host has a route to %s already; choose another prefix", p, dst)
		}
	}
	return nil
}

// familyOf is the address family of a, as package netlink takes it.
func familyOf(a netip.Addr) int { return int(route.AddressFamily(a)) }

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// destination is the only address of a route, invalid for a route to more.
func destination(r *netlink.Route) netip.Addr {
	if r.Dst == nil {
		return netip.Addr{}
	}
	if ones, bits := r.Dst.Mask.Size(); ones != bits {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	return a.Unmap()
}
