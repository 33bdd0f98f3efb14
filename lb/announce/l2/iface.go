package l2

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// carrierOf is the index of an interface, 0 for none, and whether it is up and has a carrier.
func carrierOf(name string) (index int, carrier bool) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r) != nil {
		return 0, false
	}
	index = int(r.Uint32())
	if r, err = unix.NewIfreq(name); err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r) != nil {
		return 0, false
	}
	const both = unix.IFF_UP | unix.IFF_RUNNING
	return index, r.Uint16()&both == both
}

// look is the MAC address of an interface, its subnets, and the address by which other nodes reach
// this one: the first IPv4 address, or the link-local address of IPv6.
func look(name string) (mac hardware, subnets []netip.Prefix, local netip.Addr) {
	i, err := net.InterfaceByName(name)
	if err != nil || len(i.HardwareAddr) != len(mac) {
		return mac, nil, local
	}
	mac = hardware(i.HardwareAddr)
	list, err := i.Addrs()
	if err != nil {
		return mac, nil, local
	}
	var link6 netip.Addr
	for _, x := range list {
		p, err := netip.ParsePrefix(x.String())
		if err != nil {
			continue
		}
		a := p.Addr()
		switch {
		case a.Is6() && a.IsLinkLocalUnicast():
			if !link6.IsValid() {
				link6 = a
			}
			continue
		case a.Is4() && !local.IsValid() && !a.IsLoopback():
			local = a
		}
		subnets = append(subnets, p.Masked())
	}
	if !local.IsValid() {
		local = link6
	}
	return mac, subnets, local
}

// Subnets are the subnets of an interface, in which addresses may be announced on it.
func Subnets(name string) []netip.Prefix {
	_, subnets, _ := look(name)
	return subnets
}

// Holds reports whether a subnet has a as the address of a host.
func Holds(subnets []netip.Prefix, a netip.Addr) bool {
	for _, p := range subnets {
		if !p.Contains(a) {
			continue
		}
		if a.Is4() && p.Bits() < 31 && (a == p.Addr() || !p.Contains(a.Next())) {
			continue // network and broadcast address
		}
		return true
	}
	return false
}
