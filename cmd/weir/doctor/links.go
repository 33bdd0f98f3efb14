package doctor

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce/l2"
)

const (
	// rivalFor is how long ago a host may have claimed an address.
	rivalFor = 5 * time.Minute
	// ownedAtMost are the addresses of a family that hosts on a link are asked from.
	ownedAtMost = 2
)

// lans are the interfaces of announce.l2 of a patient.
type lans struct{ *patient }

// examine looks at settings of the kernel by which ARP goes wrong, and for switches that drop it.
func (p lans) examine() {
	for _, name := range p.cfg.Announce.L2.Interfaces {
		l, err := netlink.LinkByName(name)
		if err != nil {
			continue // told by hostcheck
		}
		served, owned := len(p.servedOn(name)), 0
		if p.status != nil && p.status.Announce != nil {
			owned = len(p.ownedOn(name, func(netip.Addr) bool { return true }))
		}
		p.look("interface "+name, func() {
			p.linkRoute(l)
			p.otherLinks(l)
			p.heldAddresses(l)
			p.rivals(l)
			p.askHosts(l)
		}, "%d addresses of frontends are in its subnets, and this node owns %d: neither the kernel nor an endpoint answers for them beside the owner", served, owned)
	}
}

// subnets4 are the IPv4 subnets of a link, with its addresses.
func subnets4(l netlink.Link) (list []netip.Prefix) {
	addrs, _ := netlink.AddrList(l, netlink.FAMILY_V4)
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if bits, _ := a.Mask.Size(); ok && bits < 32 {
			list = append(list, netip.PrefixFrom(ip, bits))
		}
	}
	return list
}

// interfaceSetting is a setting of IPv4 for an interface: the kernel takes the larger of `all` and the
// interface.
func interfaceSetting(name, setting string) int {
	own, _ := number("net/ipv4/conf/" + name + "/" + setting)
	all, _ := number("net/ipv4/conf/all/" + setting)
	return max(own, all)
}

// linkRoute judges whether packets of the other nodes pass the reverse path filter.
func (p lans) linkRoute(l netlink.Link) {
	name := l.Attrs().Name
	for _, s := range subnets4(l) {
		host := s.Masked().Addr().Next()
		if host == s.Addr() {
			host = host.Next()
		}
		routes, err := netlink.RouteGet(host.AsSlice())
		if err != nil || len(routes) == 0 || routes[0].LinkIndex == l.Attrs().Index || interfaceSetting(name, "rp_filter") != 1 {
			continue
		}
		by := "another interface"
		if other, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
			by = other.Attrs().Name
		}
		p.add(Fault, "rp_filter", "it is strict on %s, and the route to %s is by %s: the kernel drops what the other nodes on %[1]s send", name, s.Masked(), by).
			mend("sysctl -w %s=2", dotted("net/ipv4/conf/"+name+"/rp_filter"))
	}
}

// otherLinks looks for interfaces on the same subnet: by default the kernel answers ARP on each of them
// for the addresses of all.
func (p lans) otherLinks(l netlink.Link) {
	all, _ := netlink.LinkList()
	name := l.Attrs().Name
	for _, o := range all {
		a := o.Attrs()
		if a.Index == l.Attrs().Index || a.Flags&net.FlagUp == 0 || a.Flags&net.FlagLoopback != 0 || a.Flags&net.FlagBroadcast == 0 {
			continue
		}
		shared := func(s netip.Prefix) bool {
			return slices.ContainsFunc(subnets4(l), func(t netip.Prefix) bool { return s.Overlaps(t.Masked()) })
		}
		if slices.ContainsFunc(subnets4(o), shared) && interfaceSetting(a.Name, "arp_ignore") == 0 && interfaceSetting(a.Name, "arp_filter") == 0 {
			p.add(Warning, "arp_ignore", "it is 0, and %s is in a subnet of %s: the kernel answers there for the address by which other nodes reach %[2]s", a.Name, name).
				mend("sysctl -w %s=1", dotted("net/ipv4/conf/"+a.Name+"/arp_ignore"))
		}
	}
}

// servedOn are the addresses of frontends in the subnets of an interface.
func (p lans) servedOn(name string) map[netip.Addr]bool {
	out, subnets := map[netip.Addr]bool{}, l2.Subnets(name)
	for i := range p.frontends {
		if ap, err := p.frontends[i].First(); err == nil && l2.Holds(subnets, ap.Addr()) {
			out[ap.Addr()] = true
		}
	}
	return out
}

// ownedOn are the addresses that this node owns on an interface. Preconditions: the status has Announce.
func (p lans) ownedOn(name string, of func(netip.Addr) bool) (list []netip.Addr) {
	for i := range p.status.Announce.Addresses {
		x := &p.status.Announce.Addresses[i]
		if x.L2 != nil && x.L2.State == string(l2.Owner) && x.L2.Interface == name && of(x.Address) {
			list = append(list, x.Address)
		}
	}
	return list
}

// heldAddresses looks for addresses of frontends that the kernel has: it answers for them, beside the owner.
func (p lans) heldAddresses(l netlink.Link) {
	name := l.Attrs().Name
	holders, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return
	}
	served := p.servedOn(name)
	answered, silent := map[string][]netip.Addr{}, map[string][]netip.Addr{} // by the interface that has them
	for _, h := range holders {
		a, _ := netip.AddrFromSlice(h.IP)
		if a = a.Unmap(); !served[a] {
			continue
		}
		o, err := netlink.LinkByIndex(h.LinkIndex)
		if err != nil {
			continue
		}
		by := silent
		if o.Attrs().Name != name && a.Is4() && interfaceSetting(name, "arp_ignore") == 0 {
			by = answered
		}
		by[o.Attrs().Name] = append(by[o.Attrs().Name], a)
	}
	for _, on := range slices.Sorted(maps.Keys(answered)) {
		p.add(Fault, "arp_ignore", "it is 0, and the kernel has %s on %s: it answers ARP for it on %s beside the owner", some(answered[on]), on, name).
			mend("sysctl -w %s=1, with kube-proxy in mode IPVS: --ipvs-strict-arp", dotted("net/ipv4/conf/"+name+"/arp_ignore"))
	}
	for _, on := range slices.Sorted(maps.Keys(silent)) {
		p.add(Warning, "interface "+on, "the kernel has %s: this node does not announce it on %s", some(silent[on]), name).
			mend("ip address del %s dev %s", silent[on][0], on)
	}
}

// some are addresses as a text: the first, and the number of the others.
func some(list []netip.Addr) string {
	if len(list) == 1 {
		return list[0].String()
	}
	return fmt.Sprintf("%s and %d more", list[0], len(list)-1)
}

// rivals looks for endpoints that answer for an address of a frontend: they have it for direct server return.
func (p lans) rivals(l netlink.Link) {
	if p.status == nil || p.status.Announce == nil {
		return
	}
	neighbors, _ := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
	for i := range p.status.Announce.Addresses {
		x := &p.status.Announce.Addresses[i]
		if x.L2 == nil || x.L2.RivalHeard == nil || x.L2.Interface != l.Attrs().Name || time.Since(*x.L2.RivalHeard) > rivalFor {
			continue
		}
		rival, _ := net.ParseMAC(x.L2.Rival)
		for _, n := range neighbors {
			a, _ := netip.AddrFromSlice(n.IP)
			if a = a.Unmap(); a != x.Address && bytes.Equal(n.HardwareAddr, rival) && p.endpoint(a, "") {
				p.add(Fault, "endpoint "+a.String(), "it answers ARP for %s itself: clients reach it past Weir, or the address stays untaken", x.Address).
					mend("on the endpoint: sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
			}
		}
	}
}

// endpoint reports whether an address is that of an endpoint, in a forwarding mode; "": in any.
func (p lans) endpoint(a netip.Addr, mode string) bool {
	return slices.ContainsFunc(p.frontends, func(f api.Frontend) bool {
		return slices.ContainsFunc(f.Endpoints, func(e api.FrontendEndpoint) bool {
			ap, err := netip.ParseAddrPort(e.Address)
			return err == nil && ap.Addr().Unmap() == a && (mode == "" || e.Mode == mode)
		})
	})
}

// askHosts asks hosts on the link as the owner of an address. A switch that drops ARP of addresses which it
// does not know at this port also drops the announcements that clients follow.
func (p lans) askHosts(l netlink.Link) {
	if p.status == nil || p.status.Announce == nil {
		return
	}
	name := l.Attrs().Name
	for _, family := range []struct {
		number int
		name   string
	}{{netlink.FAMILY_V4, "ARP"}, {netlink.FAMILY_V6, "neighbor discovery"}} {
		is4 := family.number == netlink.FAMILY_V4
		owned := p.ownedOn(name, func(a netip.Addr) bool { return a.Is4() == is4 })
		if len(owned) > 0 {
			p.askAs(l, family.number, family.name, owned[:min(len(owned), ownedAtMost)])
		}
	}
}

// askAs asks the hosts that answer to an address of the node itself.
func (p lans) askAs(l netlink.Link, family int, protocol string, owned []netip.Addr) {
	subject := "interface " + l.Attrs().Name
	own, err := netlink.AddrList(l, family)
	if err != nil || len(own) == 0 {
		return
	}
	self, _ := netip.AddrFromSlice(own[0].IP)
	hosts, err := l2.Ask(l.Attrs().Name, self.Unmap(), p.neighborsOf(l, family))
	if err != nil {
		p.add(Warning, subject, "whether the switch passes %s for load balancer addresses is not known: %v", protocol, err)
		return
	}
	if len(hosts) == 0 {
		p.add(OK, subject, "no host answers %s: whether the switch passes it for load balancer addresses is not known", protocol)
		return
	}
	for _, a := range owned {
		switch answered, err := l2.Ask(l.Attrs().Name, a, hosts); {
		case err != nil:
			p.add(Warning, subject, "%s for %s: %v", protocol, a, err)
		case len(answered) == 0:
			p.add(Fault, subject, "%s answers %s to %s and not to %s, which this node owns: the switch drops it, and what announces the address",
				hosts[0], protocol, self.Unmap(), a).
				mend("on the switch or hypervisor: allow the address at this port (ARP inspection, IP source guard, anti-spoofing)")
		default:
			p.add(OK, subject, "hosts answer %s to %s, which this node owns", protocol, a)
		}
	}
}

// neighborsOf are the hosts on a link that the kernel knows, those that it has heard of late first. Endpoints
// with the addresses of frontends answer none of them.
func (p lans) neighborsOf(l netlink.Link, family int) (hosts []netip.Addr) {
	list, _ := netlink.NeighList(l.Attrs().Index, family)
	slices.SortStableFunc(list, func(a, b netlink.Neigh) int {
		return cmp.Compare(b.State&netlink.NUD_REACHABLE, a.State&netlink.NUD_REACHABLE)
	})
	const known = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT
	for _, n := range list {
		a, _ := netip.AddrFromSlice(n.IP)
		if a = a.Unmap(); n.State&known != 0 && !a.IsMulticast() && len(n.HardwareAddr) == 6 && n.HardwareAddr[0]&1 == 0 &&
			!strings.HasPrefix(n.HardwareAddr.String(), "00:00:00:00:00:00") && !p.endpoint(a, config.ForwardL2DSR) {
			hosts = append(hosts, a)
		}
	}
	return hosts
}
