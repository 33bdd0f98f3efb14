package route

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Unfollowed is the list of routing rules that may concern a packet of Weir and that it does not
// follow: those of VRFs, by TOS, with goto, or that suppress groups of interfaces.
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
const NotFollowed = "routing rule is not followed: the next rules decide"

// UnfollowedRules are the rules of Unfollowed in the calling thread's network namespace.
func UnfollowedRules() ([]string, error) {
	c, err := dial(netns.None())
	if err != nil {
		return nil, err
	}
	defer c.close()
	list, err := c.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make(map[int]*link)
	for _, l := range list {
		links[l.Attrs().Index] = newLink(l)
	}
	rules, err := c.rules()
	return judgeRules(rules, links).ignored, err
}

// ruleSet is the meaning of the routing rules for Weir.
type ruleSet struct {
	// custom4 says that IPv4 has rules beyond the default ones: the kernel
	// then keeps the local table apart from main.
	custom4 bool
	// followed are the rules that concern packets of Weir, in the kernel's order.
	followed []rule
	// ignored describes the rules that concern them and are not followed.
	ignored []string
}

// tables are the numbers of the routing tables that rules name, local and main among them.
func (s *ruleSet) tables() []int {
	list := []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN}
	for i := range s.followed {
		if table := s.followed[i].table; table != 0 && !slices.Contains(list, table) {
			list = append(list, table)
		}
	}
	return list
}

// judgeRules sorts routing rules into those that Weir follows, those that concern none of its
// packets, and those that it does not know.
func judgeRules(rules []kernelRule, links map[int]*link) ruleSet {
	var s ruleSet
	for i := range rules {
		r := &rules[i]
		if r.family == unix.AF_INET && !r.isDefault() {
			s.custom4 = true
		}
		switch f, known := newRule(r, links); {
		case !known:
			s.ignored = append(s.ignored, r.String())
		case f != nil:
			s.followed = append(s.followed, *f)
		}
	}
	return s
}

// newRule is a rule as Weir follows it. It is nil if the rule concerns no packet of Weir; known is
// false if Weir cannot follow it.
func newRule(r *kernelRule, links map[int]*link) (f *rule, known bool) {
	f = &rule{is4: r.family == unix.AF_INET, not: r.not, table: r.table, suppress: r.suppressLength}
	if neverMet(r, links) {
		if !r.not {
			return nil, true
		}
		f.not = false // all packets
	} else {
		f.src, f.dst, f.proto, f.sports, f.dports = r.src, r.dst, r.proto, r.sports, r.dports
		f.in = linkNamed(links, r.in)
	}
	switch {
	case r.vrf && !slices.ContainsFunc(slices.Collect(maps.Values(links)), (*link).isVRF):
		return nil, true
	case r.vrf, r.tos != 0, r.suppressGroup >= 0, r.unknown != 0:
		return nil, false
	}
	switch r.action {
	case actionTable:
		return f, true
	case actionNop:
		return nil, true
	case actionBlackhole:
		f.end = Blackhole
	case actionUnreachable:
		f.end = Unreachable
	case actionProhibit:
		f.end = Prohibit
	default:
		return nil, false
	}
	f.ends, f.table, f.suppress = true, 0, -1
	return f, true
}

func (l *link) isVRF() bool { return l.kind == "vrf" }

// neverMet reports whether a condition of a rule holds for no packet of Weir: it has no firewall
// mark, is forwarded, and belongs to no socket, which the kernel takes for root's, and no tunnel.
func neverMet(r *kernelRule, links map[int]*link) bool {
	return r.mark&r.mask != 0 || r.out != "" || r.tun || r.in == "lo" ||
		r.uids[0] <= r.uids[1] && r.uids[0] != 0 ||
		r.in != "" && linkNamed(links, r.in) == 0
}

// linkNamed is the index of an interface, 0 if there is none of the name.
func linkNamed(links map[int]*link, name string) int {
	for index, l := range links {
		if name != "" && l.name == name {
			return index
		}
	}
	return 0
}
