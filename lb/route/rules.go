package route

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
		case r.Table == 0 && plainRule(r) && !vrfs:
			continue // l3mdev, without a VRF to apply to
		}
		s.ignored = append(s.ignored, describeRule(r))
	}
	return s
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
	fmt.Fprintf(&b, " lookup %d", r.Table)
	if r.Family == unix.AF_INET6 {
		b.WriteString(" (IPv6)")
	}
	return b.String()
}
