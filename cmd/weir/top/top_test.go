package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// weir is a daemon whose counters grow by so much with each answer. Other requests of api.Source
// would panic: the view must not make them.
type weir struct {
	api.Source
	services int
	pid      int
	n        atomic.Uint64 // answers
	asked    atomic.Int64  // walks over connections
	name     string
}

func (w *weir) Status(context.Context) (*api.Status, error) {
	n := w.n.Add(1)
	return &api.Status{
		Node: "edge-1", PID: w.pid, UptimeSeconds: 3600, Synced: true, Healthy: true, Flows: api.Flows{Current: 7, Max: 100},
		Workers: []api.Worker{{ID: 0, CPU: -1, Counters: counter.Values{counter.RxPackets: 1000 * n, counter.Batches: 100 * n}}},
		Drops:   map[string]uint64{"no-endpoint": 30 * n, "martian": 5 * n},
	}, nil
}

func (w *weir) ServiceStates(string) (api.Stream, error) {
	return func(o *api.ObjectWriter) error {
		o.List("services")
		for i := range w.services {
			n := w.n.Load()
			if err := o.Element(&api.ServiceState{
				Health:  map[string]int{api.HealthPassing: 2, api.HealthFailing: 1, api.HealthEjected: 2},
				Service: fmt.Sprintf("shop/%ss-%05d", w.name, i), NewConnections: uint64(i) * n, Drops: map[string]uint64{"no-endpoint": n},
				Ports: []api.ServicePort{{Endpoints: 5, Tiers: []api.TierInUse{{Tier: "same-zone", Endpoints: 2}}}},
			}); err != nil {
				return err
			}
		}
		o.End()
		return nil
	}, nil
}

func (w *weir) EndpointStates(string) (api.Stream, error) {
	return func(o *api.ObjectWriter) error {
		o.List("endpoints")
		err := o.Element(&api.EndpointState{Service: "shop/s", Port: "http", Protocol: "TCP", Address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:8080", State: "ready", Drained: true, Cluster: true, Connections: 4,
			Health: api.EndpointHealth{State: api.HealthFailing}, Reason: "fails the health check for 5s: connection refused"})
		o.End()
		return err
	}, nil
}

func (w *weir) CountConnections(context.Context, *api.FlowMatcher, string, int) (*api.ConnectionCount, error) {
	w.asked.Add(1)
	return &api.ConnectionCount{Matched: 10, Groups: []api.ConnectionGroup{{Key: "192.0.2.0/24", Count: 8}}, Others: 2}, nil
}

// serve serves a daemon, and returns a client.
func serve(t *testing.T, w *weir) *api.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "weir.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l, w, api.Access{}, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return api.NewClient(socket)
}

// live is a model after the first look.
func live(t *testing.T, w *weir, o Options) *model {
	t.Helper()
	if o.Tab == "" {
		o.Tab = "services"
	}
	o.Interval = 2 * time.Second
	m, err := newModel(t.Context(), serve(t, w), &o)
	if err != nil {
		t.Fatal(err)
	}
	do(t, m, m.look())
	return m
}

// do runs a command of the model, and gives it the result.
func do(t *testing.T, m *model, cmd tea.Cmd) {
	t.Helper()
	if cmd == nil {
		t.Fatal("no command")
	}
	msg := cmd()
	if l, ok := msg.(looked); ok && l.err != nil {
		t.Fatal(l.err)
	}
	m.Update(msg)
}

func key(s string) tea.KeyPressMsg {
	if len(s) == 1 {
		return tea.KeyPressMsg{Code: rune(s[0]), Text: s}
	}
	return tea.KeyPressMsg{Code: map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "backspace": tea.KeyBackspace}[s]}
}

func (m *model) keys(keys ...string) (last tea.Cmd) {
	for _, k := range keys {
		_, last = m.Update(key(k))
	}
	return last
}

func TestRatesAreSinceTheLookBefore(t *testing.T) {
	w := &weir{services: 3}
	m := live(t, w, Options{})
	if got := m.sample.rows[0].cells[6]; got.value == got.value {
		t.Errorf("a rate at the first look: %v", got.value)
	}
	do(t, m, m.look())
	if r := m.sample.rows[0]; r.cells[6].value != r.cells[6].value {
		t.Error("no rate at the second look")
	}
	w.pid = 99
	do(t, m, m.look())
	if r := m.sample.rows[0]; r.cells[6].value == r.cells[6].value || m.restarted.IsZero() {
		t.Errorf("a rate across a restart: %v", r.cells[6].value)
	}
}

func TestRowsAreSortedAndFiltered(t *testing.T) {
	m := live(t, &weir{services: 30}, Options{Sort: "newPerSecond"})
	do(t, m, m.look())
	if got := m.sample.rows[0].cells[0].text; got != "shop/s-00029" {
		t.Errorf("the most new connections: %s", got)
	}
	m.keys("r")
	if got := m.sample.rows[0].cells[0].text; got != "shop/s-00000" {
		t.Errorf("the fewest: %s", got)
	}
	do(t, m, m.keys("/", "S", "-", "0", "0", "0", "1", "x", "backspace", "enter"))
	if len(m.sample.rows) != 10 || !strings.Contains(m.screen(), "filter: S-0001") {
		t.Errorf("%d rows match\n%s", len(m.sample.rows), m.screen())
	}
	do(t, m, m.keys("esc"))
	if len(m.sample.rows) != 30 {
		t.Errorf("%d rows without a filter", len(m.sample.rows))
	}
}

// A single request is under way, whatever keys are pressed, and none while the view is paused.
// Services have the number of endpoints that fail or are ejected, endpoints the state and the reason.
func TestHealthIsShown(t *testing.T) {
	m := live(t, &weir{services: 1}, Options{})
	if got := m.sample.rows[0].cells[4].value; got != 3 {
		t.Errorf("a Service: %v", got)
	}
	m = live(t, &weir{services: 1}, Options{Tab: "endpoints"})
	if r := m.sample.rows[0].cells; r[6].text != api.HealthFailing || r[len(r)-1].text != "fails the health check for 5s: connection refused" {
		t.Errorf("an endpoint: %v", r)
	}
}

func TestLooksDoNotPileUp(t *testing.T) {
	m := live(t, &weir{services: 1}, Options{})
	first := m.look()
	if m.keys("2") != nil || m.keys("3") != nil || m.look() != nil {
		t.Error("a second look while the first is under way")
	}
	_, next := m.Update(first())
	if m.sample != nil || next == nil {
		t.Error("the answer for another tab is shown, or the tab is not asked for")
	}
	do(t, m, next)
	if m.sample == nil || m.sample.tab != workersTab {
		t.Error("the tab is not shown")
	}
	m.keys(" ")
	if _, cmd := m.Update(due(m.tick)); cmd != nil || !m.paused {
		t.Errorf("a look while paused, %v", m.paused)
	}
	if _, cmd := m.Update(due(m.tick - 1)); cmd != nil {
		t.Error("an old timer has an effect")
	}
}

// The time between walks over all connections is a multiple of the time that they take.
func TestWalksRest(t *testing.T) {
	w := &weir{services: 1}
	m := live(t, w, Options{Tab: "clients"})
	m.looking = true
	m.take(looked{sample: &sample{tab: clientsTab, took: time.Minute}})
	if w.asked.Load() != 1 || m.looking {
		t.Errorf("%d walks", w.asked.Load())
	}
	m.sample = nil
	do(t, m, m.look())
	if text := m.screen(); !strings.Contains(text, "192.0.2.0/24") || !strings.Contains(text, "80.0 %") || !strings.Contains(text, "others") {
		t.Error(text)
	}
}

func TestDropsOfNoServiceAreTheRest(t *testing.T) {
	m := live(t, &weir{services: 10}, Options{Tab: "drops"})
	got := map[string]float64{}
	for _, r := range m.sample.rows {
		got[r.cells[0].text+" "+r.cells[1].text] = r.cells[3].value
	}
	if len(got) != 12 || got["no-endpoint shop/s-00003"] != 1 || got["no-endpoint "] != 20 || got["martian "] != 5 {
		t.Error(got)
	}
}

// Rows beyond the bound are counted, and a filter reaches them.
func TestRowsAreBounded(t *testing.T) {
	w := &weir{services: maxRows + 500}
	m := live(t, w, Options{})
	if len(m.sample.rows) != maxRows || m.sample.left != 500 || len(m.source.last.counts) > maxRows {
		t.Errorf("%d rows, %d left, %d counts", len(m.sample.rows), m.sample.left, len(m.source.last.counts))
	}
	do(t, m, m.setFilter(fmt.Sprintf("s-%05d", maxRows+7)))
	if len(m.sample.rows) != 1 || m.sample.left != 0 {
		t.Errorf("%d rows, %d left", len(m.sample.rows), m.sample.left)
	}
}

// Every tab fits into terminals of several sizes, and no name commands the terminal.
func TestScreensFit(t *testing.T) {
	w := &weir{services: 100, name: "\x1b[2J" + strings.Repeat("a-long-name-", 6)}
	for _, o := range tabs {
		m := live(t, w, Options{Tab: o.name})
		do(t, m, m.look())
		for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 50}, {20, 6}, {5, 2}, {80, 5}} {
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			text := m.screen()
			if strings.Contains(text, "\x1b[2J") {
				t.Errorf("%s: a name commands the terminal", o.name)
			}
			lines := strings.Split(text, "\n")
			if len(lines) > size[1] {
				t.Errorf("%s: %d lines at %v", o.name, len(lines), size)
			}
			for _, l := range lines {
				for _, style := range []string{plain, bold, faint, reverse, red} {
					l = strings.ReplaceAll(l, style, "")
				}
				if n := utf8.RuneCountInString(l); n > size[0] {
					t.Errorf("%s: %d columns at %v: %q", o.name, n, size, l)
				}
			}
			m.help = true
			if n := strings.Count(m.screen(), "\n"); n > size[1] {
				t.Errorf("help has %d lines at %v", n, size)
			}
			m.help = false
		}
		m.keys("G")
		if m.Update(tea.WindowSizeMsg{Width: 80, Height: 24}); !strings.Contains(m.screen(), fmt.Sprintf("of %d", len(m.sample.rows))) {
			t.Errorf("%s: no place at the end:\n%s", o.name, m.screen())
		}
	}
}

// The first order of each tab is by the column that matters most, and a terminal of 80 columns
// shows it, with the tier of a Service and how many endpoints fail.
func TestFirstOrders(t *testing.T) {
	for name, want := range map[string][]string{
		"services": {"~PKT/S*", "TIER", "FAILING"}, "endpoints": {"CONN*", "STATE"}, "workers": {"WORKER*"}, "clients": {"CONNECTIONS*"}, "drops": {"DROP/S*"},
	} {
		m := live(t, &weir{services: 3}, Options{Tab: name})
		do(t, m, m.look())
		m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
		for _, column := range want {
			if s := m.screen(); !strings.Contains(s, column) {
				t.Errorf("%s: no %s in\n%s", name, column, s)
			}
		}
	}
}

func TestADaemonThatIsAwayIsWaitedFor(t *testing.T) {
	m := live(t, &weir{services: 1}, Options{})
	for text, err := range map[string]error{
		"reconnecting: no Weir is running": api.ErrNotRunning, "busy": fmt.Errorf("later: %w", api.ErrTryAgain),
		"reconnecting: no answer in time": context.DeadlineExceeded,
	} {
		m.looking = true
		if m.take(looked{err: err, at: time.Now()}) == nil {
			t.Error("it does not try again")
		}
		if s := m.screen(); !strings.Contains(s, text) || !strings.Contains(s, "shop/s-00000") {
			t.Errorf("%v: no %q in\n%s", err, text, s)
		}
	}
	do(t, m, m.look())
	if s := m.screen(); strings.Contains(s, "reconnecting") {
		t.Error(s)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		`--tab: must be services, endpoints, workers, clients, drops, is "x"`: {Tab: "x", Interval: time.Second},
		`no column "y"`: {Tab: "drops", Sort: "y", Interval: time.Second},
		"--interval":    {Tab: "drops"},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{Tab: "services", Interval: time.Second}
	if err := Once(t.Context(), api.NewClient(filepath.Join(t.TempDir(), "none")), &o, nil); !errors.Is(err, api.ErrNotRunning) {
		t.Error(err)
	}
}

func TestJSONHasEveryColumn(t *testing.T) {
	c, b := serve(t, &weir{services: 3}), &strings.Builder{}
	if err := JSON(t.Context(), c, &Options{Tab: "workers", Interval: intervals[0]}, b); err != nil {
		t.Fatal(err)
	}
	var l struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(b.String()), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Rows) != 1 || len(l.Rows[0]) != len(workersTab.columns) || l.Rows[0]["cpu"] != nil || math.Abs(l.Rows[0]["batch"].(float64)-10) > 1e-9 {
		t.Error(b)
	}
	b.Reset()
	if err := Once(t.Context(), c, &Options{Tab: "services", Interval: intervals[0], Limit: 1}, b); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); !strings.Contains(s, "... and 2 more") || !strings.Contains(s, "same-zone") || strings.Contains(s, "\x1b") {
		t.Error(s)
	}
}

// A tab that is chosen while paused, and while a look is under way, is filled all the same.
func TestATabIsFilledWhilePaused(t *testing.T) {
	m := live(t, &weir{services: 1}, Options{})
	late := m.look()
	m.keys("p", "3")
	_, next := m.Update(late())
	if !m.looking {
		t.Fatal("it does not look again")
	}
	do(t, m, next)
	if m.sample == nil || m.sample.tab != workersTab {
		t.Errorf("nothing to see:\n%s", m.screen())
	}
}

func TestAPastedFilterIsBounded(t *testing.T) {
	m := live(t, &weir{services: 1}, Options{})
	m.keys("/")
	m.Update(tea.PasteMsg{Content: strings.Repeat("ü", 1<<20)})
	if n := len(m.typed); n == 0 || n > maxFilter {
		t.Errorf("the filter has %d bytes", n)
	}
}
