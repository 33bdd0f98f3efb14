package hostveth

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makePair finds or makes the two ends. A pair is Weir's if the ends have the two names;
// another interface of either name is foreign and left alone.
func (h *Veth) makePair() error {
	k, x, err := findPair()
	if err != nil {
		return err
	}
	if k != nil {
		if reusable(k, x, h.cfg.Queues) {
			h.kernel, h.xdp = k, x
			return nil
		}
		if err := netlink.LinkDel(k); err != nil {
			return fmt.Errorf("remove the old %s: %w", KernelEnd, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = KernelEnd, h.cfg.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = h.cfg.Queues, h.cfg.Queues
	// Addresses given at the start are kept: udev replaces random ones a
	// moment later (MACAddressPolicy=persistent), when they are in use already.
	attrs.HardwareAddr = randomMAC()
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU, pair.PeerHardwareAddr = XDPEnd, uint32(h.cfg.MTU), randomMAC()
	pair.PeerNumTxQueues, pair.PeerNumRxQueues = uint32(h.cfg.Queues), uint32(h.cfg.Queues)
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make the pair %s, %s: %w", KernelEnd, XDPEnd, err)
	}
	h.kernel, h.xdp, err = findPair()
	return err
}

// findPair looks for the pair of an earlier process; nil without an error when
// there is none.
func findPair() (kernel, xdp netlink.Link, err error) {
	kernel, errK := linkNamed(KernelEnd)
	xdp, errX := linkNamed(XDPEnd)
	switch {
	case errK != nil:
		return nil, nil, errK
	case errX != nil:
		return nil, nil, errX
	case kernel == nil && xdp == nil:
		return nil, nil, nil
	case kernel == nil || xdp == nil || kernel.Type() != "veth" || kernel.Attrs().ParentIndex != xdp.Attrs().Index:
		return nil, nil, fmt.Errorf("there is an interface %s or %s that is not Weir's pair; rename or remove it", KernelEnd, XDPEnd)
	}
	return kernel, xdp, nil
}

// linkNamed is nil without an error when there is no such link.
func linkNamed(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if _, none := err.(netlink.LinkNotFoundError); none { //nolint:errorlint // never wrapped
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return l, nil
}

// randomMAC is a unicast address that is locally administered (IEEE 802).
func randomMAC() net.HardwareAddr {
	m := make(net.HardwareAddr, 6)
	_, _ = rand.Read(m) // never fails
	m[0] = m[0]&^1 | 2
	return m
}

// reusable says whether an existing pair can be used as it is.
func reusable(k, x netlink.Link, queues int) bool {
	return k.Type() == "veth" && x.Type() == "veth" && k.Attrs().ParentIndex == x.Attrs().Index &&
		k.Attrs().NumRxQueues == queues && k.Attrs().NumTxQueues == queues &&
		x.Attrs().NumRxQueues == queues && x.Attrs().NumTxQueues == queues
}

// configure sets the pair's sysctls, addresses and neighbors.
func (h *Veth) configure() error {
	if err := h.setPairSysctls(); err != nil {
		return err
	}
	for _, l := range []netlink.Link{h.xdp, h.kernel} {
		if l.Attrs().MTU != h.cfg.MTU && h.cfg.MTU > 0 {
			if err := netlink.LinkSetMTU(l, h.cfg.MTU); err != nil {
				return fmt.Errorf("%s: MTU %d: %w", l.Attrs().Name, h.cfg.MTU, err)
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: bring up: %w", l.Attrs().Name, err)
		}
	}
	var err error
	if h.kernel, h.xdp, err = findPair(); err != nil {
		return err
	}
	return h.addresses()
}

// addresses adds the addresses of the kernel's end, and removes those of an earlier process
// with other prefixes.
func (h *Veth) addresses() error {
	have, err := netlink.AddrList(h.kernel, netlink.FAMILY_ALL)
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
		if err := netlink.AddrDel(h.kernel, &have[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
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
			if err := netlink.AddrReplace(h.kernel, addr); err != nil {
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

// isGateway says whether an address belongs on the kernel's end.
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

// setNeighbor tells the kernel the MAC of Weir's end, which answers no ARP.
func (h *Veth) setNeighbor(a netip.Addr) error {
	mac := h.xdp.Attrs().HardwareAddr
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: h.kernel.Attrs().Index, Family: familyOf(a), State: unix.NUD_PERMANENT,
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
