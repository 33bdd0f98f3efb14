package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/topology"
)

func testService(change func(*discovery.Service), addrs ...string) *discovery.Service {
	svc := &discovery.Service{
		Name:  discovery.ServiceName{Namespace: "shop", Name: "web"},
		Ports: []discovery.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
	}
	svc.Policy.External = true
	for _, a := range addrs {
		svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints,
			topology.Endpoint{AddrPort: netip.MustParseAddrPort(a), Ready: true, Serving: true, NodeName: "edge-2"})
	}
	if change != nil {
		change(svc)
	}
	return svc
}

// The JSON form is a contract: keys, nulls, empty lists, order.
func TestJSONContract(t *testing.T) {
	q := Question{Services: []*discovery.Service{
		testService(func(s *discovery.Service) { s.Policy.ExternalLocal = true }, "10.1.2.3:80", "[fd00::1]:80"),
		testService(func(s *discovery.Service) { s.Name.Name = "api"; s.Policy.External = false }),
	}, Node: topology.Node{Name: "edge-1"}}
	out, err := q.Answer()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := out.writeJSON(&b); err != nil {
		t.Fatal(err)
	}
	got := b.Bytes()
	var v struct {
		Services []map[string]any `json:"services"`
	}
	if err := json.Unmarshal(got, &v); err != nil {
		t.Fatal(err)
	}
	port := func(i int) map[string]any { return v.Services[i]["ports"].([]any)[0].(map[string]any) }
	for _, extra := range []string{"detail", "byFamily"} {
		delete(port(0), extra)
		delete(port(1), extra)
	}
	want := []map[string]any{
		{"namespace": "shop", "name": "api", "errors": []any{}, "ports": []any{map[string]any{
			"name": "http", "protocol": "TCP", "port": 80.0, "nodePort": 30080.0,
			"cluster": map[string]any{"tier": "none", "endpoints": []any{}}, "local": nil, "hasAnyEndpoints": false,
		}}},
		{"namespace": "shop", "name": "web", "errors": []any{}, "ports": []any{map[string]any{
			"name": "http", "protocol": "TCP", "port": 80.0, "nodePort": 30080.0,
			"cluster": map[string]any{"tier": "all", "endpoints": []any{"10.1.2.3:80", "[fd00::1]:80"}},
			"local":   map[string]any{"tier": "none", "endpoints": []any{}}, "hasAnyEndpoints": true,
		}}},
	}
	if diff := cmp.Diff(want, v.Services); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

func TestFamiliesWithUnequalTiers(t *testing.T) {
	v4, v6 := &Choice{Tier: "same-zone", Endpoints: []string{"a"}}, &Choice{Tier: "all", Endpoints: []string{"b", "c"}}
	none := &Choice{Tier: "none", Endpoints: []string{}}
	for _, c := range []struct {
		v4, v6  *Choice
		primary bool
		tier    string
		n       int
	}{
		{v4, v6, false, "same-zone", 3},
		{v4, v6, true, "all", 3},
		{none, v6, false, "all", 2},
		{v4, none, true, "same-zone", 1},
	} {
		if got := join(c.v4, c.v6, c.primary); got.Tier != c.tier || len(got.Endpoints) != c.n {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if join(nil, nil, false) != nil {
		t.Error("a policy that is not in use")
	}
	spilt := &Choice{Tier: "same-zone", Endpoints: []string{"a", "b"}, Shares: []float64{0.9, 0.1}}
	if got := join(spilt, v6, false); !cmp.Equal(got.Shares, []float64{0.9, 0.1, 0.5, 0.5}) {
		t.Errorf("shares %v", got.Shares)
	}
}

// answer is a daemon that explains.
type answer struct {
	api.Source
	services []*discovery.Service
	report   *manifest.Report
}

func (a *answer) Explain(_ context.Context, query api.ExplainQuery) (api.Stream, error) {
	q := Question{Services: a.services, Node: topology.Node{Name: "edge-1"}, Report: a.report}
	if err := q.Parse(query); err != nil {
		return nil, err
	}
	out, err := q.Answer()
	if err != nil {
		return nil, err
	}
	return out.WriteFields, nil
}

func TestRunningDaemonIsAsked(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "weir.sock")
	l, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	daemon := &answer{services: []*discovery.Service{testService(nil, "10.1.2.3:80")}}
	go func() { done <- api.Serve(ctx, l, daemon, api.Access{}, slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	run := func(args ...string) (string, error) {
		cmd := Command()
		var b strings.Builder
		cmd.SetOut(&b)
		cmd.SetErr(&b)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append(args, "--admin-socket", socket))
		err := cmd.ExecuteContext(ctx)
		return b.String(), err
	}
	text, err := run("--service", "shop/web")
	if err != nil || !strings.Contains(text, "10.1.2.3:80  edge-2") {
		t.Errorf("%v\n%s", err, text)
	}
	if text, err = run("-o", "json"); err != nil || !strings.Contains(text, `"tier": "all"`) {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err = run("--service", "shop/none"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("unknown Service: %v", err)
	}
	if text, err = run("--what-if", "drain=10.1.2.3"); err != nil || !strings.Contains(text, "cluster: 0.0 % of new flows would move, tier terminating") {
		t.Errorf("%v\n%s", err, text)
	}
	if text, err = run("--what-if", "node=edge-2"); err != nil || !strings.Contains(text, "cluster: 100.0 % of new flows would move, tier none") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, nothing := range []string{"drain=10.1.2.3:81", "drain=10.1.2.4", "node=edge-3", "zone=a"} {
		if text, err = run("--what-if", nothing); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v\n%s", nothing, err, text)
		}
	}
	daemon.services[0].Ports[0].Endpoints[0].Zone = "a"
	if text, err = run("--what-if", "zone=a"); err != nil || !strings.Contains(text, "nobody would serve them") {
		t.Errorf("%v\n%s", err, text)
	}
	daemon.services = []*discovery.Service{testService(func(s *discovery.Service) { s.Errors = []string{"spec: bad"} })}
	daemon.report = &manifest.Report{Errors: []manifest.Error{{File: "a.yaml", Reason: "not text"}}}
	_, err = run()
	var exit *exitError
	if !errors.As(err, &exit) || exit.status != exitFaults || err.Error() != "a.yaml: not text\nService shop/web: spec: bad" {
		t.Errorf("a Service with errors: %v", err)
	}
}

func TestWhatIfSharesAddUp(t *testing.T) {
	svc := testService(nil, "10.1.1.1:80", "10.1.1.2:80", "10.1.1.3:80", "[fd00::1]:80", "[fd00::2]:80")
	q := Question{Services: []*discovery.Service{svc}, Node: topology.Node{Name: "edge-1"}}
	if err := q.Parse(api.ExplainQuery{WhatIf: "drain=10.1.1.1"}); err != nil {
		t.Fatal(err)
	}
	m := q.explain(q.subjects()[0], nil, nil).Ports[0].WhatIf.Cluster
	// A third of the IPv4 half.
	if m.Moved < 0.166 || m.Moved > 0.167 || len(m.From) != 1 || len(m.To) != 2 || m.Tier != "all" {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"", "drain", "drain=", "drain=x", "drain=10.1.1.1:0", "pod=a"} {
		if _, err := ParseChange(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if c, err := ParseChange("drain=[fd00::1]:80"); err != nil || c.port != 80 || c.String() != "drain=[fd00::1]:80" {
		t.Errorf("%+v %v", c, err)
	}
}
