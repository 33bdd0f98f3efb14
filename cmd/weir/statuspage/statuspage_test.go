package statuspage

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source has so many Services. The other requests of api.Source would panic: the page must not
// make them.
type source struct {
	api.Source
	services int
	prefix   string // of the names
	fails    atomic.Bool
	asked    atomic.Int64
}

var begun = time.Now().Add(-2 * time.Hour)

func (s *source) name(i int) string {
	return fmt.Sprintf("shop/%s%s-%04d", s.prefix, []string{"checkout", "search", "images", "login", "stock"}[i%5], i)
}

func (s *source) Status(context.Context) (*api.Status, error) {
	s.asked.Add(1)
	if s.fails.Load() {
		return nil, errors.New("no status now")
	}
	n := uint64(time.Since(begun).Milliseconds())
	return &api.Status{
		Version: "v0.2.0", Node: "edge-1", UptimeSeconds: 7200, Synced: true, Healthy: true, StartTime: begun, LastUpdated: begun,
		Services: s.services, Frontends: 3 * s.services, Endpoints: 6 * s.services, Discovery: api.Discovery{Source: "API server https://10.0.0.1:6443"},
		Flows: api.Flows{Current: 48213, Max: 1 << 20},
		Workers: []api.Worker{
			{ID: 0, CPU: 2, BusyShare: 0.31, Counters: counter.Values{counter.RxPackets: 40 * n, counter.NewFlows: n / 3, counter.Busy: n * 310_000}},
			{ID: 1, CPU: -1, BusyShare: 0.94, Counters: counter.Values{counter.RxPackets: 90 * n, counter.NewFlows: n, counter.Busy: n * 940_000}, Drops: map[string]uint64{"no-endpoint": n / 90}},
		},
		Interfaces: []api.Interface{{Name: "eth0", Mode: "zerocopy", Hook: "xdp", Driver: "ice", Queues: 4, BoundQueues: 2}},
		Absent:     []api.AbsentInterface{{Name: "eth1", Reason: "is gone"}},
		Drops:      map[string]uint64{"no-endpoint": n / 90, "martian": 3, "truncated": 0},
		Problems: []problem.Problem{
			{Kind: problem.InterfaceGone, Severity: problem.Error, Object: "Interface eth1", Reason: "is gone: it is attached again when it is back", Since: begun},
			{Kind: problem.NoHints, Severity: problem.Warning, Object: "Service " + s.name(0), Field: "spec.trafficDistribution", Reason: "the EndpointSlices have no hints", Since: begun},
		},
	}, nil
}

func (s *source) ServiceStates(string) (api.Stream, error) {
	n := uint64(time.Since(begun).Milliseconds())
	return func(w *api.ObjectWriter) error {
		w.List("services")
		for i := range s.services {
			tier := []string{"same-zone", "same-node", "all", "terminating", "none"}[i%5]
			k := uint64(i%7 + 1)
			state := &api.ServiceState{
				Service: s.name(i), Open: uint32(100 * k), HalfOpen: 3, NewConnections: n / k, Packets: api.Traffic{FromClients: n * k, FromEndpoints: n * k},
				Bytes: api.Traffic{FromClients: 900 * n}, Drops: map[string]uint64{}, Health: map[string]int{api.HealthFailing: 2},
				Ports: []api.ServicePort{{
					Name: "http", Protocol: "TCP", Port: 80, Endpoints: 6, Ready: 4, EndpointsByTier: map[string]int{},
					Tiers: []api.TierInUse{
						{Family: "IPv4", Scope: "external", Tier: tier, Endpoints: 2, Since: begun, Previous: "all"},
						{Family: "IPv6", Scope: "external", Tier: tier, Endpoints: 2, Since: begun, Previous: "all"},
					},
				}},
			}
			if i%3 == 0 {
				state.Drops["connection-limit"] = k
			}
			if i%4 == 1 {
				state.Ports = append(state.Ports, api.ServicePort{Name: "metrics", Protocol: "TCP", Port: 9090, Endpoints: 6, Ready: 6, Tiers: []api.TierInUse{{Family: "IPv4", Scope: "external", Tier: "all", Endpoints: 6, Since: begun}}})
			}
			w.Element(state)
		}
		return w.End()
	}, nil
}

func (s *source) EndpointStates(name string) (api.Stream, error) {
	return func(w *api.ObjectWriter) error {
		w.List("endpoints")
		for i := range 6 {
			e := &api.EndpointState{
				Service: name, Port: "http", Protocol: "TCP", Address: fmt.Sprintf("10.1.%d.%d:8080", i%3, i), Node: []string{"edge-1", "node-b", "node-c"}[i%3],
				Zone: []string{"zone-a", "zone-a", "zone-b"}[i%3], State: []string{"ready", "ready", "ready", "ready", "terminating", "not-ready"}[i],
				Cluster: i < 2, Local: i == 0, Used: i == 0, Policy: "Local", Attempts: api.Attempts{Refused: uint64(7 * i), Unanswered: 3}, Reason: "ready: in this node's zone zone-a", Open: uint32(10 * i),
				Health: api.EndpointHealth{State: []string{api.HealthPassing, api.HealthFailing}[i%2]},
			}
			w.Element(e)
		}
		return w.End()
	}, nil
}

func (s *source) Events(*event.Filter) ([]event.Event, uint64, error) {
	return []event.Event{
		{Number: 1, Kind: event.Start, Severity: event.Note, Text: "traffic is taken", Count: 1, First: begun, Last: begun},
		{Number: 8, Kind: event.InterfaceAbsent, Severity: event.Error, Object: "Interface eth1", Text: "is gone: it is attached again when it is back", Count: 3, First: begun, Last: begun.Add(time.Hour)},
		{Number: 9, Kind: event.TierChanged, Severity: event.Note, Service: s.name(0), Text: "tier same-zone, was all; ports 80/TCP, IPv4 and IPv6, external, because 10.1.0.0 ready", Count: 1, First: begun, Last: begun.Add(time.Hour)},
	}, 9, nil
}

func newPage(src api.Source, loopback bool, token string) *Page {
	return New(src, loopback, token, slog.New(slog.DiscardHandler))
}

// get asks for a path as a browser on this host.
func get(p *Page, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9466"+path, nil)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func TestPageHasTheState(t *testing.T) {
	p := newPage(&source{services: 5}, true, "")
	w := get(p, "/")
	for _, want := range []string{
		"<strong>edge-1</strong>", "shop/checkout-0000", `tier-same-zone">same-zone`, "was all", "zone-a: 3 ready, 1 terminating, 1 get new flows", "Interface eth1", "absent: is gone",
		"no-endpoint", "tier-changed", "3 times in 1h0m", `<td class="n">94 %</td>`, `aria-live="polite"`, `<th scope="row">`, `<span class="badge bad">2 failing</span>`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
	s := get(p, "/service?name=shop/checkout-0000").Body.String()
	for _, want := range []string{"<h1>shop/checkout-0000</h1>", "this node", "zone-b", "10.1.2.5", "terminating", "tier same-zone, was all", "Failed handshakes",
		"New flows (policy Local)", `<td>terminating</td><td>passing</td><td>no</td>`, `<td>not-ready</td><td>failing</td><td>no</td>`, `<th scope="col" class="n">Refused</th>`, `<td class="n">35</td><td class="n">3</td>`} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in the page of a Service", want)
		}
	}
	if strings.Contains(s, "Interface eth1") {
		t.Error("the page of a Service has problems of others")
	}
	if w := get(p, "/service?name=shop/none"); w.Code != 404 {
		t.Errorf("no such Service: %d", w.Code)
	}
}

// A thousand Services are paged, found and sorted by the server.
func TestPageSearchesAndPages(t *testing.T) {
	p := newPage(&source{services: 1000}, true, "")
	row := regexp.MustCompile(`<th scope="row"><a href="/service[^>]*>([^<]*)`)
	for _, tt := range []struct {
		query, first string
		rows         int
		want         string
	}{
		{"/", "shop/checkout-0000", 50, "1 to 50 of 1000"},
		{"/?page=20", "", 50, "951 to 1000 of 1000"},
		{"/?page=999999999999999999999", "", 50, "Page 20 of 20"},
		{"/?page=-3", "shop/checkout-0000", 50, "Page 1 of 20"},
		{"/?q=LOGIN+80", "shop/login-0003", 50, "1 to 50 of 200 found, 1000 in all"},
		{"/?q=terminating+login-0003", "shop/login-0003", 1, "1 to 1 of 1 found"},
		{"/?q=nothing", "", 0, "No Service is found"},
		{"/?sort=open", "shop/checkout-0020", 50, `aria-sort="descending"`},
		{"/?sort=evil", "shop/checkout-0000", 50, "1 to 50"},
	} {
		w := get(p, tt.query)
		found := row.FindAllStringSubmatch(w.Body.String(), -1)
		switch {
		case len(found) != tt.rows || !strings.Contains(w.Body.String(), tt.want):
			t.Errorf("%s: %d Services, want %d with %q", tt.query, len(found), tt.rows, tt.want)
		case tt.first != "" && found[0][1] != tt.first:
			t.Errorf("%s: the first is %s, want %s", tt.query, found[0][1], tt.first)
		}
		if n := w.Body.Len(); n > 400<<10 {
			t.Errorf("%s: %d bytes", tt.query, n)
		}
	}
}

// Nothing from outside becomes markup.
func TestPageEscapes(t *testing.T) {
	p := newPage(&source{services: 1, prefix: `"><script>alert(1)</script>`}, true, "")
	for _, path := range []string{"/", "/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "/?sort=%22%3E%3Cscript%3E"} {
		text := get(p, path).Body.String()
		if strings.Contains(text, "<script>alert") || strings.Contains(text, `"><script`) {
			t.Errorf("%s: not escaped:\n%s", path, text)
		}
	}
	for _, bad := range []string{" style=", "<style", " onclick", "javascript:", "http://", "https://"} {
		if text := strings.ReplaceAll(get(p, "/").Body.String(), "API server https://", ""); strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

func TestPageAnswersItsOwnHostAlone(t *testing.T) {
	p := newPage(&source{services: 1}, true, "")
	for host, code := range map[string]int{
		"127.0.0.1:9466": 200, "localhost:1234": 200, "[::1]:9466": 200, "LOCALHOST": 200, "127.9.9.9": 200,
		"evil.example:9466": 421, "127.0.0.1.evil.example": 421, "10.0.0.1:9466": 421, "": 421, "localhost.evil.example": 421,
	} {
		if w := get(p, "/", "Host", host); w.Code != code {
			t.Errorf("host %q: %d, want %d", host, w.Code, code)
		}
	}
	w := get(p, "/assets/page.js")
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/javascript") || w.Header().Get("Content-Security-Policy") != policy {
		t.Errorf("script: %d, %v", w.Code, w.Header())
	}
	if w := get(p, "/assets/../server.go"); w.Code == 200 {
		t.Error("the page serves other files")
	}
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/", nil)
	post := httptest.NewRecorder()
	p.ServeHTTP(post, r)
	if post.Code != 405 {
		t.Errorf("POST: %d", post.Code)
	}
}

func TestPageWantsTheToken(t *testing.T) {
	const token = "0123456789abcdef"
	p := newPage(&source{services: 1}, false, token)
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for value, code := range map[string]int{"Bearer " + token: 200, basic("me:" + token): 200, basic(token + ":"): 401, "Bearer ": 401, "": 401} {
		if w := get(p, "/", "Host", "edge-1.example", "Authorization", value); w.Code != code {
			t.Errorf("%q: %d, want %d", value, w.Code, code)
		}
	}
	for range wrongTokens {
		get(p, "/", "Authorization", "Bearer x")
	}
	if w := get(p, "/assets/page.js", "Authorization", "Bearer x"); w.Code != 429 {
		t.Errorf("many wrong tokens: %d", w.Code)
	}
	if w := get(p, "/"); w.Code != 401 || w.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("a browser that has to be asked for the token, after many wrong: %d", w.Code)
	}
	if w := get(p, "/", "Authorization", "Bearer "+token); w.Code != 200 {
		t.Errorf("the right token after many wrong: %d", w.Code)
	}
}

// Many readers cost as much as one.
func TestReadersShareASample(t *testing.T) {
	src := &source{services: 10}
	p := newPage(src, true, "")
	for range 20 {
		get(p, "/")
	}
	if n := src.asked.Load(); n > 5 {
		t.Errorf("asked %d times for 20 readers", n)
	}
	p = newPage(src, true, "")
	src.fails.Store(true)
	if w := get(p, "/"); w.Code != 500 || !strings.Contains(w.Body.String(), "no status now") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// A reader who goes away does not leave a sample of some Services.
func TestReaderWhoGoesAwayLeavesAWholeSample(t *testing.T) {
	s := newSampler(api.NewLocalClient(&source{services: 3000}))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := s.view(ctx, func(now *sample) error {
		if len(now.services) != 3000 {
			return fmt.Errorf("%d Services", len(now.services))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Rates of workers are those since the last point, and those of another process begin anew.
func TestWorkersHaveRates(t *testing.T) {
	n := &node{}
	worker := func(packets, busy uint64) []api.Worker {
		return []api.Worker{{Counters: counter.Values{counter.RxPackets: packets, counter.Busy: busy}}}
	}
	n.followWorkers(worker(1000, 5e9), 5, true, true)
	n.followWorkers(worker(2000, 6e9), 4, false, true)
	if w := n.workers[0]; w.packets != 250 || w.busy != 0.25 {
		t.Errorf("%v packets/s, busy %v", w.packets, w.busy)
	}
	n.followWorkers(worker(10, 1e6), 5, false, true)
	if w := n.workers[0]; w.packets != 0 || w.busy != 0 {
		t.Errorf("counters that went back: %v packets/s, busy %v", w.packets, w.busy)
	}
}

func TestChartIsScaled(t *testing.T) {
	s := &series{}
	if c := newChart("x", 0, "/s", s); c.Line != "" || c.Label != "x: no values yet" {
		t.Errorf("%+v", c)
	}
	s.add(0)
	s.add(50)
	s.add(100)
	if c := newChart("x", 100, "/s", s); c.Line != "115.9,27.0 118.0,14.5 120.0,2.0" || c.Label != "x: now 100, at most 100/s in 15s" {
		t.Errorf("%+v", c)
	}
	for range 200 {
		s.add(1)
	}
	if c := newChart("x", 1, "/s", s); strings.Count(c.Line, ",") != points || !strings.HasPrefix(c.Line, "0.0,") {
		t.Errorf("%+v", c)
	}
}
