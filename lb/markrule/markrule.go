// Package markrule makes routing rules of Weir's own: packets with a mark look a table up in which nobody
// else has routes. A rule is known by Weir's protocol number and a priority, also to the next process.
package markrule

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// Priorities of the rules: behind the local table, also where that was moved to 100 (Cilium), and before
// rules by source address (1536 for the pods of AWS's VPC CNI).
const (
	ReturnPath = 300 // package hostveth
	Probes     = 301 // package probepath
)

var families = []int{unix.AF_INET, unix.AF_INET6}

// Rule is a rule of either family: packets that have all bits of Mark look Table up.
type Rule struct {
	Priority int
	Mark     uint32
	Table    int
	// MarkField and TableField are the fields of the configuration, for errors.
	MarkField, TableField string
}

// Of is the rule of a family, as the kernel has it.
func (r *Rule) Of(family int) *netlink.Rule {
	n, mask := netlink.NewRule(), r.Mark
	n.Family, n.Priority, n.Table, n.Protocol = family, r.Priority, r.Table, route.Protocol
	n.Mark, n.Mask = r.Mark, &mask
	return n
}

// Is reports whether a rule of the kernel is this rule.
func (r *Rule) Is(n *netlink.Rule) bool {
	return n.Priority == r.Priority && n.Table == r.Table && n.Mark == r.Mark &&
		n.Mask != nil && *n.Mask == r.Mark && n.Src == nil && n.Dst == nil && !n.Invert
}

// Add makes the rule of a family. A rule that is there already is not made.
func (r *Rule) Add(family int) (made bool, err error) {
	switch err := netlink.RuleAdd(r.Of(family)); {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("routing rule for mark %#x: %w", r.Mark, err)
	}
	return true, nil
}

// CheckUnused refuses a table in which somebody else has routes of a family.
func (r *Rule) CheckUnused(family int) error {
	list, err := Routes(family, r.Table)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Protocol != route.Protocol {
			return fmt.Errorf("%s: routing table %d has a route to %s that is not Weir's; choose another table", r.TableField, r.Table, list[i].Dst)
		}
	}
	return nil
}

// WarnConflict warns of foreign rules that match bits of the mark: their packets may look this table up, or
// packets with the mark theirs.
func (r *Rule) WarnConflict(log *slog.Logger) {
	for _, family := range families {
		rules, err := netlink.RuleList(family)
		if err != nil {
			continue
		}
		for i := range rules {
			n := &rules[i]
			if n.Protocol == route.Protocol || !conflict(r.Mark, n) {
				continue
			}
			log.Warn("a routing rule of another program uses bits of "+r.MarkField+": choose other bits",
				"mark", fmt.Sprintf("%#x", r.Mark), "rule", strings.TrimSpace(n.String()), "itsMark", fmt.Sprintf("%#x", n.Mark))
		}
	}
}

// conflict reports whether a packet with a mark alone would match a rule, or a packet of the rule has the
// mark.
func conflict(mark uint32, r *netlink.Rule) bool {
	if r.Mark == 0 {
		return false
	}
	mask := ^uint32(0)
	if r.Mask != nil {
		mask = *r.Mask
	}
	return mark&mask == r.Mark || r.Mark&mark == mark
}

// Remove removes the rules of a priority and Weir's routes of their tables, also those of an earlier
// process with another configuration. None there is no error.
func Remove(priority int) error {
	var errs []error
	for _, family := range families {
		rules, err := Own(family, priority)
		if err != nil {
			return err
		}
		for i := range rules {
			if err := netlink.RuleDel(&rules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove the routing rule for mark %#x: %w", rules[i].Mark, err))
			}
			routes, err := Routes(family, rules[i].Table)
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

// Own are the rules of a priority that bear Weir's protocol number.
func Own(family, priority int) ([]netlink.Rule, error) {
	all, err := netlink.RuleList(family)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // a kernel without routing rules
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	var own []netlink.Rule
	for i := range all {
		if all[i].Protocol == route.Protocol && all[i].Priority == priority {
			all[i].Family = family
			own = append(own, all[i])
		}
	}
	return own, nil
}

// Routes are the routes of a table of a family, each with a destination.
func Routes(family, table int) ([]netlink.Route, error) {
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
