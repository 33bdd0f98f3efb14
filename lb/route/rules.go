package route

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Unfollowed is the list of routing rules that may send an answer to a table that Weir does not
// look at.
type Unfollowed struct {
	list atomic.Pointer[[]string]
	log  *slog.Logger
}

// Rules lists the rules, as `ip rule` shows them. It may be called at any time.
func (u *Unfollowed) Rules() []string {
	if l := u.list.Load(); l != nil {
		return *l
	}
	return nil
}

// set replaces the list, and logs rules that are new.
func (u *Unfollowed) set(rules []string) {
	before := u.Rules()
	for _, r := range rules {
		if !slices.Contains(before, r) {
			u.log.Warn(NotFollowed, "rule", r)
		}
	}
	u.list.Store(&rules)
}

// NotFollowed is the meaning of a rule of Unfollowed.
const NotFollowed = "routing rule is not followed: answers leave by the main table"

// UnfollowedRules are the rules of Unfollowed in the calling thread's network namespace.
func UnfollowedRules() ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	isVRF := func(l netlink.Link) bool { return l.Type() == "vrf" }
	return judgeRules(rules, slices.ContainsFunc(links, isVRF)).ignored, nil
}

// ruleSet is the meaning of the routing rules for Weir.
type ruleSet struct {
	// custom4 says that IPv4 has rules beyond the default ones: the kernel
	// then keeps the local table apart from main.
	custom4 bool
	// ignored describes the rules that may send an unmarked packet to a table
	// that Weir does not look at.
	ignored []string
}

// judgeRules sorts routing rules into those that Weir does by nature (local,
// then main, wherever they stand) and those it does not know.
func judgeRules(rules []netlink.Rule, vrfs bool) ruleSet {
	var s ruleSet
	for i := range rules {
		r := &rules[i]
		standard := plainRule(r) && (r.Table == unix.RT_TABLE_LOCAL || r.Table == unix.RT_TABLE_MAIN || r.Table == unix.RT_TABLE_DEFAULT)
		if r.Family == unix.AF_INET && !(standard && defaultPriority(r)) {
			s.custom4 = true
		}
		switch {
		case standard, onlyMarked(r), r.UIDRange != nil:
			continue
		case r.OifName != "", r.IifName == "lo":
			continue // for sockets of the host
		case leadsToMain(r):
			continue
		case r.Table == 0 && plainRule(r) && !vrfs:
			continue // l3mdev, without a VRF to apply to
		}
		s.ignored = append(s.ignored, describeRule(r))
	}
	return s
}

// leadsToMain says that the packets of a rule take a table that Weir looks at, with all routes.
func leadsToMain(r *netlink.Rule) bool {
	followed := r.Table == unix.RT_TABLE_LOCAL || r.Table == unix.RT_TABLE_MAIN || r.Table == unix.RT_TABLE_DEFAULT
	return followed && r.Goto <= 0 && r.SuppressPrefixlen < 0 && r.SuppressIfgroup < 0
}

// onlyMarked says that a rule applies to packets with a firewall mark only:
// Weir's have none.
func onlyMarked(r *netlink.Rule) bool {
	return !r.Invert && r.Mark != 0 && (r.Mask == nil || *r.Mask&r.Mark != 0)
}

func defaultPriority(r *netlink.Rule) bool {
	switch r.Table {
	case unix.RT_TABLE_LOCAL:
		return r.Priority == 0
	case unix.RT_TABLE_MAIN:
		return r.Priority == 32766
	}
	return r.Priority == 32767
}

// plainRule says that a rule has no condition.
func plainRule(r *netlink.Rule) bool {
	return !r.Invert && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && r.Mark == 0 &&
		r.Tos == 0 && r.TunID == 0 && r.Goto <= 0 && r.Dport == nil && r.Sport == nil && r.IPProto <= 0 &&
		r.UIDRange == nil && r.SuppressPrefixlen < 0 && r.SuppressIfgroup < 0
}

func describeRule(r *netlink.Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: from ", r.Priority)
	if r.Src == nil {
		b.WriteString("all")
	} else {
		b.WriteString(r.Src.String())
	}
	if r.Dst != nil {
		fmt.Fprintf(&b, " to %s", r.Dst)
	}
	if r.IifName != "" {
		fmt.Fprintf(&b, " iif %s", r.IifName)
	}
	if r.OifName != "" {
		fmt.Fprintf(&b, " oif %s", r.OifName)
	}
	switch {
	case r.Type > unix.RTN_UNICAST:
		fmt.Fprintf(&b, " %s", map[uint8]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}[r.Type])
	case r.Goto > 0:
		fmt.Fprintf(&b, " goto %d", r.Goto)
	case r.Table == 0:
		b.WriteString(" lookup [l3mdev-table]")
	default:
		fmt.Fprintf(&b, " lookup %d", r.Table)
	}
	if r.Family == unix.AF_INET6 {
		b.WriteString(" (IPv6)")
	}
	return b.String()
}
