package hostveth

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
)

// link is the veth pair with the sysctls, offloads, addresses and neighbors of both ends.
type link struct {
	pair       vethpair.Pair // the kernel's end, Weir's end
	prefixes   prefixes
	mtu        int
	queues     int
	redirects  bool
	sysctls    sysctls
	forwarding *forwarding
}

// pairSysctl is a sysctl of the pair itself.
type pairSysctl struct {
	key, value string
	optional   bool // newer kernels only, or without IPv6
}

// pairSysctls go with the pair and need no journal.
var pairSysctls = []pairSysctl{
	// Weir's end is not the kernel's: when Weir is away, the kernel must not forward
	// packets that arrive there.
	{"net/ipv4/conf/" + XDPEnd + "/forwarding", "0", false},
	{"net/ipv4/conf/" + XDPEnd + "/arp_ignore", "8", false},
	{"net/ipv6/conf/" + XDPEnd + "/disable_ipv6", "1", true},
	// Answers to a frontend's client come from an address that is routed
	// elsewhere: loose mode. The kernel takes the larger of this and
	// `all`, which stays as it is.
	{"net/ipv4/conf/" + KernelEnd + "/rp_filter", "2", false},
	{"net/ipv4/conf/" + KernelEnd + "/forwarding", "1", false},
	{"net/ipv4/conf/" + KernelEnd + "/send_redirects", "0", false},
	// Quiet: no autoconfiguration, no duplicate detection, no link-local
	// address whose multicast would only be dropped by the workers.
	{"net/ipv6/conf/" + KernelEnd + "/addr_gen_mode", "1", true},
	{"net/ipv6/conf/" + KernelEnd + "/accept_ra", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/accept_dad", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/router_solicitations", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/disable_ipv6", "0", true},
}

// ends are the names of the pair's ends, the kernel's first.
var ends = [2]string{KernelEnd, XDPEnd}

func (l *link) kernel() netlink.Link { return l.pair[0] }

func (l *link) xdp() netlink.Link { return l.pair[1] }

// makePair finds or makes the two ends.
func (l *link) makePair() error {
	p, err := vethpair.Make(vethpair.Config{Names: ends, MTU: l.mtu, Queues: l.queues})
	l.pair = p
	return err
}

// configure sets the pair's sysctls, addresses and neighbors.
func (l *link) configure() error {
	if err := l.setPairSysctls(); err != nil {
		return err
	}
	if err := l.pair.SetUp(l.mtu); err != nil {
		return err
	}
	if err := vethpair.SetOffloads(KernelEnd, l.offloads()); err != nil {
		return err
	}
	p, found, err := vethpair.Find(ends)
	if err != nil {
		return err
	}
	if found {
		l.pair = p // with its MTU and flags as they are now
	}
	return l.addresses()
}

// offloads are those of the kernel's end.
func (l *link) offloads() map[string]bool {
	want := map[string]bool{vethpair.FragmentLists: false}
	if l.redirects {
		want["rx-gro"] = true
	}
	return want
}

// addresses adds the addresses of the kernel's end, and removes those of an earlier process
// with other prefixes.
func (l *link) addresses() error {
	have, err := netlink.AddrList(l.kernel(), netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("%s: list addresses: %w", KernelEnd, err)
	}
	held := map[netip.Prefix]bool{}
	for i := range have {
		a, _ := netip.AddrFromSlice(have[i].IP)
		ones, _ := have[i].Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), ones)
		if held[p] = true; l.prefixes.isGateway(p) {
			continue
		}
		if err := netlink.AddrDel(l.kernel(), &have[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("%s: remove address %s: %w", KernelEnd, p, err)
		}
	}
	for _, p := range l.prefixes.list() {
		gateway := netip.PrefixFrom(address(p, gatewayHost), p.Bits())
		if !held[gateway] {
			addr := &netlink.Addr{IPNet: ipNet(gateway.Addr(), p.Bits())}
			if p.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrReplace(l.kernel(), addr); err != nil {
				return fmt.Errorf("%s: address %s: %w", KernelEnd, gateway, err)
			}
		}
		for _, host := range []int{localHost, forwardHost} {
			if err := l.setNeighbor(address(p, host)); err != nil {
				return err
			}
		}
	}
	return nil
}

// setNeighbor gives the kernel the MAC address of Weir's end, which answers no ARP.
func (l *link) setNeighbor(a netip.Addr) error {
	mac := l.xdp().Attrs().HardwareAddr
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.kernel().Attrs().Index, Family: familyOf(a), State: unix.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("%s: neighbor %s: %w", KernelEnd, a, err)
	}
	return nil
}

// mac is the address of Weir's end.
func (l *link) mac() [6]byte { return [6]byte(l.xdp().Attrs().HardwareAddr) }

// returnPathMAC is the source of frames whose packets keep the client's address: by it the
// rules distinguish them from all other packets that enter by the host veth, such as punted
// packets.
func (l *link) returnPathMAC() [6]byte {
	mac := l.mac()
	mac[5] ^= 1
	return mac
}

// neighbors are the addresses for which the kernel has the MAC address of Weir's end.
func (l *link) neighbors(family int) (map[netip.Addr]bool, error) {
	list, err := netlink.NeighList(l.kernel().Attrs().Index, family)
	if err != nil {
		return nil, fmt.Errorf("list neighbors of %s: %w", KernelEnd, err)
	}
	near := map[netip.Addr]bool{}
	for i := range list {
		a, ok := netip.AddrFromSlice(list[i].IP)
		if ok && list[i].State == unix.NUD_PERMANENT && sameMAC(list[i].HardwareAddr, l.mac()) {
			near[a.Unmap()] = true
		}
	}
	return near, nil
}

// checkGRO reports whether Weir's end gets redirected packets, where it is to.
func (l *link) checkGRO() (bool, error) {
	if !l.redirects {
		return true, nil
	}
	return vethpair.HasOffloads(KernelEnd, map[string]bool{"rx-gro": true})
}

// checkLink reports whether both ends are up, as large as at first, and have their settings.
func (l *link) checkLink() (bool, error) {
	now, err := l.pair.Now()
	if err != nil {
		return false, fmt.Errorf("%w; restart Weir", err)
	}
	if now.Differences(l.mtu) != nil {
		return false, nil
	}
	return vethpair.HasOffloads(now[0].Attrs().Name, l.offloads())
}

// checkAddresses reports whether the kernel's end has all addresses, and knows its neighbors.
func (l *link) checkAddresses() (bool, error) {
	addrs, err := netlink.AddrList(l.kernel(), netlink.FAMILY_ALL)
	if err != nil {
		return true, interrupted(err)
	}
	want := len(l.prefixes.list())
	for i := range addrs {
		a, _ := netip.AddrFromSlice(addrs[i].IP)
		ones, _ := addrs[i].Mask.Size()
		if l.prefixes.isGateway(netip.PrefixFrom(a.Unmap(), ones)) {
			want--
		}
	}
	if want != 0 {
		return false, nil
	}
	for _, p := range l.prefixes.list() {
		near, err := l.neighbors(familyOf(p.Addr()))
		if err != nil {
			return true, interrupted(err)
		}
		if !near[address(p, localHost)] || !near[address(p, forwardHost)] {
			return false, nil
		}
	}
	return true, nil
}

// checkNoOtherAddresses reports whether the kernel's end has the addresses of checkAddresses alone.
func (l *link) checkNoOtherAddresses() (bool, error) {
	list, err := netlink.AddrList(l.kernel(), netlink.FAMILY_ALL)
	return len(list) == len(l.prefixes.list()), err
}

// setPairSysctls sets those of the pair itself.
func (l *link) setPairSysctls() error {
	for _, s := range pairSysctls {
		if err := l.sysctls.write(s.key, s.value); err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return l.forwarding.enable6(KernelEnd)
}

// checkPairSysctls reports whether setPairSysctls would change nothing.
func (l *link) checkPairSysctls() (bool, error) {
	for _, s := range pairSysctls {
		now, err := l.sysctls.read(s.key)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || now != s.value {
			return false, err
		}
	}
	return l.forwarding.has6(KernelEnd)
}

// ownRoutes lists the routes that Weir has put on the host veth.
func (l *link) ownRoutes(family int) ([]netlink.Route, error) {
	list, err := netlink.RouteListFiltered(family,
		&netlink.Route{LinkIndex: l.kernel().Attrs().Index, Protocol: route.Protocol},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routes of %s: %w", KernelEnd, err)
	}
	// The library's filter accepts a match of any condition.
	return slices.DeleteFunc(list, func(r netlink.Route) bool {
		return r.LinkIndex != l.kernel().Attrs().Index || r.Protocol != route.Protocol
	}), nil
}

func sameMAC(a net.HardwareAddr, b [6]byte) bool { return len(a) == len(b) && [6]byte(a) == b }

// interrupted forgives a dump during which something changed: the next dump will do.
func interrupted(err error) error {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}

// errDiffers is the error of look where build would change something, and errNone where there is
// no pair.
var (
	errDiffers = errors.New("is not as this process would make it")
	errNone    = errors.New("there is none")
)
