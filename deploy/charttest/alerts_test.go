package charttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// alertRules are the alerts of the chart.
func alertRules(t *testing.T) *monitoringv1.PrometheusRuleSpec {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := new(monitoringv1.PrometheusRuleSpec)
	if err := yaml.UnmarshalStrict(text, rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// ruleTests are tests of promtool, as far as they name alerts that are to fire.
type ruleTests struct {
	Tests []struct {
		AlertRules []struct {
			Name   string     `json:"alertname"`
			Alerts []struct{} `json:"exp_alerts"`
		} `json:"alert_rule_test"`
		Queries []struct {
			Query   string `json:"expr"`
			Samples []struct {
				Labels string `json:"labels"`
			} `json:"exp_samples"`
		} `json:"promql_expr_test"`
	} `json:"tests"`
}

// alertName is an alert in a query or in labels.
var alertName = regexp.MustCompile(`alertname="(\w+)"`)

// firing are the alerts of which a test says that they fire.
func (r *ruleTests) firing() map[string]bool {
	names := map[string]bool{}
	add := func(text string) {
		for _, m := range alertName.FindAllStringSubmatch(text, -1) {
			names[m[1]] = true
		}
	}
	for _, test := range r.Tests {
		for _, a := range test.AlertRules {
			names[a.Name] = names[a.Name] || len(a.Alerts) > 0
		}
		for _, q := range test.Queries {
			for _, s := range q.Samples {
				add(q.Query)
				add(s.Labels)
			}
		}
	}
	return names
}

// Prometheus' own program accepts the rules, and each alert fires for its fault.
func TestAlertsFireForTheFault(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("no promtool: see .ci/programs")
		}
		t.Skip("no promtool: see .ci/programs")
	}
	for _, args := range [][]string{{"check", "rules", chartDir + "/alerts.yaml"}, append([]string{"test", "rules"}, faults(t)...)} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// faults are the files of promtool's tests.
func faults(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/alerts*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return files
}

// Each alert has a fault in testdata at which it fires. That none fires in ordinary traffic is
// a test of cmd/weir/e2e, TestWireOrdinaryTrafficRaisesNoAlert, over all alerts.
func TestEachAlertHasAFaultAtWhichItFires(t *testing.T) {
	fires := map[string]bool{}
	for _, file := range faults(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r ruleTests
		if err := yaml.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, ok := range r.firing() {
			fires[name] = fires[name] || ok
		}
	}
	for _, g := range alertRules(t).Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] {
				t.Errorf("%s: no test in testdata/alerts*.yaml in which it fires", r.Alert)
			}
		}
	}
}

// Each kind of problem that is an error has an alert, and a kind that the owner of a Service is
// told of has that about objects: an owner's mistake is no fault of a node.
func TestEachKindOfProblemHasAnAlert(t *testing.T) {
	text, err := os.ReadFile("../../cmd/weir/problem/README.md")
	if err != nil {
		t.Fatal(err)
	}
	owners := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| error \\|.*\\| `\\w+` \\|$").FindAllStringSubmatch(string(text), -1)
	if len(owners) < 5 {
		t.Fatalf("the reference of problems has %d errors of Services only", len(owners))
	}
	exprs := map[string]string{}
	for _, g := range alertRules(t).Groups {
		for _, r := range g.Rules {
			exprs[r.Alert] = r.Expr.String()
		}
	}
	objects := kinds(t, exprs["WeirInvalidObjects"], `kind=~"([^"]+)"`)
	apart := kinds(t, exprs["WeirProblems"], `kind!~"([^"]+)"`)
	for _, m := range owners {
		if !objects[m[1]] && m[1] != "unsupported-field" {
			t.Errorf("%s is told to the owner of a Service, and is not of WeirInvalidObjects", m[1])
		}
	}
	for kind := range objects {
		if !apart[kind] {
			t.Errorf("%s is of WeirInvalidObjects, and of WeirProblems too", kind)
		}
	}
	elsewhere := map[string]string{"api-server": "WeirAPIServerAway", "state-file": "WeirStateFile", "unsupported-field": ""}
	for kind := range apart {
		if alert, ok := elsewhere[kind]; !objects[kind] && (!ok || alert != "" && exprs[alert] == "") {
			t.Errorf("%s is of no alert", kind)
		}
	}
}

// kinds are the alternatives of a label's pattern in an expression.
func kinds(t *testing.T, expr, pattern string) map[string]bool {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(expr)
	if m == nil {
		t.Fatalf("no %s in %s", pattern, expr)
	}
	out := map[string]bool{}
	for _, kind := range regexp.MustCompile(`[a-z-]+`).FindAllString(m[1], -1) {
		out[kind] = true
	}
	return out
}
