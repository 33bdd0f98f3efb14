package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

const (
	chartAlerts   = "../../../deploy/helm/weir/alerts.yaml"
	dashboardFile = "../../../deploy/grafana/weir.json"
)

// withoutData are panels that have nothing to show in the lab, with the reason.
var withoutData = map[string]string{
	"Network programming latency": "of a cluster alone",
	"Nodes that differ":           "there is a single node",
	"Publication":                 "Services do not change meanwhile",
}

// prometheus is Debian's Prometheus on the edge node.
type prometheus struct {
	process *netlab.Process
	client  http.Client
	log     string
}

const prometheusAddress = "127.0.0.1:9090"

// startPrometheus has it scrape Weir and evaluate the chart's rules, several times a second.
func (f *fixture) startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		labtest.Skip(t, "no prometheus: see .ci/programs")
	}
	rules, err := filepath.Abs(chartAlerts)
	must(t, err)
	must(t, os.WriteFile(f.path("prometheus.yml"), fmt.Appendf(nil, `
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [%s]
scrape_configs:
- job_name: weir
  static_configs: [{targets: ["127.0.0.1:9464"]}]
`, rules), 0o644))
	p := &prometheus{log: f.path("prometheus.log")}
	p.client = http.Client{Timeout: within, Transport: &http.Transport{DialContext: f.Edge.Edge.DialContext}}
	log, err := os.Create(p.log)
	must(t, err)
	defer log.Close()
	cmd := exec.Command(program, "--config.file="+f.path("prometheus.yml"), "--storage.tsdb.path="+f.path("prometheus"),
		"--web.listen-address="+prometheusAddress)
	cmd.Stdout, cmd.Stderr = log, log
	p.process, err = f.Edge.Edge.Start(cmd)
	must(t, err)
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		if err := p.process.Stop(within); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			text, _ := os.ReadFile(p.log)
			t.Logf("prometheus said:\n%s", text)
		}
	})
	return p
}

// get asks the API of Prometheus.
func (p *prometheus) get(ctx context.Context, path string, query url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+prometheusAddress+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// hasData reports whether a query of the dashboard has a result in the time range of a panel, with
// the values of all variables.
func (p *prometheus) hasData(ctx context.Context, query string, variables map[string][]string) error {
	now := time.Now()
	var found struct{ Result []json.RawMessage }
	err := p.get(ctx, "/api/v1/query_range", url.Values{
		"query": {interpolated(query, variables)}, "step": {"1"},
		"start": {fmt.Sprint(now.Add(-time.Minute).Unix())}, "end": {fmt.Sprint(now.Unix())},
	}, &found)
	if err == nil && len(found.Result) == 0 {
		err = errors.New("no data")
	}
	return err
}

// inRegexp are the characters that Grafana escapes in values of variables for Prometheus, twice,
// since the expression is in a string.
var inRegexp = regexp.MustCompile(`[\\^$*+?.()|{}\[\]]`)

// interpolated is a query with all values of the variables selected, in Grafana's form.
func interpolated(query string, variables map[string][]string) string {
	query = strings.ReplaceAll(query, "$__rate_interval", "3s")
	for name, values := range variables {
		var escaped []string
		for _, v := range values {
			escaped = append(escaped, inRegexp.ReplaceAllString(v, `\\$0`))
		}
		query = strings.ReplaceAll(query, "$"+name, "("+strings.Join(escaped, "|")+")")
	}
	return query
}

// values are those of a variable of the dashboard.
func (p *prometheus) values(ctx context.Context, definition string, variables map[string][]string) ([]string, error) {
	m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(definition)
	if m == nil {
		return nil, fmt.Errorf("%q is not understood", definition)
	}
	var values []string
	err := p.get(ctx, "/api/v1/label/"+m[2]+"/values", url.Values{"match[]": {interpolated(m[1], variables)}}, &values)
	if err == nil && len(values) == 0 {
		err = errors.New("no values")
	}
	return values, err
}

// evaluates reports whether Prometheus has evaluated all alerts of the chart without a fault.
func (p *prometheus) evaluates(ctx context.Context, alerts []string) error {
	var loaded struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := p.get(ctx, "/api/v1/rules", nil, &loaded); err != nil {
		return err
	}
	health := map[string]string{}
	for _, g := range loaded.Groups {
		for _, r := range g.Rules {
			health[r.Name] = r.Health + r.LastError
		}
	}
	for _, name := range alerts {
		if health[name] != "ok" {
			return fmt.Errorf("alert %s: %q", name, health[name])
		}
	}
	return nil
}

// dashboard are queries and variables of the dashboard.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

// Prometheus of Debian scrapes a Weir with traffic. It loads and evaluates all alerts of the
// chart, and has data for each query of the dashboard.
func TestWirePrometheusHasDataForTheDashboard(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toAttached, toNothing}, extra: "metricsBindAddress: 127.0.0.1:9464"})
	p := f.startPrometheus(t)
	var d dashboard
	text, err := os.ReadFile(dashboardFile)
	must(t, err)
	must(t, json.Unmarshal(text, &d))
	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	text, err = os.ReadFile(chartAlerts)
	must(t, err)
	must(t, yaml.Unmarshal(text, &rules))
	var alerts []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts = append(alerts, r.Alert)
		}
	}
	if len(alerts) < 10 || len(d.Panels) < 30 {
		t.Fatalf("%d alerts, %d panels", len(alerts), len(d.Panels))
	}
	must(t, f.exchangeOnce(toAttached, false))
	if f.exchangeOnce(toNothing, false) == nil {
		t.Error("a Service without endpoints answers")
	}
	must(t, f.poll(func(ctx context.Context) error { return p.evaluates(ctx, alerts) }))
	variables := map[string][]string{}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		if err := f.poll(func(ctx context.Context) (err error) {
			variables[v.Name], err = p.values(ctx, v.Definition, variables)
			return err
		}); err != nil {
			t.Errorf("variable %s: %v", v.Definition, err)
		}
	}
	for _, panel := range d.Panels {
		for _, q := range panel.Targets {
			if withoutData[panel.Title] != "" {
				continue
			}
			if err := f.poll(func(ctx context.Context) error { return p.hasData(ctx, q.Expr, variables) }); err != nil {
				t.Errorf("%s: %v\n%s", panel.Title, err, interpolated(q.Expr, variables))
			}
		}
	}
}
