package hostveth

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
)

// reconcileInterval is how often the host veth is looked over. Reloading a firewall
// flushes everybody's nftables tables, and network managers take off addresses
// and routes that they do not know.
const reconcileInterval = 5 * time.Second

// reconciler repairs the host veth while it is open.
type reconciler struct {
	quit, done chan struct{}
	now        chan struct{} // Settle
	changed    chan struct{} // the link is another
	fault      atomic.Pointer[string]
}

// Fault is the part of the host veth that another program has changed and that cannot be
// repaired, with the reason, "" for none. Until it is repaired packets are lost. A link that was
// changed is repaired at once.
func (h *Veth) Fault() string {
	if h.reconciler == nil {
		return ""
	}
	h.mu.Lock()
	pair := h.pair
	h.mu.Unlock()
	if now, err := pair.Now(); err != nil || now.Differences(h.cfg.MTU) != nil {
		select {
		case h.reconciler.changed <- struct{}{}:
		default: // it is about to be repaired
		}
	}
	if f := h.reconciler.fault.Load(); f != nil {
		return *f
	}
	return ""
}

// startReconciler starts a keeper in the network namespace of the calling thread.
func (h *Veth) startReconciler(every time.Duration) (*reconciler, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	k := &reconciler{quit: make(chan struct{}), done: make(chan struct{}), now: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	go func() {
		defer close(k.done)
		// Never unlocked: a thread that has been moved ends with the goroutine.
		runtime.LockOSThread()
		err := enter(ns)
		_ = ns.Close()
		if err != nil {
			h.log.Warn("host veth: changes by other programs are not repaired", "err", err)
			return
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-k.quit:
				return
			case <-k.now:
				h.settle()
			case <-k.changed:
				h.reconcile()
			case <-tick.C:
				h.reconcile()
			}
		}
	}()
	return k, nil
}

// enter moves the calling thread into a network namespace unless it is there:
// that takes CAP_SYS_ADMIN, which Weir does without.
func enter(ns netns.NsHandle) error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer here.Close()
	if here.Equal(ns) {
		return nil
	}
	return netns.Set(ns)
}

func (k *reconciler) stop() {
	if k != nil {
		close(k.quit)
		<-k.done
	}
}

// reconcile restores parts that other programs have removed, and logs it. Errors wait for
// the next time.
func (h *Veth) reconcile() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var fault *string
	for _, part := range []struct {
		what   string
		intact func() (bool, error)
		put    func() error
	}{
		{"link", h.checkLink, h.configure},
		{"sysctls", h.checkPairSysctls, h.setPairSysctls},
		{"addresses", h.checkAddresses, h.configure},
		{"forwarding", h.forwarding.check, h.forwarding.restore},
		{"routes", h.checkRoutes, h.ensureRoutes},
		{"nftables rules", h.checkRules, h.ensureRules},
		{"return path", h.checkReturnPath, h.ensureReturnPath},
	} {
		intact, err := part.intact()
		if err == nil && !intact {
			h.log.Warn("host veth: changed by another program, restoring it", "what", part.what)
			err = part.put()
		}
		if err != nil {
			if h.reconciler.fault.Load() == nil {
				h.log.Warn("host veth: cannot be repaired", "what", part.what, "err", err)
			}
			if fault == nil {
				text := fmt.Sprintf("loses packets: its %s cannot be repaired: %v", part.what, err)
				fault = &text
			}
		}
	}
	h.reconciler.fault.Store(fault)
}

// checkLink reports whether both ends are up, as large as at first, and have their settings.
func (h *Veth) checkLink() (bool, error) {
	now, err := h.pair.Now()
	if err != nil {
		return false, fmt.Errorf("%w; restart Weir", err)
	}
	if now.Differences(h.cfg.MTU) != nil {
		return false, nil
	}
	return vethpair.HasOffloads(now[0].Attrs().Name, h.offloads())
}

// checkAddresses reports whether the kernel's end has all addresses, and knows its neighbors.
func (h *Veth) checkAddresses() (bool, error) {
	addrs, err := netlink.AddrList(h.kernel(), netlink.FAMILY_ALL)
	if err != nil {
		return true, interrupted(err)
	}
	want := len(h.prefixes())
	for i := range addrs {
		a, _ := netip.AddrFromSlice(addrs[i].IP)
		ones, _ := addrs[i].Mask.Size()
		if h.isGateway(netip.PrefixFrom(a.Unmap(), ones)) {
			want--
		}
	}
	if want != 0 {
		return false, nil
	}
	for _, p := range h.prefixes() {
		near, err := h.neighbors(familyOf(p.Addr()))
		if err != nil {
			return true, interrupted(err)
		}
		if !near[h.address(p, localHost)] || !near[h.address(p, forwardHost)] {
			return false, nil
		}
	}
	return true, nil
}

// wantedRoutes are the destinations of Weir's routes to the host veth.
func (h *Veth) wantedRoutes() map[netip.Addr]bool {
	want := map[netip.Addr]bool{}
	for a := range h.routes {
		want[a] = true
	}
	for a, n := range h.sources {
		if p := h.prefixFor(a); p.IsValid() {
			want[h.address(p, n)] = true
		}
	}
	return want
}

func (h *Veth) checkRoutes() (bool, error) {
	want := h.wantedRoutes()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := h.ownRoutes(family)
		if err != nil {
			return true, err
		}
		for i := range list {
			a, _ := netip.AddrFromSlice(list[i].Dst.IP)
			delete(want, a.Unmap())
		}
	}
	return len(want) == 0, nil
}

func (h *Veth) ensureRoutes() error {
	var errs []error
	for a := range h.routes {
		if r, ok := h.routeTo(a); ok {
			errs = append(errs, netlink.RouteReplace(r))
		}
	}
	for a := range h.sources {
		_, err := h.sourceFor(a)
		if err != nil && h.nodeHas(a) {
			errs = append(errs, err)
		} else if err != nil {
			delete(h.sources, a) // the route went with it
		}
	}
	return errors.Join(errs...)
}

// nodeHas reports whether the node still has an address.
func (h *Veth) nodeHas(a netip.Addr) bool {
	list, err := netlink.AddrList(nil, familyOf(a))
	if err != nil {
		return true
	}
	for i := range list {
		if ip, _ := netip.AddrFromSlice(list[i].IP); ip.Unmap() == a {
			return true
		}
	}
	return false
}

// interrupted forgives a dump during which something changed: the next dump will do.
func interrupted(err error) error {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}
