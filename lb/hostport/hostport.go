// Package hostport is the way from the packet loop to endpoints behind the
// kernel, and from clients on the node to the packet loop: a veth pair, one
// end of which is AF_XDP's.
//
//	worker --- weir-xdp ===veth=== weir-host --- kernel: bridge, overlay, the
//	           no address          169.254.77.1        node's own listeners
//	           (program, all)      fd77:7765:6972::1
//
// Towards the kernel the SNAT source is never an address of the host: the
// kernel would take the answer for itself, and drops a foreign packet with a
// local source. It is one of a prefix of Weir's own that is routed to the host
// port:
//
//	.1  the kernel's end
//	.2  Local: the source towards endpoints on this node, whose answers come
//	    back by the route
//	.16 and on: the source towards the node's own listeners, one per address of
//	    the node (see SourceFor)
//	.3  Forward: the source towards endpoints that may lie beyond it; a
//	    masquerade rule translates it where it leaves by another interface
//
// What has been changed on the host (sysctls) is noted in a journal before it
// is changed, and put back by Close or, after a crash, by the next Open or by
// Remove.
package hostport

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// Config says what to make.
type Config struct {
	// Prefix4 and Prefix6 are Weir's own; the zero Prefix leaves a family out.
	Prefix4, Prefix6 netip.Prefix
	Queues           int // of each end: one per worker
	MTU              int
	StateDir         string // where the journal is kept
	// ProcSys is where the host's sysctls can be written; "" is /proc/sys,
	// which is read-only in a container.
	ProcSys string
	Log     *slog.Logger
}

// HostPort is the pair with its addresses, routes and rules. Its methods must
// not be called concurrently.
type HostPort struct {
	cfg     Config
	log     *slog.Logger
	sysctls sysctls
	journal *journal
	kernel  netlink.Link
	xdp     netlink.Link
	forward map[int]bool       // interfaces on which forwarding has been switched on
	sources map[netip.Addr]int // number in the prefix, by address of the node
	// Masquerades is false where nftables could not be programmed: endpoints
	// beyond this node that are reached through the kernel get no traffic.
	Masquerades bool
}

// Open makes the host port, or takes over what an earlier process has left of
// one. Needs CAP_NET_ADMIN; works on the network namespace of the calling
// thread. On error nothing is left behind.
func Open(cfg Config) (_ *HostPort, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Queues < 1 {
		cfg.Queues = 1
	}
	h := &HostPort{cfg: cfg, log: cfg.Log, sysctls: newSysctls(cfg.ProcSys), forward: map[int]bool{}, sources: map[netip.Addr]int{}}
	if err := h.check(); err != nil {
		return nil, err
	}
	if h.journal, err = openJournal(cfg.StateDir, h.sysctls); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.makePair(); err != nil {
		return nil, fmt.Errorf("host port: %w", err)
	}
	if err := h.configure(); err != nil {
		return nil, fmt.Errorf("host port: %w", err)
	}
	if err := masquerade(h.address(cfg.Prefix4, forwardHost), h.address(cfg.Prefix6, forwardHost)); err != nil {
		h.log.Warn("host port: no masquerade rule, endpoints on other nodes that are reached through the kernel get no traffic", "err", err)
	} else {
		h.Masquerades = true
	}
	return h, nil
}

// check refuses prefixes that the host uses for something else.
func (h *HostPort) check() error {
	for _, p := range []netip.Prefix{h.cfg.Prefix4, h.cfg.Prefix6} {
		if !p.IsValid() {
			continue
		}
		if p.Addr().BitLen()-p.Bits() < 2 {
			return fmt.Errorf("hostPort.prefixes: %s: too small, at least 4 addresses are needed", p)
		}
		routes, err := netlink.RouteList(nil, familyOf(p.Addr()))
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("host port: list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			ones, _ := r.Dst.Mask.Size()
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			dst := netip.PrefixFrom(a.Unmap(), ones)
			// A wider route, such as the default one, may contain the prefix.
			if ones == 0 || !p.Overlaps(dst) || ones < p.Bits() {
				continue
			}
			if dev, err := netlink.LinkByIndex(r.LinkIndex); err != nil || dev.Attrs().Name == KernelEnd {
				continue
			}
			return fmt.Errorf("hostPort.prefixes: %s: the host has a route to %s already; choose another prefix", p, dst)
		}
	}
	return nil
}

// makePair finds or makes the two ends.
func (h *HostPort) makePair() error {
	if k, err := netlink.LinkByName(KernelEnd); err == nil {
		x, err := netlink.LinkByName(XDPEnd)
		if err == nil && fits(k, x, h.cfg.Queues) {
			h.kernel, h.xdp = k, x
			return nil
		}
		if k.Type() != "veth" {
			return fmt.Errorf("there is an interface %s that is not Weir's", KernelEnd)
		}
		if err := netlink.LinkDel(k); err != nil {
			return fmt.Errorf("remove the old %s: %w", KernelEnd, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = KernelEnd, h.cfg.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = h.cfg.Queues, h.cfg.Queues
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU = XDPEnd, uint32(h.cfg.MTU)
	pair.PeerNumTxQueues, pair.PeerNumRxQueues = uint32(h.cfg.Queues), uint32(h.cfg.Queues)
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make the pair %s, %s: %w", KernelEnd, XDPEnd, err)
	}
	var err error
	if h.kernel, err = netlink.LinkByName(KernelEnd); err != nil {
		return err
	}
	h.xdp, err = netlink.LinkByName(XDPEnd)
	return err
}

// fits says whether an existing pair can be used as it is.
func fits(k, x netlink.Link, queues int) bool {
	return k.Type() == "veth" && x.Type() == "veth" && k.Attrs().ParentIndex == x.Attrs().Index &&
		k.Attrs().NumRxQueues == queues && k.Attrs().NumTxQueues == queues &&
		x.Attrs().NumRxQueues == queues && x.Attrs().NumTxQueues == queues
}

// configure gives the pair its settings, addresses and neighbours.
func (h *HostPort) configure() error {
	if err := h.settings(); err != nil {
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
	for _, p := range []netip.Prefix{h.cfg.Prefix4, h.cfg.Prefix6} {
		if !p.IsValid() {
			continue
		}
		addr := &netlink.Addr{IPNet: ipNet(h.address(p, gatewayHost), p.Bits())}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(h.kernel, addr); err != nil {
			return fmt.Errorf("%s: address %s: %w", KernelEnd, addr.IPNet, err)
		}
		for _, host := range []int{localHost, forwardHost} {
			if err := h.neighbour(h.address(p, host)); err != nil {
				return err
			}
		}
	}
	return nil
}

// neighbour tells the kernel the MAC of Weir's end, which answers no ARP.
func (h *HostPort) neighbour(a netip.Addr) error {
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: h.kernel.Attrs().Index, Family: familyOf(a), State: unix.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: h.xdp.Attrs().HardwareAddr,
	})
	if err != nil {
		return fmt.Errorf("%s: neighbour %s: %w", KernelEnd, a, err)
	}
	return nil
}

// address is address number host of a prefix; invalid for the zero Prefix.
func (h *HostPort) address(p netip.Prefix, host int) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	a := p.Masked().Addr()
	for range host {
		a = a.Next()
	}
	return a
}

// Name and Index are those of Weir's end, which the steering program is
// attached to with all packets its own.
func (h *HostPort) Name() string { return XDPEnd }

// Index is the interface index of Weir's end.
func (h *HostPort) Index() int { return h.xdp.Attrs().Index }

// MAC is the address of Weir's end.
func (h *HostPort) MAC() [6]byte { return [6]byte(h.xdp.Attrs().HardwareAddr) }

// PeerMAC is the address of the kernel's end.
func (h *HostPort) PeerMAC() [6]byte { return [6]byte(h.kernel.Attrs().HardwareAddr) }

// MTU is that of both ends.
func (h *HostPort) MTU() int { return h.xdp.Attrs().MTU }

// Route describes the host port to the route watcher; port is the number
// under which workers know it.
func (h *HostPort) Route(port int) route.HostPort {
	p4, p6 := h.cfg.Prefix4, h.cfg.Prefix6
	return route.HostPort{
		Port: port, Index: h.kernel.Attrs().Index, MAC: h.MAC(), PeerMAC: h.PeerMAC(), MTU: h.MTU(),
		Gateway4: h.address(p4, gatewayHost), Gateway6: h.address(p6, gatewayHost),
		Local4: h.address(p4, localHost), Local6: h.address(p6, localHost),
		Forward4: h.address(p4, forwardHost), Forward6: h.address(p6, forwardHost),
	}
}

// AddRoute routes a frontend's address to the host port, for clients on the
// node. A family without a prefix has no way there, which is not an error.
func (h *HostPort) AddRoute(a netip.Addr) error {
	r, ok := h.routeTo(a)
	if !ok {
		return nil
	}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s to the host port: %w", a, err)
	}
	return nil
}

// RemoveRoute takes the route back. One that is not there is not an error.
func (h *HostPort) RemoveRoute(a netip.Addr) error {
	r, ok := h.routeTo(a)
	if !ok {
		return nil
	}
	if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route %s to the host port: %w", a, err)
	}
	return nil
}

// SourceFor is the SNAT source towards listeners on a, an address of the node.
// Each has one of its own, whose route names a as the source of what is sent
// there: a UDP server on the wildcard address leaves the choice to the kernel
// and would else answer from an address that no flow has. When the prefix has
// no address left it is the source of all endpoints on this node.
func (h *HostPort) SourceFor(a netip.Addr) (netip.Addr, error) {
	p := h.cfg.Prefix4
	if a.Is6() {
		p = h.cfg.Prefix6
	}
	if !p.IsValid() {
		return netip.Addr{}, nil
	}
	n, known := h.sources[a]
	if !known {
		n = firstSource + len(h.sources)
	}
	src := h.address(p, n)
	if !p.Contains(src) || !p.Contains(src.Next()) { // nor IPv4's broadcast address
		return h.address(p, localHost), nil
	}
	err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: h.kernel.Attrs().Index, Dst: ipNet(src, src.BitLen()), Src: a.AsSlice(),
		Scope: netlink.SCOPE_LINK, Protocol: routeProtocol,
	})
	if err != nil {
		return h.address(p, localHost), fmt.Errorf("route to %s with source %s: %w", src, a, err)
	}
	if !known {
		if err := h.neighbour(src); err != nil {
			return h.address(p, localHost), err
		}
		h.sources[a] = n
	}
	return src, nil
}

func (h *HostPort) routeTo(a netip.Addr) (*netlink.Route, bool) {
	p := h.cfg.Prefix4
	if a.Is6() {
		p = h.cfg.Prefix6
	}
	gw := h.address(p, localHost)
	if !gw.IsValid() {
		return nil, false
	}
	return &netlink.Route{
		LinkIndex: h.kernel.Attrs().Index, Dst: ipNet(a, a.BitLen()), Gw: gw.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK), Protocol: routeProtocol,
	}, true
}

// routeProtocol marks Weir's routes (rtnetlink(7): above RTPROT_STATIC is for
// daemons to choose).
const routeProtocol = 87

// Close takes everything off the host again and puts back what was changed.
func (h *HostPort) Close() error {
	var errs []error
	errs = append(errs, unmasquerade())
	if h.kernel != nil {
		if err := netlink.LinkDel(h.kernel); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove %s: %w", KernelEnd, err))
		}
		h.kernel = nil
	}
	return errors.Join(append(errs, h.journal.restore())...)
}

// Remove takes off the host what a process that was killed has left; its
// parameters are those of Config. It must not be called while a host port is
// open.
func Remove(stateDir, procSys string) error {
	errs := []error{unmasquerade()}
	if l, err := netlink.LinkByName(KernelEnd); err == nil && l.Type() == "veth" {
		errs = append(errs, netlink.LinkDel(l))
	}
	j, err := openJournal(stateDir, newSysctls(procSys))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, j.restore())...)
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}
