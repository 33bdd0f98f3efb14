package firewall

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// readLegacy reads the tables of the older iptables, which the kernel shows by the program
// iptables-legacy-save alone. It does nothing where the kernel has no such tables.
func readLegacy(to *Rules) {
	for _, six := range []bool{false, true} {
		names, program := "/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"
		if six {
			names, program = "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"
		}
		if tables, err := os.ReadFile(names); err != nil || len(bytes.TrimSpace(tables)) == 0 {
			continue
		}
		out, err := exec.Command(program).Output()
		if err != nil {
			to.Unread = append(to.Unread, fmt.Sprintf("the older iptables: %s: %v", program, err))
			continue
		}
		parseSaved(to, out, six)
	}
}

// savedRule is a rule as iptables-save prints it.
type savedRule struct {
	conditions []condition
	target     string
}

// parseSaved reads the output of iptables-save.
func parseSaved(to *Rules, out []byte, six bool) {
	family := "ip"
	if six {
		family = "ip6"
	}
	var table string
	chains, policy := map[string][]savedRule{}, map[string]string{}
	flush := func() {
		for _, hook := range []string{"PREROUTING", "INPUT", "FORWARD"} {
			s := saved{to: to, chains: chains, table: family + " " + table, hook: strings.ToLower(hook), six: six, left: maxRules}
			s.follow(hook, nil, 0)
			if policy[hook] == "DROP" {
				s.add(hook, nil, "policy drop")
			}
		}
		chains, policy = map[string][]savedRule{}, map[string]string{}
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0 || words[0] == "#":
		case strings.HasPrefix(words[0], "*"):
			table = words[0][1:]
		case strings.HasPrefix(words[0], ":") && len(words) > 1:
			name := words[0][1:]
			policy[name] = words[1]
			if program := enforcer(name); program != "" {
				to.Enforcers = append(to.Enforcers, program)
			}
		case words[0] == "-A" && len(words) > 1:
			chains[words[1]] = append(chains[words[1]], parseSavedRule(words[2:]))
		case words[0] == "COMMIT":
			flush()
		}
	}
}

// parseSavedRule reads the words of a rule behind its chain.
func parseSavedRule(words []string) (r savedRule) {
	equal := true
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		used := true
		switch words[i] {
		case "!":
			equal = false
			continue
		case "-i":
			r.conditions = append(r.conditions, interfaceCondition(strings.Replace(value, "+", "*", 1), equal))
		case "-p":
			if n, ok := protocolNumber(value); ok {
				r.conditions = append(r.conditions, protocolCondition(n, equal))
			}
		case "-d":
			if p, err := netip.ParsePrefix(value); err == nil {
				r.conditions = append(r.conditions, addressCondition([]netip.Prefix{p}, equal))
			}
		case "--dport", "--dports":
			if list, ok := parsePorts(value); ok {
				r.conditions = append(r.conditions, portCondition(list, equal))
			}
		case "-s", "-o", "--ctstate", "--state":
			r.conditions = append(r.conditions, condition{text: words[i] + " " + value})
		case "-j", "-g":
			r.target = value
		default:
			used = false
		}
		if used {
			i++
		}
		equal = true
	}
	return r
}

func protocolNumber(name string) (uint8, bool) {
	switch name {
	case "tcp":
		return unix.IPPROTO_TCP, true
	case "udp":
		return unix.IPPROTO_UDP, true
	case "sctp":
		return unix.IPPROTO_SCTP, true
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil
}

func parsePorts(list string) (out [][2]uint16, ok bool) {
	for _, word := range strings.Split(list, ",") {
		lo, hi, isRange := strings.Cut(word, ":")
		from, err := strconv.ParseUint(lo, 10, 16)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(hi, 10, 16)
		}
		if err != nil {
			return nil, false
		}
		out = append(out, [2]uint16{uint16(from), uint16(to)})
	}
	return out, true
}

// saved follows the chains of a table.
type saved struct {
	to          *Rules
	chains      map[string][]savedRule
	table, hook string
	six         bool
	left        int
}

// ends are targets that end a rule.
var ends = []string{"DROP", "REJECT", "DNAT", "REDIRECT", "NFQUEUE", "TPROXY"}

func (s *saved) follow(chain string, conditions []condition, depth int) {
	if depth > maxDepth || isOwn(chain) || enforcer(chain) != "" {
		return
	}
	for _, r := range s.chains[chain] {
		if s.left--; s.left <= 0 {
			return
		}
		all := append(slices.Clone(conditions), r.conditions...)
		if slices.Contains(ends, r.target) {
			s.add(chain, all, strings.ToLower(r.target))
			continue
		}
		s.follow(r.target, all, depth+1)
	}
}

func (s *saved) add(chain string, conditions []condition, end string) {
	six := s.six
	ofFamily := condition{met: func(p *Packet) bool { return !p.To.Addr().IsValid() || p.To.Addr().Is6() == six }}
	r := Rule{Hook: s.hook, Chain: fmt.Sprintf("iptables, table %s, chain %s", s.table, chain), conditions: append(slices.Clone(conditions), ofFamily)}
	r.describe(end)
	s.to.List = append(s.to.List, r)
}
