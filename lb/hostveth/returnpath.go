package hostveth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// The return path of packets that keep the client's address. The endpoint answers to the
// client, by the node's route there. So that the answer comes through Weir and everything
// else of the same endpoint does not, the route is chosen per connection:
//
//	packets by the host veth from returnPathMAC mark their connection
//	answers of marked connections get the packet mark (rules.go)
//	rule RulePriority: fwmark Mark/Mask lookup Table
//	Table: default via the host veth
//	       throw for each endpoint: reverse path checks that know the mark
//	       (net.ipv4.conf.*.src_valid_mark, nft's `fib saddr . mark`) ask for
//	       the route to the endpoint, which is main's
//	       probes to frontends: package probepath
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

// returnPath is rule and table.
type returnPath struct {
	link        *link
	mark        uint32
	table       int
	throwRoutes map[netip.Addr]bool // endpoints that the table leaves to the main one
	found       map[netip.Addr]bool // the last process's that nobody has asked for yet
	err         error               // nil where answers to clients' own addresses come back
	log         *slog.Logger
}

// open makes rule and table. On error there is no return path, and err says why.
func (rp *returnPath) open() {
	if rp.err = errors.Join(rp.checkTableUnused(), rp.ensure()); rp.err == nil {
		rp.warnMarkConflict()
	}
}

// ensure makes the missing parts of rule and table.
func (rp *returnPath) ensure() error {
	for _, p := range rp.link.prefixes.list() {
		gw := address(p, localHost)
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: rp.link.kernel().Attrs().Index, Dst: ipNet(unspecified(gw), 0), Gw: gw.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK), Table: rp.table, Protocol: route.Protocol,
		})
		if err != nil {
			return fmt.Errorf("default route of table %d: %w", rp.table, err)
		}
		if err := netlink.RuleAdd(rp.markRule(familyOf(gw))); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("routing rule for mark %#x: %w", rp.mark, err)
		}
	}
	var errs []error
	for a := range rp.throwRoutes {
		errs = append(errs, netlink.RouteReplace(rp.throwRoute(a)))
	}
	return errors.Join(errs...)
}

func (rp *returnPath) markRule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := rp.mark
	r.Family, r.Priority, r.Table, r.Protocol = family, RulePriority, rp.table, route.Protocol
	r.Mark, r.Mask = rp.mark, &mask
	return r
}

func (rp *returnPath) throwRoute(a netip.Addr) *netlink.Route {
	return &netlink.Route{Dst: ipNet(a, a.BitLen()), Type: unix.RTN_THROW, Table: rp.table, Protocol: route.Protocol}
}

// add is AddEndpoint.
func (rp *returnPath) add(a netip.Addr) error {
	if rp.err != nil || rp.throwRoutes[a] || !rp.link.prefixes.of(a).IsValid() {
		return nil
	}
	if rp.found[a] {
		delete(rp.found, a)
		rp.throwRoutes[a] = true
		return nil
	}
	if err := netlink.RouteReplace(rp.throwRoute(a)); err != nil {
		return fmt.Errorf("table %d: throw %s: %w", rp.table, a, err)
	}
	rp.throwRoutes[a] = true
	return nil
}

// prune is PruneEndpoints.
func (rp *returnPath) prune(used func(netip.Addr) bool, inUse int) {
	if len(rp.throwRoutes)-inUse < maxStaleThrowRoutes {
		return
	}
	for a := range rp.throwRoutes {
		if used(a) {
			continue
		}
		if err := netlink.RouteDel(rp.throwRoute(a)); err != nil && !errors.Is(err, unix.ESRCH) {
			rp.log.Warn("host veth", "err", err)
			continue
		}
		delete(rp.throwRoutes, a)
	}
}

// check reports whether rule and table are as they were made.
func (rp *returnPath) check() (bool, error) {
	if rp.err != nil {
		return true, nil
	}
	for _, p := range rp.link.prefixes.list() {
		family := familyOf(p.Addr())
		rules, err := ownRules(family)
		if err != nil {
			return true, err
		}
		routes, err := tableRoutes(family, rp.table)
		if err != nil {
			return true, err
		}
		want := 1
		for a := range rp.throwRoutes {
			if familyOf(a) == family {
				want++
			}
		}
		routes = slices.DeleteFunc(routes, isProbeRoute)
		if len(rules) != 1 || len(routes) < want {
			return false, nil
		}
	}
	return true, nil
}

// checkTableUnused refuses a routing table in which somebody else has routes.
func (rp *returnPath) checkTableUnused() error {
	for _, p := range rp.link.prefixes.list() {
		list, err := tableRoutes(familyOf(p.Addr()), rp.table)
		if err != nil {
			return err
		}
		for i := range list {
			if list[i].Protocol != route.Protocol {
				return fmt.Errorf("hostVeth.table: routing table %d has a route to %s that is not Weir's; choose another table", rp.table, list[i].Dst)
			}
		}
	}
	return nil
}

// checkOwn reports whether rule and table are as they would be made, and no others.
func (rp *returnPath) checkOwn() (bool, error) {
	for family, p := range map[int]netip.Prefix{unix.AF_INET: rp.link.prefixes.v4, unix.AF_INET6: rp.link.prefixes.v6} {
		rules, err := ownRules(family)
		if err != nil {
			return false, err
		}
		if !p.IsValid() || rp.err != nil {
			if len(rules) > 0 {
				return false, nil
			}
			continue
		}
		routes, err := tableRoutes(family, rp.table)
		if err != nil || len(rules) != 1 || !rp.isMarkRule(&rules[0]) {
			return false, err
		}
		defaults := 0
		for i := range routes {
			r := &routes[i]
			if isThrow(r) || isProbeRoute(*r) {
				continue
			}
			gateway, _ := netip.AddrFromSlice(r.Gw)
			ones, _ := r.Dst.Mask.Size()
			if r.Protocol != route.Protocol || ones != 0 || gateway.Unmap() != address(p, localHost) ||
				r.LinkIndex != rp.link.kernel().Attrs().Index {
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
func (rp *returnPath) isMarkRule(r *netlink.Rule) bool {
	return r.Priority == RulePriority && r.Table == rp.table && r.Mark == rp.mark &&
		r.Mask != nil && *r.Mask == rp.mark && r.Src == nil && r.Dst == nil && !r.Invert
}

// removeOthers removes the throw routes of endpoints that no frontend has.
func (rp *returnPath) removeOthers() error {
	if rp.err != nil {
		return nil
	}
	var errs []error
	for _, p := range rp.link.prefixes.list() {
		list, err := tableRoutes(familyOf(p.Addr()), rp.table)
		errs = append(errs, err)
		for i := range list {
			to := destination(&list[i])
			if !isThrow(&list[i]) || !to.IsValid() || rp.throwRoutes[to] {
				continue
			}
			if err := netlink.RouteDel(rp.throwRoute(to)); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the old route to %s of table %d: %w", to, rp.table, err))
			}
		}
	}
	return errors.Join(errs...)
}

// find takes over the throw routes of the last process.
func (rp *returnPath) find() error {
	rp.found = map[netip.Addr]bool{}
	if rp.err != nil {
		return nil
	}
	for _, p := range rp.link.prefixes.list() {
		list, err := tableRoutes(familyOf(p.Addr()), rp.table)
		if err != nil {
			return err
		}
		for i := range list {
			if to := destination(&list[i]); isThrow(&list[i]) && to.IsValid() {
				rp.found[to] = true
			}
		}
	}
	return nil
}

// warnMarkConflict warns of foreign routing rules that match bits of the mark: their
// packets may take Weir's return path, or Weir's packets their route.
func (rp *returnPath) warnMarkConflict() {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			continue
		}
		for i := range rules {
			r := &rules[i]
			if r.Protocol == route.Protocol || !marksConflict(rp.mark, r) {
				continue
			}
			rp.log.Warn("a routing rule of another program uses bits of hostVeth.mark: choose other bits",
				"mark", fmt.Sprintf("%#x", rp.mark), "rule", strings.TrimSpace(r.String()), "itsMark", fmt.Sprintf("%#x", r.Mark))
		}
	}
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

func isThrow(r *netlink.Route) bool {
	return r.Type == unix.RTN_THROW && r.Protocol == route.Protocol
}

// isProbeRoute reports whether a route leads to a single address: those are of package probepath.
func isProbeRoute(r netlink.Route) bool {
	ones, bits := r.Dst.Mask.Size()
	return ones == bits && r.Type == unix.RTN_UNICAST && r.Protocol == route.Protocol
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
