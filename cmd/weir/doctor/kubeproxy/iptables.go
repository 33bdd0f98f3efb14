package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
)

// savers print the rules of all tables that there are, by family; with the option -t they would
// make a table. Those of the legacy variant are in another part of the kernel.
var savers = map[bool][]string{
	false: {"iptables-save", "iptables-legacy-save"},
	true:  {"ip6tables-save", "ip6tables-legacy-save"},
}

// errNoProgram: the kernel shows these rules to iptables alone, in a form that is not
// documented.
var errNoProgram = errors.New("iptables: there are rules, and no iptables-save to read them")

// readIPTables reads what iptables-save prints.
func readIPTables(to *Rules) error {
	var errs []error
	if _, err := exec.LookPath(savers[false][0]); err != nil && hasIPTables() {
		return errNoProgram
	}
	for six, programs := range savers {
		for _, name := range programs {
			path, err := exec.LookPath(name)
			if err != nil {
				continue
			}
			out, err := save(path)
			if err != nil {
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
				}
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			if parseIPTables(string(out), six, to) {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// saveTime bounds a program that reads the rules: tens of thousands take seconds.
const saveTime = 30 * time.Second

// save returns what the program prints.
func save(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), saveTime, fmt.Errorf("no answer in %v", saveTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.WaitDelay = time.Second // a child of the program may hold its output open
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return out, err
}

// hasIPTables reports whether there are tables of iptables, of either variant.
func hasIPTables() bool {
	// thread-self: /proc/net would be that of the first thread.
	names, _ := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if strings.Contains(string(names), "nat") {
		return true
	}
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	return err == nil && slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == "KUBE-SERVICES" })
}

// iptRule is a rule, as far as it matters.
type iptRule struct {
	to       netip.Addr // -d of a single address
	toPrefix bool       // -d of more
	protocol string
	port     uint16 // --dport
	target   string // -j or -g
	dnat     netip.AddrPort
	// source: it is only for some clients, or for session affinity.
	source bool
	// local: it is for the addresses of the node.
	local bool
}

// parseIPTables reads the output of iptables-save, and reports whether it has frontends. Those with
// endpoints are in the table nat, those without in the table filter.
func parseIPTables(text string, six bool, to *Rules) (found bool) {
	tables := iptChains(text)
	found = parseIPTNAT(tables["nat"], six, to)
	return parseIPTRefused(tables["filter"], six, to) || found
}

// iptChains are the rules of kube-proxy by table and chain.
func iptChains(text string) map[string]map[string][]iptRule {
	tables := map[string]map[string][]iptRule{}
	var chains map[string][]iptRule
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			chains = map[string][]iptRule{}
			tables[strings.TrimSpace(name)] = chains
		}
		rest, ok := strings.CutPrefix(line, "-A ")
		if !ok || chains == nil {
			continue
		}
		chain, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if strings.HasPrefix(chain, "KUBE-") {
			chains[chain] = append(chains[chain], parseIPTRule(splitQuoted(rest)))
		}
	}
	return tables
}

// parseIPTRefused reads the frontends without endpoints: REJECT, or DROP where only other nodes
// have endpoints. These may have rules for clients on the node in the table nat, too.
func parseIPTRefused(chains map[string][]iptRule, six bool, to *Rules) (found bool) {
	for _, from := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"} {
		for _, r := range chains[from] {
			if r.target != "REJECT" && r.target != "DROP" || r.port == 0 || r.source || r.toPrefix || r.to.IsValid() == r.local {
				continue
			}
			f := Frontend{Addr: r.to, IPv6: six, Port: r.port, Protocol: r.protocol}
			if _, ok := to.Frontends[f]; !ok {
				to.Frontends[f] = Target{}
			}
			found = true
		}
	}
	return found
}

// parseIPTNAT reads the frontends with endpoints.
func parseIPTNAT(chains map[string][]iptRule, six bool, to *Rules) (found bool) {
	for _, r := range chains["KUBE-SERVICES"] {
		if r.target == "KUBE-NODEPORTS" && r.to.IsValid() {
			to.NodePorts = append(to.NodePorts, r.to)
		}
	}
	for _, from := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS"} {
		for _, r := range chains[from] {
			nodePort := from == "KUBE-NODEPORTS"
			if r.port == 0 || r.source || r.toPrefix || r.to.IsValid() == nodePort || r.target == "KUBE-MARK-MASQ" {
				continue
			}
			f := Frontend{Addr: r.to, IPv6: six, Port: r.port, Protocol: r.protocol}
			to.Frontends[f] = Target{
				External:  strings.HasPrefix(r.target, "KUBE-EXT-") || strings.HasPrefix(r.target, iptSourceRanges),
				Endpoints: sorted(iptEndpoints(chains, r.target, 0)),
			}
			found = true
		}
	}
	return found
}

// iptSourceRanges begins the names of chains for load balancer IPs with source ranges. Their rules
// ask for the source, and lead the clients that may connect to the same endpoints.
const iptSourceRanges = "KUBE-FW-"

// iptEndpoints are those that a chain leads to.
func iptEndpoints(chains map[string][]iptRule, chain string, depth int) (all []netip.AddrPort) {
	if depth > maxDepth {
		return nil
	}
	for _, r := range chains[chain] {
		switch {
		case r.source && !strings.HasPrefix(chain, iptSourceRanges):
		case r.dnat.IsValid():
			all = append(all, r.dnat)
		case strings.HasPrefix(r.target, "KUBE-"):
			all = append(all, iptEndpoints(chains, r.target, depth+1)...)
		}
	}
	return all
}

func parseIPTRule(words []string) (r iptRule) {
	for i := range words {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch words[i] {
		case "-s", "-i", "--src-type", "--rcheck":
			r.source = true
		case "-d":
			if i > 0 && words[i-1] == "!" { // node ports are on every address but the loopback's
				continue
			}
			p, err := netip.ParsePrefix(value)
			r.toPrefix = err != nil || !p.IsSingleIP()
			if !r.toPrefix {
				r.to = p.Addr()
			}
		case "--dst-type":
			r.local = value == "LOCAL"
		case "-p":
			r.protocol = strings.ToUpper(value)
		case "--dport":
			n, _ := strconv.ParseUint(value, 10, 16) // 0 is skipped
			r.port = uint16(n)
		case "-j", "-g":
			r.target = value
		case "--to-destination":
			r.dnat, _ = netip.ParseAddrPort(value)
		}
	}
	return r
}

// splitQuoted splits at blanks outside of double quotes, which it takes off.
func splitQuoted(s string) (words []string) {
	var word strings.Builder
	quoted, began := false, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted && i+1 < len(s):
			i++
			word.WriteByte(s[i])
		case c == '"':
			quoted, began = !quoted, true
		case c == ' ' && !quoted:
			if began {
				words = append(words, word.String())
			}
			word.Reset()
			began = false
		default:
			word.WriteByte(c)
			began = true
		}
	}
	if began {
		words = append(words, word.String())
	}
	return words
}
