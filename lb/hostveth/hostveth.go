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
//	addresses.go   prefixes, and the addresses in them
//	sysctl.go      sysctls; saved_sysctls.go: those of the host, noted to be put back
//	forwarding.go  the kernel forwards what arrives on an interface
//	pair.go        the pair with sysctls, addresses and neighbors
//	routes.go      routes of frontends and of sources
//	rules.go       the rules of masquerading and of marks; nftables.go: in the kernel
//	returnpath.go  rule and table of the return path
//	hostveth.go    all of that, opened and closed
//	adopt.go       the host veth of an earlier process; reconcile.go: changes by other programs
//
// Changes on the host (sysctls) are saved in a file before they are made, and reverted by
// Close or, after a crash, by the next Open or by
// CleanupStale.
package hostveth

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
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
	reconciler *reconciler

	mu         sync.Mutex // guards all that follows
	link       *link
	saved      *savedSysctls
	forwarding *forwarding
	routes     *routes
	returnPath *returnPath
	rules      *ruleset
	adopted    bool // it is the last process's, of which not all was asked for yet
}

// Open makes the host veth, or goes on with that of an earlier process where it differs in
// nothing. Needs CAP_NET_ADMIN; works on the network namespace of the calling thread. On error nothing
// is left behind.
func Open(cfg Config) (_ *Veth, err error) {
	h := newVeth(cfg)
	h.adopted = h.adopt()
	if !h.adopted {
		if err := h.link.prefixes.check(); err != nil {
			return nil, err
		}
	}
	var damaged error
	if h.saved, damaged, err = openSavedSysctls(cfg.StateDir, h.link.sysctls); err != nil {
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
	if !h.adopted {
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
	prefixes, sysctls := prefixes{cfg.Prefix4, cfg.Prefix6}, newSysctls(cfg.ProcSys)
	forwarding := &forwarding{sysctls: sysctls, log: cfg.Log, ipv6: cfg.Prefix6.IsValid(), on: map[int]bool{}}
	link := &link{
		prefixes: prefixes, mtu: cfg.MTU, queues: cfg.Queues, redirects: cfg.Redirects,
		sysctls: sysctls, forwarding: forwarding,
	}
	rule := markrule.Rule{
		Priority: markrule.ReturnPath, Mark: cfg.Mark, Table: cfg.Table, MarkField: "hostVeth.mark", TableField: "hostVeth.table",
	}
	h := &Veth{
		cfg: cfg, log: cfg.Log, link: link, forwarding: forwarding,
		routes:     &routes{link: link, routes: map[netip.Addr]bool{}, sources: map[netip.Addr]int{}},
		returnPath: &returnPath{link: link, rule: rule, throwRoutes: map[netip.Addr]bool{}, log: cfg.Log},
		rules:      &ruleset{link: link, mark: cfg.Mark, log: cfg.Log},
	}
	if cfg.Mark == 0 {
		h.returnPath.err = errors.New("hostVeth.mark is 0")
	}
	return h
}

// build makes the pair and all that belongs to it, in place of the remains of an earlier process.
func (h *Veth) build() error {
	for _, step := range []func() error{h.link.makePair, h.link.configure, h.routes.removeStale, removeReturnPath} {
		if err := step(); err != nil {
			return err
		}
	}
	err, markErr := h.rules.install(h.returnPath.err == nil)
	if err != nil {
		h.log.Warn("host veth: no masquerade rule, endpoints on other nodes that are reached through the kernel get no traffic", "err", err)
	} else {
		h.rules.warnForwardPolicy()
	}
	if h.returnPath.err = cmp.Or(h.returnPath.err, markErr); h.returnPath.err != nil {
		return nil
	}
	if h.returnPath.open(); h.returnPath.err != nil {
		if err := errors.Join(removeReturnPath(), h.rules.replace(h.rules.masquerade, false)); err != nil {
			h.log.Warn("host veth", "err", err)
		}
	}
	return nil
}

// Name and Index are those of Weir's end, where the steering program takes all packets.
func (h *Veth) Name() string { return XDPEnd }

// Index is the interface index of Weir's end.
func (h *Veth) Index() int { return h.link.xdp().Attrs().Index }

// MAC is the address of Weir's end.
func (h *Veth) MAC() [6]byte { return h.link.mac() }

// Masquerades is false where nftables could not be programmed: endpoints beyond this node that are
// reached through the kernel get no traffic.
func (h *Veth) Masquerades() bool { return h.rules.masquerade }

// ReturnPathErr is nil where answers to clients' own addresses come back to the host veth, and else
// says why not.
func (h *Veth) ReturnPathErr() error { return h.returnPath.err }

// PeerMAC is the address of the kernel's end.
func (h *Veth) PeerMAC() [6]byte { return [6]byte(h.link.kernel().Attrs().HardwareAddr) }

// MTU is that of both ends.
func (h *Veth) MTU() int { return h.link.xdp().Attrs().MTU }

// Route describes the host veth to the route watcher; port is the number
// under which workers know it.
func (h *Veth) Route(port int) route.HostVeth {
	p4, p6 := h.link.prefixes.v4, h.link.prefixes.v6
	return route.HostVeth{
		Port: port, Index: h.link.kernel().Attrs().Index, MAC: h.MAC(), ReturnPathMAC: h.link.returnPathMAC(), PeerMAC: h.PeerMAC(), MTU: h.MTU(),
		Gateway4: address(p4, gatewayHost), Gateway6: address(p6, gatewayHost),
		Local4: address(p4, localHost), Local6: address(p6, localHost),
		Forward4: address(p4, forwardHost), Forward6: address(p6, forwardHost),
	}
}

// Close removes everything from the host and reverts all changes.
func (h *Veth) Close() error {
	h.reconciler.stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	errs := []error{removeRules(), removeReturnPath()}
	errs = append(errs, h.link.pair.Remove())
	return errors.Join(append(errs, h.saved.restore())...)
}

// EnableForwarding lets the kernel forward answers that arrive on an interface, since
// endpoints lie behind it. ifindex is of the calling thread's namespace;
// loopback and the host veth need nothing.
func (h *Veth) EnableForwarding(ifindex int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwarding.add(ifindex)
}

// AddRoute routes a frontend's address to the host veth, for clients on the
// node. A family without a prefix has no route there, which is not an error.
func (h *Veth) AddRoute(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.add(a)
}

// RemoveRoute removes the route. A missing route is not an error.
func (h *Veth) RemoveRoute(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.remove(a)
}

// SourceFor is the SNAT source towards listeners on a, an address of the node.
// Each address has a separate source, whose route names a as the source of packets sent
// there: a UDP server on the wildcard address leaves the choice to the kernel
// and would else answer from an address that no flow has. If the prefix has no address left
// it is the source of all endpoints on this node.
func (h *Veth) SourceFor(a netip.Addr) (netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.sourceFor(a)
}

// AddEndpoint says that packets to a keep the client's address.
func (h *Veth) AddEndpoint(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.returnPath.add(a)
}

// PruneEndpoints forgets the endpoints of AddEndpoint that are not in use any
// more once there are many of them.
func (h *Veth) PruneEndpoints(used func(netip.Addr) bool, inUse int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.returnPath.prune(used, inUse)
}

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
