package hostveth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
)

// found is what the last process has put on the host veth for its Services and addresses.
type found struct {
	routes      map[netip.Addr]bool
	sources     map[netip.Addr]int
	throwRoutes map[netip.Addr]bool
}

// takeRoute reports whether there is the route of a frontend, and forgets it.
func (f *found) takeRoute(a netip.Addr) bool {
	if f == nil || !f.routes[a] {
		return false
	}
	delete(f.routes, a)
	return true
}

// takeSource returns the number of a source, and forgets it.
func (f *found) takeSource(a netip.Addr) (number int, ok bool) {
	if f == nil {
		return 0, false
	}
	number, ok = f.sources[a]
	delete(f.sources, a)
	return number, ok
}

// takeThrowRoute is takeRoute of an endpoint's route.
func (f *found) takeThrowRoute(a netip.Addr) bool {
	if f == nil || !f.throwRoutes[a] {
		return false
	}
	delete(f.throwRoutes, a)
	return true
}

// errDiffers is the error of look where build would change something, and errNone where there is
// no pair.
var (
	errDiffers = errors.New("is not as this process would make it")
	errNone    = errors.New("there is none")
)

// look finds the host veth of the last process. An error is the reason why this one cannot go on
// with it.
func (h *Veth) look() error {
	pair, exists, err := vethpair.Find(ends)
	if err == nil && !exists {
		err = errNone
	}
	if err != nil {
		return err
	}
	h.pair, h.Masquerades = pair, true
	for _, part := range []struct {
		what   string
		intact func() (bool, error)
	}{
		{"sysctls", h.checkPairSysctls},
		{"offload", h.checkGRO},
		{"addresses", h.checkAddresses},
		{"foreign addresses", h.checkNoOtherAddresses},
		{"nftables rules", h.checkRules},
		{"return path", h.checkOwnReturnPath},
	} {
		intact, err := part.intact()
		if err == nil && !intact {
			err = errDiffers
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part.what, err)
		}
	}
	f, err := h.find()
	h.adopted = &f
	return err
}

// adopt goes on with the host veth of the last process if that is as build would make it, and
// reports whether it does: connections through it go on meanwhile.
func (h *Veth) adopt() bool {
	err := h.look()
	if err == nil && !h.pair.Fits(vethpair.Config{MTU: h.cfg.MTU, Queues: h.cfg.Queues}) {
		err = fmt.Errorf("MTU or queues: %w", errDiffers)
	}
	if err == nil { // of an earlier release, whose host veth otherwise stays
		err = vethpair.SetOffloads(KernelEnd, h.offloads())
	}
	if err != nil {
		if !errors.Is(err, errNone) {
			h.log.Info("the host veth of the last process is made anew", "because", err)
		}
		h.pair, h.Masquerades, h.adopted = vethpair.Pair{}, false, nil
		return false
	}
	h.warnForwardPolicy()
	if h.ReturnPathErr == nil {
		h.warnMarkConflict()
	}
	return true
}

// checkGRO reports whether Weir's end gets redirected packets, where it is to.
func (h *Veth) checkGRO() (bool, error) {
	if !h.cfg.Redirects {
		return true, nil
	}
	return vethpair.HasOffloads(KernelEnd, map[string]bool{"rx-gro": true})
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
	adopted := h.adopted != nil
	h.adopted = nil
	var err error
	if adopted {
		err = errors.Join(h.removeOtherRoutes(), h.removeOtherThrowRoutes())
	}
	h.mu.Unlock()
	if err != nil {
		h.log.Warn("host veth: routes of the last process are left", "err", err)
	}
	if adopted {
		h.reconcile()
	}
}

// removeOtherRoutes removes Weir's routes to the host veth that nobody has asked for.
func (h *Veth) removeOtherRoutes() error {
	want := h.wantedRoutes()
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := h.ownRoutes(family)
		errs = append(errs, err)
		for i := range list {
			if want[destination(&list[i])] {
				continue
			}
			if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the old route to %s: %w", list[i].Dst, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeOtherThrowRoutes removes the throw routes of endpoints that no frontend has.
func (h *Veth) removeOtherThrowRoutes() error {
	if h.ReturnPathErr != nil {
		return nil
	}
	var errs []error
	for _, p := range h.prefixes() {
		list, err := tableRoutes(familyOf(p.Addr()), h.cfg.Table)
		errs = append(errs, err)
		for i := range list {
			to := destination(&list[i])
			if !isThrow(&list[i]) || !to.IsValid() || h.throwRoutes[to] {
				continue
			}
			if err := netlink.RouteDel(h.throwRoute(to)); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the old route to %s of table %d: %w", to, h.cfg.Table, err))
			}
		}
	}
	return errors.Join(errs...)
}

// find lists what the last process has put there for its Services and addresses. A route that
// is not as this process would make it is left out.
func (h *Veth) find() (found, error) {
	f := found{routes: map[netip.Addr]bool{}, sources: map[netip.Addr]int{}, throwRoutes: map[netip.Addr]bool{}}
	for _, p := range h.prefixes() {
		family := familyOf(p.Addr())
		near, err := h.neighbors(family)
		if err != nil {
			return f, err
		}
		for _, host := range []int{localHost, forwardHost} {
			if !near[h.address(p, host)] {
				return f, fmt.Errorf("neighbor %s: %w", h.address(p, host), errDiffers)
			}
		}
		list, err := h.ownRoutes(family)
		if err != nil {
			return f, err
		}
		for i := range list {
			r, to := &list[i], destination(&list[i])
			gateway, _ := netip.AddrFromSlice(r.Gw)
			source, _ := netip.AddrFromSlice(r.Src)
			number, isSource := h.sourceNumber(p, to)
			switch {
			case !to.IsValid():
			case gateway.Unmap() == h.address(p, localHost) && !source.IsValid():
				f.routes[to] = true
			case isSource && !gateway.IsValid() && source.IsValid() && near[to]:
				f.sources[source.Unmap()] = number
			}
		}
		if h.ReturnPathErr != nil {
			continue
		}
		if list, err = tableRoutes(family, h.cfg.Table); err != nil {
			return f, err
		}
		for i := range list {
			if to := destination(&list[i]); isThrow(&list[i]) && to.IsValid() {
				f.throwRoutes[to] = true
			}
		}
	}
	return f, nil
}

// destination is the only address of a route, invalid for a route to more.
func destination(r *netlink.Route) netip.Addr {
	if r.Dst == nil {
		return netip.Addr{}
	}
	if ones, bits := r.Dst.Mask.Size(); ones != bits {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	return a.Unmap()
}

func isThrow(r *netlink.Route) bool {
	return r.Type == unix.RTN_THROW && r.Protocol == route.Protocol
}

// mostSources bounds the numbers of sources that are gone on with.
const mostSources = 1 << 12

// sourceNumber is the number of an address in a prefix, if it may be that of a source.
func (h *Veth) sourceNumber(p netip.Prefix, a netip.Addr) (int, bool) {
	if !p.Contains(a) {
		return 0, false
	}
	low := func(a netip.Addr) uint32 {
		b := a.AsSlice()
		return binary.BigEndian.Uint32(b[len(b)-4:])
	}
	n := low(a) - low(p.Masked().Addr())
	if n < firstSource || n > mostSources {
		return 0, false
	}
	return int(n), h.address(p, int(n)) == a
}

// neighbors are the addresses for which the kernel has the MAC address of Weir's end.
func (h *Veth) neighbors(family int) (map[netip.Addr]bool, error) {
	list, err := netlink.NeighList(h.kernel().Attrs().Index, family)
	if err != nil {
		return nil, fmt.Errorf("list neighbors of %s: %w", KernelEnd, err)
	}
	near := map[netip.Addr]bool{}
	for i := range list {
		a, ok := netip.AddrFromSlice(list[i].IP)
		if ok && list[i].State == unix.NUD_PERMANENT && sameMAC(list[i].HardwareAddr, h.MAC()) {
			near[a.Unmap()] = true
		}
	}
	return near, nil
}

func sameMAC(a net.HardwareAddr, b [6]byte) bool { return len(a) == len(b) && [6]byte(a) == b }

// checkNoOtherAddresses reports whether the kernel's end has the addresses of checkAddresses alone.
func (h *Veth) checkNoOtherAddresses() (bool, error) {
	list, err := netlink.AddrList(h.kernel(), netlink.FAMILY_ALL)
	return len(list) == len(h.prefixes()), err
}

// checkOwnReturnPath reports whether rule and table are as they would be made, and no others.
func (h *Veth) checkOwnReturnPath() (bool, error) {
	for family, p := range map[int]netip.Prefix{unix.AF_INET: h.cfg.Prefix4, unix.AF_INET6: h.cfg.Prefix6} {
		rules, err := ownRules(family)
		if err != nil {
			return false, err
		}
		if !p.IsValid() || h.ReturnPathErr != nil {
			if len(rules) > 0 {
				return false, nil
			}
			continue
		}
		routes, err := tableRoutes(family, h.cfg.Table)
		if err != nil || len(rules) != 1 || !h.isMarkRule(&rules[0]) {
			return false, err
		}
		defaults := 0
		for i := range routes {
			r := &routes[i]
			if isThrow(r) {
				continue
			}
			gateway, _ := netip.AddrFromSlice(r.Gw)
			ones, _ := r.Dst.Mask.Size()
			if r.Protocol != route.Protocol || ones != 0 || gateway.Unmap() != h.address(p, localHost) ||
				r.LinkIndex != h.kernel().Attrs().Index {
				return false, nil
			}
			defaults++
		}
		if defaults != 1 {
			return false, nil
		}
	}
	return true, nil
}

// isMarkRule reports whether a rule is the one of this process.
func (h *Veth) isMarkRule(r *netlink.Rule) bool {
	return r.Priority == RulePriority && r.Table == h.cfg.Table && r.Mark == h.cfg.Mark &&
		r.Mask != nil && *r.Mask == h.cfg.Mark && r.Src == nil && r.Dst == nil && !r.Invert
}
