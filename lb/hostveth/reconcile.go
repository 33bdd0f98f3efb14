package hostveth

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/notice"
)

// reconcileInterval is how often the host veth is looked over. Reloading a firewall
// flushes everybody's nftables tables, and network managers take off addresses
// and routes that they do not know.
const reconcileInterval = 5 * time.Second

// routesAtLeast is how often routes and rules are looked over without a notice of the kernel's that
// one has changed: there is a route per address, and each look reads all of them.
const routesAtLeast = time.Minute

// reconciler repairs the host veth while it is open.
type reconciler struct {
	quit, done chan struct{}
	now        chan struct{} // Settle
	changed    chan struct{} // the link is another
	fault      atomic.Pointer[string]

	notices *notice.Notices // of routes and rules; of these methods' goroutine, as is routesAt
	// routesAt is when routes and rules were last looked over, zero: they must be.
	routesAt time.Time
}

// routesDue reports whether routes and rules are to be looked over.
func (k *reconciler) routesDue(now time.Time) bool {
	if !k.notices.Changed() && now.Sub(k.routesAt) < routesAtLeast {
		return false
	}
	k.routesAt = now
	return true
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

// Fault is the part of the host veth that another program has changed and that cannot be
// repaired, with the reason, "" for none. Until it is repaired packets are lost. A link that was
// changed is repaired at once.
func (h *Veth) Fault() string {
	if h.reconciler == nil {
		return ""
	}
	h.mu.Lock()
	pair := h.link.pair
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
	notices, err := notice.Open(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		h.log.Warn("host veth: routes are read whether or not they have changed", "err", err)
	}
	k := &reconciler{quit: make(chan struct{}), done: make(chan struct{}), now: make(chan struct{}, 1), changed: make(chan struct{}, 1), notices: notices}
	go func() {
		defer close(k.done)
		defer k.notices.Close()
		// Never unlocked: a thread that has been moved ends with the goroutine.
		runtime.LockOSThread()
		err := enter(ns)
		_ = ns.Close()
		if err != nil {
			h.log.Warn("host veth: changes by other programs are not repaired", "err", err)
			return
		}
		tick := aligned.NewTicker(every)
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

// reconcile restores parts that other programs have removed, and logs it. Errors wait for
// the next time.
func (h *Veth) reconcile() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var fault *string
	due := sync.OnceValue(func() bool { return h.reconciler.routesDue(time.Now()) }) // after links and addresses, which take routes along
	ifDue := func(check func() (bool, error)) func() (bool, error) {
		return func() (bool, error) {
			if !due() {
				return true, nil
			}
			return check()
		}
	}
	for _, part := range []struct {
		what   string
		intact func() (bool, error)
		put    func() error
	}{
		{"link", h.link.checkLink, h.link.configure},
		{"sysctls", h.link.checkPairSysctls, h.link.setPairSysctls},
		{"addresses", h.link.checkAddresses, h.link.configure},
		{"forwarding", h.forwarding.check, h.forwarding.restore},
		{"routes", ifDue(h.routes.check), h.routes.ensure},
		{"nftables rules", h.rules.check, h.rules.ensure},
		{"return path", ifDue(h.returnPath.check), h.returnPath.ensure},
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
	if fault != nil {
		h.reconciler.routesAt = time.Time{}
	}
	h.reconciler.fault.Store(fault)
}

// Settle is called when everything that the host veth is to have was asked for. It removes the
// rest of the last process's, and repairs what that process has not, both later.
func (h *Veth) Settle() {
	select {
	case h.reconciler.now <- struct{}{}:
	default: // it is about to
	}
}

// settle is Settle now.
func (h *Veth) settle() {
	h.mu.Lock()
	adopted := h.adopted
	h.adopted = false
	var err error
	if adopted {
		h.routes.foundRoutes, h.routes.foundSources, h.returnPath.found = nil, nil, nil
		err = errors.Join(h.routes.removeOthers(), h.returnPath.removeOthers())
	}
	h.mu.Unlock()
	if err != nil {
		h.log.Warn("host veth: routes of the last process are left", "err", err)
	}
	if adopted {
		h.reconcile()
	}
}
