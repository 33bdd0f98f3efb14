package e2e

import (
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/doctor"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// Rules of the firewall that are void for packets to frontends, and routing rules that are not
// followed, are named before Weir takes traffic and afterwards.
func TestWireRulesOfTheHostAreNamed(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	node := f.Edge.Edge
	must(t, node.Do(func() error {
		return exec.Command("nft", "table inet guard {\nchain pre {\ntype filter hook prerouting priority raw;\n"+
			"ip saddr 10.10.0.2 tcp dport 30000-32000 drop\nudp dport 9 drop\n}\n}\n").Run()
	}))
	rule := netlink.NewRule()
	_, from, err := net.ParseCIDR("10.60.0.0/24")
	must(t, err)
	rule.Src, rule.Tos, rule.Table, rule.Priority, rule.Family = from, 0x10, 110, 100, netlink.FAMILY_V4
	must(t, node.Netlink().RuleAdd(rule))

	const void, unfollowed = "dport 30000-32000 drop", "100: from 10.60.0.0/24 tos 0x10 lookup 110"
	named := func(where, text string) {
		t.Helper()
		for _, want := range []string{void, unfollowed} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not name %q:\n%s", where, want, text)
			}
		}
		if strings.Contains(text, "dport 9 drop") {
			t.Errorf("%s names a rule of no frontend:\n%s", where, text)
		}
	}
	warnings := func(r doctor.Report) string {
		var lines []string
		for _, found := range r.Findings {
			if found.Verdict == doctor.Warning {
				lines = append(lines, found.Subject+": "+found.Fact)
			}
		}
		return strings.Join(lines, "\n")
	}
	stdout, stderr, _ := f.check(t)
	named("check", stdout+stderr)
	before, _ := f.doctor(t, f.command("doctor", "-o", "json", "--config", f.path("config.yaml")))
	named("doctor before the start", warnings(before))
	must(t, f.start())
	after, _ := f.doctor(t, f.command("doctor", "-o", "json", "--config", f.path("config.yaml")))
	named("doctor beside Weir", warnings(after))
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	if !slices.ContainsFunc(status.Problems, func(p problem.Problem) bool {
		return p.Kind == problem.RoutingRule && p.Severity == problem.Warning && strings.Contains(p.Reason, unfollowed)
	}) {
		t.Errorf("no problem of the routing rule in %v", status.Problems)
	}
	named("the log", f.weir.LogTail(1000))
}
