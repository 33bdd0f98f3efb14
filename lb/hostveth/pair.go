package hostveth

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
)

// ends are the names of the pair's ends, the kernel's first.
var ends = [2]string{KernelEnd, XDPEnd}

// makePair finds or makes the two ends.
func (h *Veth) makePair() error {
	p, err := vethpair.Make(vethpair.Config{Names: ends, MTU: h.cfg.MTU, Queues: h.cfg.Queues})
	h.pair = p
	return err
}

// configure sets the pair's sysctls, addresses and neighbors.
func (h *Veth) configure() error {
	if err := h.setPairSysctls(); err != nil {
		return err
	}
	if err := h.pair.SetUp(h.cfg.MTU); err != nil {
		return err
	}
	if err := vethpair.SetOffloads(KernelEnd, h.offloads()); err != nil {
		return err
	}
	p, found, err := vethpair.Find(ends)
	if err != nil {
		return err
	}
	if found {
		h.pair = p // with its MTU and flags as they are now
	}
	return h.addresses()
}

// offloads are those of the kernel's end.
func (h *Veth) offloads() map[string]bool {
	want := map[string]bool{vethpair.FragmentLists: false}
	if h.cfg.Redirects {
		want["rx-gro"] = true
	}
	return want
}

// addresses adds the addresses of the kernel's end, and removes those of an earlier process
// with other prefixes.
func (h *Veth) addresses() error {
	have, err := netlink.AddrList(h.kernel(), netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("%s: list addresses: %w", KernelEnd, err)
	}
	held := map[netip.Prefix]bool{}
	for i := range have {
		a, _ := netip.AddrFromSlice(have[i].IP)
		ones, _ := have[i].Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), ones)
		if held[p] = true; h.isGateway(p) {
			continue
		}
		if err := netlink.AddrDel(h.kernel(), &have[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("%s: remove address %s: %w", KernelEnd, p, err)
		}
	}
	for _, p := range h.prefixes() {
		gateway := netip.PrefixFrom(h.address(p, gatewayHost), p.Bits())
		if !held[gateway] {
			addr := &netlink.Addr{IPNet: ipNet(gateway.Addr(), p.Bits())}
			if p.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrReplace(h.kernel(), addr); err != nil {
				return fmt.Errorf("%s: address %s: %w", KernelEnd, gateway, err)
			}
		}
		for _, host := range []int{localHost, forwardHost} {
			if err := h.setNeighbor(h.address(p, host)); err != nil {
				return err
			}
		}
	}
	return nil
}

// isGateway reports whether an address belongs on the kernel's end.
func (h *Veth) isGateway(p netip.Prefix) bool {
	for _, own := range h.prefixes() {
		if p == netip.PrefixFrom(h.address(own, gatewayHost), own.Bits()) {
			return true
		}
	}
	return false
}

// prefixes are those that are configured.
func (h *Veth) prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{h.cfg.Prefix4, h.cfg.Prefix6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// setNeighbor gives the kernel the MAC address of Weir's end, which answers no ARP.
func (h *Veth) setNeighbor(a netip.Addr) error {
	mac := h.xdp().Attrs().HardwareAddr
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: h.kernel().Attrs().Index, Family: familyOf(a), State: unix.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("%s: neighbor %s: %w", KernelEnd, a, err)
	}
	return nil
}

// address is address number host of a prefix; invalid for the zero Prefix.
func (h *Veth) address(p netip.Prefix, host int) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	a := p.Masked().Addr()
	for range host {
		a = a.Next()
	}
	return a
}
