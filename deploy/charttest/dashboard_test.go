package charttest

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

const dashboardFile = "../grafana/weir.json"

// metrics are the names of all metrics that Weir exports, from its reference, and up, which is
// of Prometheus itself.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../cmd/weir/metrics/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"up": true, "process_cpu_seconds_total": true, "process_resident_memory_bytes": true}
	for _, m := range regexp.MustCompile("(?m)^\\| `(weir_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
		if m[2] == "histogram" {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				names[m[1]+end] = true
			}
		}
	}
	if text, err = os.ReadFile("../POOLS.md"); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(weir_(?:pool|controller)_[a-z_]+)").FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	if len(names) < 20 {
		t.Fatalf("the reference names %d metrics only", len(names))
	}
	return names
}

// checkQuery parses a PromQL expression and looks for metrics that there are
// not.
func checkQuery(t *testing.T, where, query string, known map[string]bool) {
	t.Helper()
	expr, err := parser.ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, query)
		return
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok && !known[v.Name] {
			t.Errorf("%s: there is no metric %s", where, v.Name)
		}
		return nil
	})
}

func TestDashboardAsksForMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ H, W, X, Y int }
			Targets                  []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	known := metrics(t)
	place, id := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if id[p.ID] {
			t.Errorf("%s: its id is another panel's", p.Title)
		}
		id[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if place[at] != "" {
					t.Fatalf("%s lies on %s", p.Title, place[at])
				}
				place[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: no description or no query", p.Title)
		}
		for _, q := range p.Targets {
			checkQuery(t, p.Title, q.Expr, known)
		}
	}
}

// The panel of attached interfaces leaves out the veth pair, by the name that it has.
func TestDashboardLeavesOutTheHostVeth(t *testing.T) {
	name, err := os.ReadFile("../../lb/hostveth/addresses.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`XDPEnd += "(.*)"`).FindSubmatch(name)
	if m == nil {
		t.Fatal("addresses.go has no XDPEnd")
	}
	for _, sum := range []string{"sum by (instance) (weir_interface_attached{", "sum by (instance) (1 - weir_interface_attached{"} {
		_, query, ok := strings.Cut(string(text), sum)
		query, _, _ = strings.Cut(query, "}")
		if want := fmt.Sprintf(`device!=\"%s\"`, m[1]); !ok || !strings.Contains(query, want) {
			t.Errorf("%s%s}: no %s", sum, query, want)
		}
	}
}

func TestAlertsAskForMetricsThatThereAre(t *testing.T) {
	runbook, err := os.ReadFile("../ALERTS.md")
	if err != nil {
		t.Fatal(err)
	}
	known, sections := metrics(t), 0
	for _, g := range alertRules(t).Groups {
		for _, r := range g.Rules {
			sections++
			if !strings.Contains(string(runbook), "\n### "+r.Alert+"\n") || !strings.HasSuffix(r.Annotations["runbook_url"], "/deploy/ALERTS.md#"+strings.ToLower(r.Alert)) {
				t.Errorf("%s: no paragraph in ALERTS.md, or no link to it", r.Alert)
			}
			checkQuery(t, r.Alert, r.Expr.String(), known)
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: no severity, summary or description", r.Alert)
			}
		}
	}
	if n := strings.Count(string(runbook), "\n### "); n != sections {
		t.Errorf("ALERTS.md has %d paragraphs, there are %d alerts", n, sections)
	}
}
