package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// linkUpWithin is how long an interface may take to become operational; the
// kernel's link watch acts within a second, and some drivers within three.
const linkUpWithin = 5 * time.Second

// End is an end of a veth pair.
type End struct {
	Namespace *Namespace
	Name      string
	MAC       net.HardwareAddr // nil: the kernel's choice
	Addrs     []netip.Prefix
}

// LinkConfig has the settings that both ends share.
type LinkConfig struct {
	MTU    int // 0: 1500
	Queues int // receive and transmit queues of each end; 0: 1
	// Wire asks for a pair of NICs, where there are some: see NICs.
	Wire bool
}

// Connect joins two namespaces by a veth pair, or by a pair of NICs, both ends up. Offloads
// stay at the kernel's defaults.
func Connect(a, b End, cfg LinkConfig) error {
	pairs, err := nicPairs()
	if err == nil && cfg.Wire && len(pairs) > 0 {
		err = connectNICs(a, b, cfg, pairs)
	} else if err == nil {
		err = connectVeth(a, b, cfg)
	}
	if err != nil {
		return err
	}
	for _, e := range []End{a, b} {
		if err := e.Namespace.up(e.Name); err != nil {
			return err
		}
		for _, p := range e.Addrs {
			if err := e.Namespace.AddAddr(e.Name, p); err != nil {
				return err
			}
		}
	}
	return errors.Join(a.Namespace.waitUp(a.Name), b.Namespace.waitUp(b.Name))
}

func connectVeth(a, b End, cfg LinkConfig) error {
	queues := max(cfg.Queues, 1)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = a.Name, a.MAC
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues
	if cfg.MTU > 0 {
		attrs.MTU = cfg.MTU
	}
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr = b.Name, b.MAC
	veth.PeerNamespace = netlink.NsFd(b.Namespace.Handle())
	if err := a.Namespace.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth %s/%s - %s/%s: %w", a.Namespace.name, a.Name, b.Namespace.name, b.Name, err)
	}
	return nil
}

// Bridge makes a bridge with the given ports and addresses, up, without
// spanning tree.
func (n *Namespace) Bridge(name string, ports []string, addrs ...netip.Prefix) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := n.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("bridge %s/%s: %w", n.name, name, err)
	}
	br, err := n.link(name)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if err := n.addPort(br, p); err != nil {
			return err
		}
	}
	if err := n.up(name); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := n.AddAddr(name, a); err != nil {
			return err
		}
	}
	if len(ports) == 0 {
		return nil // without ports a bridge never gets a carrier
	}
	return n.waitUp(name)
}

// addPort makes an interface a port of a bridge.
func (n *Namespace) addPort(bridge netlink.Link, name string) error {
	port, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetMasterByIndex(port, bridge.Attrs().Index); err != nil {
		return fmt.Errorf("port %s of bridge %s/%s: %w", name, n.name, bridge.Attrs().Name, err)
	}
	return nil
}

// VXLAN makes a point-to-point VXLAN interface (RFC 7348, UDP port 4789) from
// local to remote, up, with the given addresses.
func (n *Namespace) VXLAN(name string, id int, local, remote netip.Addr, addrs ...netip.Prefix) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	vx := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: id, Port: 4789, SrcAddr: local.AsSlice(), Group: remote.AsSlice()}
	if err := n.nl.LinkAdd(vx); err != nil {
		return fmt.Errorf("vxlan %s/%s: %w", n.name, name, err)
	}
	if err := n.up(name); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := n.AddAddr(name, a); err != nil {
			return err
		}
	}
	return nil
}

// AddAddr gives an interface an address, without duplicate address detection.
func (n *Namespace) AddAddr(ifname string, p netip.Prefix) error {
	l, err := n.link(ifname)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.nl.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %s on %s/%s: %w", p, n.name, ifname, err)
	}
	return nil
}

// AddRoute adds a route to dst through ifname; via may be the zero Addr.
func (n *Namespace) AddRoute(ifname string, dst netip.Prefix, via netip.Addr) error {
	l, err := n.link(ifname)
	if err != nil {
		return err
	}
	return n.route(n.nl.RouteAdd, l, dst, via)
}

// ReplaceRoute is AddRoute in the place of a route to the same destination, if there is one.
func (n *Namespace) ReplaceRoute(ifname string, dst netip.Prefix, via netip.Addr) error {
	l, err := n.link(ifname)
	if err != nil {
		return err
	}
	return n.route(n.nl.RouteReplace, l, dst, via)
}

func (n *Namespace) route(set func(*netlink.Route) error, l netlink.Link, dst netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	}
	if err := set(r); err != nil {
		return fmt.Errorf("route %s in %s: %w", dst, n.name, err)
	}
	return nil
}

// SetOffloads switches features of an interface on or off, under the names
// that `ethtool -k` of the kernel's string set has: tx-tcp-segmentation.
func (n *Namespace) SetOffloads(ifname string, features map[string]bool) error {
	err := n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(ifname, features)
	})
	if err != nil {
		return fmt.Errorf("offloads of %s/%s: %w", n.name, ifname, err)
	}
	return nil
}

// Interface looks an interface up by name.
func (n *Namespace) Interface(name string) (netlink.Link, error) { return n.link(name) }

// Delete removes an interface, of a veth pair both ends.
func (n *Namespace) Delete(name string) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	return n.nl.LinkDel(l)
}

func (n *Namespace) link(name string) (netlink.Link, error) {
	l, err := n.nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s/%s: %w", n.name, name, err)
	}
	return l, nil
}

func (n *Namespace) up(name string) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("interface %s/%s up: %w", n.name, name, err)
	}
	return nil
}

// waitUp waits until the interface is operational: before that the kernel
// neither sends from it nor gives it IPv6 addresses that work.
func (n *Namespace) waitUp(name string) error {
	deadline := time.Now().Add(patience.For(linkUpWithin))
	for {
		l, err := n.link(name)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("interface %s/%s is still %s", n.name, name, l.Attrs().OperState)
		}
		time.Sleep(time.Millisecond)
	}
}

// settle waits until every IPv6 address can be used: also without duplicate
// address detection the kernel makes addresses and their local routes ready
// from a work queue.
func (n *Namespace) settle() error {
	deadline := time.Now().Add(patience.For(linkUpWithin))
	for {
		pending, err := n.unsettled()
		if err != nil || pending == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("address %s in %s is not ready", pending, n.name)
		}
		time.Sleep(time.Millisecond)
	}
}

// unsettled is an IPv6 address that is tentative or has no local route yet.
func (n *Namespace) unsettled() (string, error) {
	addrs, err := n.nl.AddrList(nil, netlink.FAMILY_V6)
	if err != nil {
		return "", err
	}
	routes, err := n.nl.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", err
	}
	type local struct {
		addr  string
		index int
	}
	ready := make(map[local]bool)
	for _, r := range routes {
		if r.Dst != nil && r.Type == unix.RTN_LOCAL {
			ready[local{r.Dst.IP.String(), r.LinkIndex}] = true
		}
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 || !ready[local{a.IP.String(), a.LinkIndex}] {
			return a.IP.String(), nil
		}
	}
	return "", nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// AddLocal makes every address of a network the namespace's own, without
// giving them to an interface.
func (n *Namespace) AddLocal(p netip.Prefix) error {
	lo, err := n.link("lo")
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(p), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := n.nl.RouteAdd(r); err != nil {
		return fmt.Errorf("local network %s in %s: %w", p, n.name, err)
	}
	return nil
}

// RemoveAddr takes an address from an interface.
func (n *Namespace) RemoveAddr(ifname string, p netip.Prefix) error {
	l, err := n.link(ifname)
	if err != nil {
		return err
	}
	if err := n.nl.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("remove address %s from %s/%s: %w", p, n.name, ifname, err)
	}
	return nil
}
