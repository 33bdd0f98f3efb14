package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// deploy/PROBES.md has a row for each probe of the code and each metric of an alert, with tests that
// there are.
func TestTheTableOfProbesIsComplete(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	row, code := map[string]bool{}, regexp.MustCompile("`([^`]+)`")
	exists := testFunctions(t)
	for line := range strings.Lines(read("deploy/PROBES.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") || strings.TrimSpace(cells[len(cells)-1]) == "Tests" {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[0], -1) {
			row[m[1]] = true
		}
		tests := code.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(tests) == 0 {
			t.Errorf("no test for: %s", strings.TrimSpace(cells[0]))
		}
		for _, m := range tests {
			if !exists[m[1]] {
				t.Errorf("%s: there is no test %s", strings.TrimSpace(cells[0]), m[1])
			}
		}
	}
	probes := regexp.MustCompile(`"GET (/\w+)"`).FindAllStringSubmatch(read("cmd/weir/healthz/healthz.go"), -1)
	var alerts struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal([]byte(read("deploy/helm/weir/alerts.yaml")), &alerts); err != nil {
		t.Fatal(err)
	}
	var metrics []string
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			metrics = append(metrics, regexp.MustCompile(`\bweir_\w+`).FindAllString(r.Expr, -1)...)
		}
	}
	if len(probes) != 3 || len(metrics) < 30 {
		t.Fatalf("%d probes and %d metrics were found", len(probes), len(metrics))
	}
	for _, m := range probes {
		if !row[m[1]] {
			t.Errorf("no row for %s", m[1])
		}
	}
	for _, m := range metrics {
		if !row[m] {
			t.Errorf("no row for %s", m)
		}
	}
}
