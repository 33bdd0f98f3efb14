package hostveth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// The return path of packets that keep the client's address. The endpoint answers to the
// client, by the node's route there. So that the answer comes through Weir and everything
// else of the same endpoint does not, the route is chosen per connection:
//
//	packets by the host veth from ReturnPathMAC mark their connection
//	answers of marked connections get the packet mark (marks.go)
//	rule RulePriority: fwmark Mark/Mask lookup Table
//	Table: default via the host veth
//	       throw for each endpoint: reverse path checks that know the mark
//	       (net.ipv4.conf.*.src_valid_mark, nft's `fib saddr . mark`) ask for
//	       the route to the endpoint, which is main's
//
// Where connection tracking is switched off for these packets (notrack), or a
// socket is bound to an interface, answers bypass Weir: use nat there.

// RulePriority is where the routing rule stands: behind the local table, also
// where that was moved to 100 (Cilium), and before rules by source address
// (1536 for the pods of AWS's VPC CNI).
const RulePriority = 300

// maxStaleThrowRoutes is how many throw routes may be left of endpoints that are gone:
// they do no harm.
const maxStaleThrowRoutes = 1024

// openReturnPath makes rule and table. On error there is no return path, and ReturnPathErr
// says why.
func (h *Veth) openReturnPath() {
	if h.ReturnPathErr != nil {
		return
	}
	if err := errors.Join(h.checkTableUnused(), h.ensureReturnPath()); err != nil {
		h.ReturnPathErr = err
		if err := errors.Join(removeReturnPath(), h.ensureRules()); err != nil {
			h.log.Warn("host veth", "err", err)
		}
		return
	}
	h.warnMarkConflict()
}

// ensureReturnPath makes the missing parts of rule and table.
func (h *Veth) ensureReturnPath() error {
	for _, p := range h.prefixes() {
		gw := h.address(p, localHost)
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: h.kernel().Attrs().Index, Dst: ipNet(unspecified(gw), 0), Gw: gw.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK), Table: h.cfg.Table, Protocol: route.Protocol,
		})
		if err != nil {
			return fmt.Errorf("default route of table %d: %w", h.cfg.Table, err)
		}
		if err := netlink.RuleAdd(h.markRule(familyOf(gw))); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("routing rule for mark %#x: %w", h.cfg.Mark, err)
		}
	}
	var errs []error
	for a := range h.throwRoutes {
		errs = append(errs, netlink.RouteReplace(h.throwRoute(a)))
	}
	return errors.Join(errs...)
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (h *Veth) markRule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := h.cfg.Mark
	r.Family, r.Priority, r.Table, r.Protocol = family, RulePriority, h.cfg.Table, route.Protocol
	r.Mark, r.Mask = h.cfg.Mark, &mask
	return r
}

func (h *Veth) throwRoute(a netip.Addr) *netlink.Route {
	return &netlink.Route{Dst: ipNet(a, a.BitLen()), Type: unix.RTN_THROW, Table: h.cfg.Table, Protocol: route.Protocol}
}

// AddEndpoint says that packets to a keep the client's address.
func (h *Veth) AddEndpoint(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ReturnPathErr != nil || h.throwRoutes[a] || !h.prefixFor(a).IsValid() {
		return nil
	}
	if h.adopted.takeThrowRoute(a) {
		h.throwRoutes[a] = true
		return nil
	}
	if err := netlink.RouteReplace(h.throwRoute(a)); err != nil {
		return fmt.Errorf("table %d: throw %s: %w", h.cfg.Table, a, err)
	}
	h.throwRoutes[a] = true
	return nil
}

// PruneEndpoints forgets the endpoints of AddEndpoint that are not in use any
// more once there are many of them.
func (h *Veth) PruneEndpoints(used func(netip.Addr) bool, inUse int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.throwRoutes)-inUse < maxStaleThrowRoutes {
		return
	}
	for a := range h.throwRoutes {
		if used(a) {
			continue
		}
		if err := netlink.RouteDel(h.throwRoute(a)); err != nil && !errors.Is(err, unix.ESRCH) {
			h.log.Warn("host veth", "err", err)
			continue
		}
		delete(h.throwRoutes, a)
	}
}

// checkReturnPath reports whether rule and table are as they were made.
func (h *Veth) checkReturnPath() (bool, error) {
	if h.ReturnPathErr != nil {
		return true, nil
	}
	for _, p := range h.prefixes() {
		family := familyOf(p.Addr())
		rules, err := ownRules(family)
		if err != nil {
			return true, err
		}
		routes, err := tableRoutes(family, h.cfg.Table)
		if err != nil {
			return true, err
		}
		want := 1
		for a := range h.throwRoutes {
			if familyOf(a) == family {
				want++
			}
		}
		if len(rules) != 1 || len(routes) < want {
			return false, nil
		}
	}
	return true, nil
}

// checkTableUnused refuses a routing table in which somebody else has routes.
func (h *Veth) checkTableUnused() error {
	for _, p := range h.prefixes() {
		list, err := tableRoutes(familyOf(p.Addr()), h.cfg.Table)
		if err != nil {
			return err
		}
		for i := range list {
			if list[i].Protocol != route.Protocol {
				return fmt.Errorf("hostVeth.table: routing table %d has a route to %s that is not Weir's; choose another table", h.cfg.Table, list[i].Dst)
			}
		}
	}
	return nil
}

// removeReturnPath removes rule and table, also those of an earlier process with
// another configuration. None there is no error.
func removeReturnPath() error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := ownRules(family)
		if err != nil {
			return err
		}
		for i := range rules {
			if err := netlink.RuleDel(&rules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove the routing rule for mark %#x: %w", rules[i].Mark, err))
			}
			routes, err := tableRoutes(family, rules[i].Table)
			errs = append(errs, err)
			for j := range routes {
				if routes[j].Protocol != route.Protocol {
					continue
				}
				if err := netlink.RouteDel(&routes[j]); err != nil && !errors.Is(err, unix.ESRCH) {
					errs = append(errs, fmt.Errorf("remove the route to %s of table %d: %w", routes[j].Dst, rules[i].Table, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// ownRules are the routing rules that bear Weir's protocol number.
func ownRules(family int) ([]netlink.Rule, error) {
	all, err := netlink.RuleList(family)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // a kernel without routing rules
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	var own []netlink.Rule
	for i := range all {
		if all[i].Protocol == route.Protocol {
			all[i].Family = family
			own = append(own, all[i])
		}
	}
	return own, nil
}

func tableRoutes(family, table int) ([]netlink.Route, error) {
	list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routing table %d: %w", table, err)
	}
	for i := range list {
		if list[i].Dst == nil {
			list[i].Dst = &net.IPNet{IP: make(net.IP, net.IPv6len), Mask: net.CIDRMask(0, 128)}
			if family == unix.AF_INET {
				list[i].Dst = &net.IPNet{IP: make(net.IP, net.IPv4len), Mask: net.CIDRMask(0, 32)}
			}
		}
	}
	return list, nil
}

// warnMarkConflict warns of foreign routing rules that match bits of the mark: their
// packets may take Weir's return path, or Weir's packets their route.
func (h *Veth) warnMarkConflict() {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			continue
		}
		for i := range rules {
			r := &rules[i]
			if r.Protocol == route.Protocol || !marksConflict(h.cfg.Mark, r) {
				continue
			}
			h.log.Warn("a routing rule of another program uses bits of hostVeth.mark: choose other bits",
				"mark", fmt.Sprintf("%#x", h.cfg.Mark), "rule", strings.TrimSpace(r.String()), "itsMark", fmt.Sprintf("%#x", r.Mark))
		}
	}
}

// marksConflict reports whether a packet with Weir's mark alone would match a rule, or a
// packet of the rule has Weir's mark.
func marksConflict(mark uint32, r *netlink.Rule) bool {
	if r.Mark == 0 {
		return false
	}
	mask := ^uint32(0)
	if r.Mask != nil {
		mask = *r.Mask
	}
	return mark&mask == r.Mark || r.Mark&mark == mark
}
