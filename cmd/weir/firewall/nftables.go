package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Bounds of what is read: a chain may lead to others, and those to others.
const (
	maxDepth = 16
	maxRules = 20_000
)

// families are those of nftables with packets of IP, by name.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyNetdev: "netdev",
}

// ownTables are those of Weir and kube-proxy.
var ownTables = []string{"weir", "kube-proxy"}

// hookName is the name of a hook that packets meet on arrival, "" for another.
func hookName(c *nftables.Chain) string {
	switch {
	case c.Hooknum == nil:
		return ""
	case c.Table.Family == nftables.TableFamilyNetdev:
		if *c.Hooknum == *nftables.ChainHookIngress {
			return "ingress"
		}
		return ""
	}
	switch *c.Hooknum {
	case *nftables.ChainHookPrerouting:
		return "prerouting"
	case *nftables.ChainHookInput:
		return "input"
	case *nftables.ChainHookForward:
		return "forward"
	}
	return ""
}

// tables reads the chains of a table.
type nftReader struct {
	conn   *nftables.Conn
	to     *Rules
	chains map[string]*nftables.Chain // of the table
	rules  map[string][]*nftables.Rule
	hook   string
	left   int // rules that may still be read
}

func readNFTables(to *Rules) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		to.Unread = append(to.Unread, fmt.Sprintf("nftables: %v", err))
		return
	}
	defer func() { _ = conn.CloseLasting() }() // nothing was written
	left := maxRules
	for family, name := range families {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			to.Unread = append(to.Unread, fmt.Sprintf("nftables, family %s: %v", name, err))
			continue
		}
		byTable := map[string][]*nftables.Chain{}
		for _, c := range chains {
			if c.Table.Family == family && !slices.Contains(ownTables, c.Table.Name) {
				byTable[c.Table.Name] = append(byTable[c.Table.Name], c)
			}
		}
		for _, list := range byTable {
			r := nftReader{conn: conn, to: to, chains: map[string]*nftables.Chain{}, rules: map[string][]*nftables.Rule{}, left: left}
			for _, c := range list {
				r.chains[c.Name] = c
				if program := enforcer(c.Name); program != "" {
					to.Enforcers = append(to.Enforcers, program)
				}
			}
			for _, c := range list {
				if r.hook = hookName(c); r.hook != "" {
					r.base(c)
				}
			}
			left = r.left
		}
	}
	slices.SortFunc(to.List, func(a, b Rule) int { return strings.Compare(a.String(), b.String()) })
	to.List = slices.CompactFunc(to.List, func(a, b Rule) bool { return a.String() == b.String() })
}

// base reads the rules that packets meet from a base chain on.
func (r *nftReader) base(c *nftables.Chain) {
	var first []condition
	if c.Device != "" {
		first = append(first, interfaceCondition(c.Device, true))
	}
	r.follow(c, first, 0)
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		r.add(c, first, "policy drop")
	}
}

func (r *nftReader) add(c *nftables.Chain, conditions []condition, end string) {
	rule := Rule{
		Hook: r.hook, Chain: fmt.Sprintf("table %s %s, chain %s", families[c.Table.Family], c.Table.Name, c.Name),
		conditions: slices.Clone(conditions),
	}
	rule.describe(end)
	r.to.List = append(r.to.List, rule)
}

// describe writes the text of a rule.
func (r *Rule) describe(end string) {
	var words []string
	for _, c := range r.conditions {
		if c.text != "" && !slices.Contains(words, c.text) {
			words = append(words, c.text)
		}
		if name, ok := strings.CutPrefix(c.text, "iifname "); ok {
			r.Interfaces = append(r.Interfaces, strings.Split(name, ",")...)
		}
	}
	r.Text = strings.Join(append(words, end), " ")
}

// follow reads the rules of a chain, which packets reach under conditions.
func (r *nftReader) follow(c *nftables.Chain, conditions []condition, depth int) {
	if depth > maxDepth || r.left <= 0 || isOwn(c.Name) || enforcer(c.Name) != "" {
		return
	}
	rules, read := r.rules[c.Name]
	if !read {
		var err error
		if rules, err = r.conn.GetRules(c.Table, c); err != nil {
			r.to.Unread = append(r.to.Unread, fmt.Sprintf("nftables, table %s, chain %s: %v", c.Table.Name, c.Name, err))
		}
		r.rules[c.Name] = rules
	}
	for _, rule := range rules {
		if r.left--; r.left <= 0 {
			return
		}
		s := registers{conn: r.conn, table: c.Table}
		for _, e := range rule.Exprs {
			s.step(e)
		}
		all := append(slices.Clone(conditions), s.conditions...)
		if s.end != "" {
			r.add(c, all, s.end)
		}
		for _, name := range s.jumps {
			if next := r.chains[name]; next != nil {
				r.follow(next, all, depth+1)
			}
		}
	}
}

// verdictOf takes over the verdict of a rule.
func (s *registers) verdictOf(v *expr.Verdict) {
	switch v.Kind {
	case expr.VerdictDrop:
		s.end = "drop"
	case expr.VerdictQueue:
		s.end = "queue"
	case expr.VerdictJump, expr.VerdictGoto:
		s.jumps = append(s.jumps, v.Chain)
	}
}
