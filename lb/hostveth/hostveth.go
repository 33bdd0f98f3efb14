// Package hostveth is the path from the packet loop to endpoints behind the kernel, and
// from clients on the node to the packet loop: a veth pair with an AF_XDP end.
//
//	worker --- weir-xdp ===veth=== weir-host --- kernel: bridge, overlay, the
//	           no address          169.254.77.1        node's own listeners
//	           (program, all)      fd77:7765:6972::1
//
// Towards the kernel the SNAT source is never an address of the host: the
// kernel would take the answer for itself, and drops a foreign packet with a
// local source. It is an address of a separate prefix that is routed to the host veth:
//
//	.1  the kernel's end
//	.2  Local: the source towards endpoints on this node, whose answers come
//	    back by the route
//	.16 and on: the source towards the node's own listeners, one per address of
//	    the node (see SourceFor)
//	.3  Forward: the source towards endpoints that may lie beyond it; a
//	    masquerade rule translates it where it leaves by another interface
//
// If the client's address is kept instead (dnat), the answer's destination does not lead to
// Weir; see returnpath.go.
//
// Changes on the host (sysctls) are saved in a file before they are made, and reverted by
// Close or, after a crash, by the next Open or by
// CleanupStale.
package hostveth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
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

// Config describes the veth pair.
type Config struct {
	// Prefix4 and Prefix6 are Weir's own; the zero Prefix leaves a family out.
	Prefix4, Prefix6 netip.Prefix
	Queues           int // of each end: the number of workers
	MTU              int
	// Redirects has the kernel's end accept packets that XDP programs redirect to Weir's end:
	// a veth does so only if its peer polls, as it does with GRO.
	Redirects bool
	// Mark is the bits of the packet mark and of the connection mark that route answers
	// back (see returnpath.go), and Table the routing table for them; a Mark of 0 leaves
	// the return path out.
	Mark     uint32
	Table    int
	StateDir string // where the journal is kept
	// ProcSys is where the host's sysctls can be written; "" is /proc/sys,
	// which is read-only in a container.
	ProcSys string
	Log     *slog.Logger
}

// Veth is the pair with addresses, routes and rules. Methods may be called from any
// goroutine that is in the network namespace of Open's caller.
type Veth struct {
	cfg        Config
	log        *slog.Logger
	sysctls    sysctls
	pair       vethpair.Pair // the kernel's end, Weir's end
	reconciler *reconciler

	mu          sync.Mutex
	saved       *savedSysctls       // guarded by mu
	forwarding  *forwarding         // guarded by mu
	sources     map[netip.Addr]int  // guarded by mu: number in the prefix, by address of the node
	routes      map[netip.Addr]bool // guarded by mu: frontends that are routed to the host veth
	throwRoutes map[netip.Addr]bool // guarded by mu: endpoints that Table leaves to the main one
	adopted     *found              // guarded by mu: of the last process, nil for nothing
	// Masquerades is false where nftables could not be programmed: endpoints
	// beyond this node that are reached through the kernel get no traffic.
	Masquerades bool
	// ReturnPathErr is nil where answers to clients' own addresses come back to the
	// host veth, and else says why not.
	ReturnPathErr error
}

// Open makes the host veth, or goes on with that of an earlier process where it differs in
// nothing. Needs CAP_NET_ADMIN; works on the network namespace of the calling thread. On error nothing
// is left behind.
func Open(cfg Config) (_ *Veth, err error) {
	h := newVeth(cfg)
	adopted := h.adopt()
	if !adopted {
		if err := h.checkPrefixes(); err != nil {
			return nil, err
		}
	}
	var damaged error
	if h.saved, damaged, err = openSavedSysctls(cfg.StateDir, h.sysctls); err != nil {
		return nil, err
	}
	h.forwarding.saved = h.saved
	if damaged != nil {
		h.log.Warn("host veth", "err", damaged)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if !adopted {
		if err := h.build(); err != nil {
			return nil, fmt.Errorf("host veth: %w", err)
		}
	}
	if h.reconciler, err = h.startReconciler(reconcileInterval); err != nil {
		return nil, fmt.Errorf("host veth: %w", err)
	}
	return h, nil
}

// newVeth is a host veth without a pair.
func newVeth(cfg Config) *Veth {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Queues = max(cfg.Queues, 1)
	h := &Veth{
		cfg: cfg, log: cfg.Log, sysctls: newSysctls(cfg.ProcSys),
		sources: map[netip.Addr]int{}, routes: map[netip.Addr]bool{}, throwRoutes: map[netip.Addr]bool{},
	}
	h.forwarding = &forwarding{sysctls: h.sysctls, log: h.log, ipv6: cfg.Prefix6.IsValid(), on: map[int]bool{}}
	if cfg.Mark == 0 {
		h.ReturnPathErr = errors.New("hostVeth.mark is 0")
	}
	return h
}

// build makes the pair and all that belongs to it, in place of the remains of an earlier process.
func (h *Veth) build() error {
	for _, step := range []func() error{h.makePair, h.configure, h.removeStaleRoutes, removeReturnPath} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := h.installRules(); err != nil {
		h.log.Warn("host veth: no masquerade rule, endpoints on other nodes that are reached through the kernel get no traffic", "err", err)
	} else {
		h.warnForwardPolicy()
	}
	h.openReturnPath()
	return nil
}

// checkPrefixes refuses prefixes that the host uses for something else.
func (h *Veth) checkPrefixes() error {
	for _, p := range []netip.Prefix{h.cfg.Prefix4, h.cfg.Prefix6} {
		if !p.IsValid() {
			continue
		}
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

func (h *Veth) kernel() netlink.Link { return h.pair[0] }
func (h *Veth) xdp() netlink.Link    { return h.pair[1] }

// Name and Index are those of Weir's end, where the steering program takes all packets.
func (h *Veth) Name() string { return XDPEnd }

// Index is the interface index of Weir's end.
func (h *Veth) Index() int { return h.xdp().Attrs().Index }

// MAC is the address of Weir's end.
func (h *Veth) MAC() [6]byte { return [6]byte(h.xdp().Attrs().HardwareAddr) }

// ReturnPathMAC is the source of frames whose packets keep the client's address: by it the
// rules distinguish them from all other packets that enter by the host veth, such as punted
// packets.
func (h *Veth) ReturnPathMAC() [6]byte {
	mac := h.MAC()
	mac[5] ^= 1
	return mac
}

// PeerMAC is the address of the kernel's end.
func (h *Veth) PeerMAC() [6]byte { return [6]byte(h.kernel().Attrs().HardwareAddr) }

// MTU is that of both ends.
func (h *Veth) MTU() int { return h.xdp().Attrs().MTU }

// Route describes the host veth to the route watcher; port is the number
// under which workers know it.
func (h *Veth) Route(port int) route.HostVeth {
	p4, p6 := h.cfg.Prefix4, h.cfg.Prefix6
	return route.HostVeth{
		Port: port, Index: h.kernel().Attrs().Index, MAC: h.MAC(), ReturnPathMAC: h.ReturnPathMAC(), PeerMAC: h.PeerMAC(), MTU: h.MTU(),
		Gateway4: h.address(p4, gatewayHost), Gateway6: h.address(p6, gatewayHost),
		Local4: h.address(p4, localHost), Local6: h.address(p6, localHost),
		Forward4: h.address(p4, forwardHost), Forward6: h.address(p6, forwardHost),
	}
}

// Close removes everything from the host and reverts all changes.
func (h *Veth) Close() error {
	h.reconciler.stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	errs := []error{removeRules(), removeReturnPath()}
	errs = append(errs, h.pair.Remove())
	return errors.Join(append(errs, h.saved.restore())...)
}

// Leave leaves everything in place for the next process, and repairs nothing any more.
func (h *Veth) Leave() { h.reconciler.stop() }

// CleanupStale removes the remains of a killed process from the host, also the neighbors
// that the kernel kept fresh for the route watcher; the parameters are those of Config.
// It must not be called while a host veth is open.
func CleanupStale(stateDir, procSys string) error {
	errs := []error{removeRules(), removeReturnPath(), route.CleanupStale()}
	// An interface of the name that is not Weir's stays, without a word.
	if p, _, err := vethpair.Find(ends); err == nil {
		errs = append(errs, p.Remove())
	}
	j, damaged, err := openSavedSysctls(stateDir, newSysctls(procSys))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, damaged, j.restore())...)
}

// familyOf is the address family of a, as package netlink takes it.
func familyOf(a netip.Addr) int { return int(route.AddressFamily(a)) }

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}
