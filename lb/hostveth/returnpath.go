package hostveth

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/lb/route"
)

// The return path of packets that keep the client's address. The endpoint answers to the
// client, by the node's route there. So that the answer comes through Weir and everything
// else of the same endpoint does not, the route is chosen per connection:
//
//	packets by the host veth from returnPathMAC mark their connection
//	answers of marked connections get the packet mark (rules.go)
//	rule (package markrule): fwmark Mark/Mask lookup Table
//	Table: default via the host veth
//	       throw for each endpoint: reverse path checks that know the mark
//	       (net.ipv4.conf.*.src_valid_mark, nft's `fib saddr . mark`) ask for
//	       the route to the endpoint, which is main's
//
// Where connection tracking is switched off for these packets (notrack), or a
// socket is bound to an interface, answers bypass Weir: use nat there.

// maxStaleThrowRoutes is how many throw routes may be left of endpoints that are gone:
// they do no harm.
const maxStaleThrowRoutes = 1024

// returnPath is rule and table.
type returnPath struct {
	link        *link
	rule        markrule.Rule
	throwRoutes map[netip.Addr]bool // endpoints that the table leaves to the main one
	found       map[netip.Addr]bool // the last process's that nobody has asked for yet
	err         error               // nil where answers to clients' own addresses come back
	log         *slog.Logger
}

// open makes rule and table. On error there is no return path, and err says why.
func (rp *returnPath) open() {
	if rp.err = errors.Join(rp.checkTableUnused(), rp.ensure()); rp.err == nil {
		rp.rule.WarnConflict(rp.log)
	}
}

// ensure makes the missing parts of rule and table.
func (rp *returnPath) ensure() error {
	for _, p := range rp.link.prefixes.list() {
		gw := address(p, localHost)
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: rp.link.kernel().Attrs().Index, Dst: ipNet(unspecified(gw), 0), Gw: gw.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK), Table: rp.rule.Table, Protocol: route.Protocol,
		})
		if err != nil {
			return fmt.Errorf("default route of table %d: %w", rp.rule.Table, err)
		}
		if _, err := rp.rule.Add(familyOf(gw)); err != nil {
			return err
		}
	}
	var errs []error
	for a := range rp.throwRoutes {
		errs = append(errs, netlink.RouteReplace(rp.throwRoute(a)))
	}
	return errors.Join(errs...)
}

func (rp *returnPath) throwRoute(a netip.Addr) *netlink.Route {
	return &netlink.Route{Dst: ipNet(a, a.BitLen()), Type: unix.RTN_THROW, Table: rp.rule.Table, Protocol: route.Protocol}
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
		return fmt.Errorf("table %d: throw %s: %w", rp.rule.Table, a, err)
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
		rules, err := markrule.Own(family, markrule.ReturnPath)
		if err != nil {
			return true, err
		}
		routes, err := markrule.Routes(family, rp.rule.Table)
		if err != nil {
			return true, err
		}
		want := 1
		for a := range rp.throwRoutes {
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
func (rp *returnPath) checkTableUnused() error {
	for _, p := range rp.link.prefixes.list() {
		if err := rp.rule.CheckUnused(familyOf(p.Addr())); err != nil {
			return err
		}
	}
	return nil
}

// checkOwn reports whether rule and table are as they would be made, and no others.
func (rp *returnPath) checkOwn() (bool, error) {
	for family, p := range map[int]netip.Prefix{unix.AF_INET: rp.link.prefixes.v4, unix.AF_INET6: rp.link.prefixes.v6} {
		rules, err := markrule.Own(family, markrule.ReturnPath)
		if err != nil {
			return false, err
		}
		if !p.IsValid() || rp.err != nil {
			if len(rules) > 0 {
				return false, nil
			}
			continue
		}
		routes, err := markrule.Routes(family, rp.rule.Table)
		if err != nil || len(rules) != 1 || !rp.rule.Is(&rules[0]) {
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

// removeOthers removes the throw routes of endpoints that no frontend has.
func (rp *returnPath) removeOthers() error {
	if rp.err != nil {
		return nil
	}
	var errs []error
	for _, p := range rp.link.prefixes.list() {
		list, err := markrule.Routes(familyOf(p.Addr()), rp.rule.Table)
		errs = append(errs, err)
		for i := range list {
			to := destination(&list[i])
			if !isThrow(&list[i]) || !to.IsValid() || rp.throwRoutes[to] {
				continue
			}
			if err := netlink.RouteDel(rp.throwRoute(to)); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the old route to %s of table %d: %w", to, rp.rule.Table, err))
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
		list, err := markrule.Routes(familyOf(p.Addr()), rp.rule.Table)
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

// removeReturnPath removes rule and table, also those of an earlier process with
// another configuration. None there is no error.
func removeReturnPath() error { return markrule.Remove(markrule.ReturnPath) }

func isThrow(r *netlink.Route) bool {
	return r.Type == unix.RTN_THROW && r.Protocol == route.Protocol
}
