package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource knows one Service, default/web.
type fakeSource struct {
	status *Status
	limit  int // of the last Flows
	query  ConnectionQuery
	events event.Filter
}

func (f *fakeSource) Status(context.Context) (*Status, error) {
	if f.status == nil {
		return nil, errors.New("no status yet")
	}
	return f.status, nil
}

func (f *fakeSource) Explain(_ context.Context, q ExplainQuery) (Stream, error) {
	if q.Service != "" && q.Service != "default/web" {
		return nil, fmt.Errorf("Service %s: %w", q.Service, ErrNotFound)
	}
	return func(w *ObjectWriter) error {
		w.Field("node", "edge-1")
		w.List("services")
		w.Element(map[string]any{"namespace": "default", "name": "web", "ports": nil, "errors": nil})
		return w.End()
	}, nil
}

func (f *fakeSource) ExplainAddress(_ context.Context, a netip.Addr) (*AddressExplanation, error) {
	return &AddressExplanation{
		Node: "edge-1", Address: a, Reason: "draining", Conditions: []AddressCondition{{Condition: "not drained", Detail: "weir drain self"}},
		Routes: []string{}, Peers: []AnnouncePeer{{Peer: "10.0.0.1", ASN: 64500, State: "established", Established: true}},
		Frontends: []AddressFrontend{{Service: "default/web", Address: "203.0.113.10:80", Protocol: "TCP", Programmed: true, Mode: "ipip", Choice: "1234", Endpoints: []FrontendEndpoint{}}},
	}, nil
}

func (f *fakeSource) ServiceStates(name string) (Stream, error) {
	l := exampleServices()
	return func(w *ObjectWriter) error {
		w.Field("time", l.Time)
		return w.Field("services", l.Services)
	}, f.known(name)
}

func (f *fakeSource) EndpointStates(name string) (Stream, error) {
	return func(w *ObjectWriter) error { return w.Field("endpoints", exampleEndpoints().Endpoints) }, f.known(name)
}

func (f *fakeSource) known(name string) error {
	if name != "" && name != "default/web" {
		return fmt.Errorf("service %s: %w", name, ErrNotFound)
	}
	return nil
}

func (f *fakeSource) Connections(_ context.Context, q ConnectionQuery) (Stream, error) {
	f.query = q
	return func(w *ObjectWriter) error {
		w.Field("total", 7)
		w.Field("connections", exampleFlows().Flows)
		return w.Field("next", 3)
	}, nil
}

func (f *fakeSource) CountConnections(context.Context, *FlowMatcher, string, int) (*ConnectionCount, error) {
	return exampleCount(), nil
}

func (f *fakeSource) KillConnections(context.Context, *FlowMatcher) (*Killed, error) {
	return &Killed{Killed: 2}, nil
}

func (f *fakeSource) LogLevel(context.Context) (*LogLevel, error) {
	return &LogLevel{Level: "info"}, nil
}

func (f *fakeSource) SetLogLevel(_ context.Context, level string) (*LogLevel, error) {
	return &LogLevel{Level: level}, nil
}

func (f *fakeSource) Profile(_ context.Context, w io.Writer, _ string, _ time.Duration) error {
	_, err := io.WriteString(w, "profile")
	return err
}

func (f *fakeSource) Events(m *event.Filter) ([]event.Event, uint64, error) {
	f.events = *m
	l := exampleEvents()
	return l.Events, l.Last, f.known(m.Service)
}

func (f *fakeSource) Stop(context.Context) error { return nil }

func (f *fakeSource) Verify(context.Context) (*Verification, error) {
	return &Verification{Connections: 3, Slots: 6, Faults: []string{"connection 1: lost"}}, nil
}

func (f *fakeSource) Trace(_ context.Context, q *TraceQuery) (*Trace, error) {
	return &Trace{
		Protocol: q.Protocol, Source: q.Source.String(), Destination: q.Destination.String(), Flags: "syn", Interface: "eth0",
		Size: 54, Steering: "redirected", Verdict: "forward",
		Connection: &TracedConnection{From: "client", Client: q.Source.String(), Frontend: q.Destination.String(), Endpoint: "10.1.1.1:8080", Mode: "nat", SNAT: "10.0.0.1:61000", SNATPorts: "61000-65535"},
		Frontend:   &TracedFrontend{Address: q.Destination.String(), Service: "default/web", Kind: "ClusterIP", Tier: "all", Endpoints: 1},
		Choice:     &TracedChoice{Rule: "hash of the tuple", Algorithm: "Maglev", Hash: "1", Endpoint: "10.1.1.1:8080", Candidates: []TracedEndpoint{{Address: "10.1.1.1:8080", Weight: 1}}},
		NextHop:    &TracedHop{Interface: "eth1", Address: "10.1.1.1", Neighbor: "valid", MAC: "02:00:00:00:00:01", MTU: 1500},
		Sent:       &TracedPacket{Interface: "eth1", Protocol: "TCP", Source: "10.0.0.1:61000", Destination: "10.1.1.1:8080", Size: 54, TTL: 63},
	}, nil
}

func (f *fakeSource) Drains(context.Context) (*Drains, error) {
	at := time.Unix(1_700_000_000, 0).UTC()
	return &Drains{Self: true, SelfSince: &at, Connections: 3, Endpoints: []DrainedEndpoint{{"10.1.2.3:8080", at}}}, nil
}

func (f *fakeSource) DrainEndpoints(ctx context.Context, _ []string, _ bool) (*Drains, error) {
	return f.Drains(ctx)
}

func (f *fakeSource) DrainSelf(ctx context.Context, _ bool) (*Drains, error) { return f.Drains(ctx) }

func (f *fakeSource) Drops(context.Context, *DropFilter) (*DropList, error) {
	return &DropList{Packets: []DroppedPacket{{Reason: "no-route", Time: time.Unix(1, 0)}}}, nil
}

func (f *fakeSource) Packets(_ context.Context, _ *PacketQuery, each func(*Packet, PacketAccount) error) error {
	p := &Packet{Time: time.Unix(1, 0), Verdict: "forward", Received: []byte("frame")}
	return errors.Join(each(nil, PacketAccount{}), each(p, PacketAccount{}), each(nil, PacketAccount{
		Lost: 2, Interfaces: []LostFrames{{Interface: p.Interface, Received: 2, Sent: 1}, {Interface: "eth9", Sent: 1}},
	}))
}

func (f *fakeSource) Flows(_ context.Context, limit int, _ *FlowMatcher) (*FlowList, error) {
	f.limit = limit
	return exampleFlows(), nil
}

func (f *fakeSource) Frontends(context.Context) (Stream, error) {
	return func(w *ObjectWriter) error { return w.Field("frontends", exampleFrontends().Frontends) }, nil
}

// serve runs a server for the length of the test.
func serve(t *testing.T, src Source) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "run", "weir.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, src, Access{}, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return socket
}

func TestClientGetsWhatTheSourceSays(t *testing.T) {
	src := &fakeSource{status: exampleStatus()}
	c := NewClient(serve(t, src))
	defer c.daemon.http.CloseIdleConnections()
	ctx := t.Context()

	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(src.status, s, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("status: -want +got:\n%s", diff)
	}
	flows, err := c.Flows(ctx, 20, nil)
	if err != nil || flows.Total != 7 || len(flows.Flows) != 2 || src.limit != 20 {
		t.Errorf("flows: %+v, %v (limit %d)", flows, err, src.limit)
	}
	if _, err := c.Flows(ctx, 1<<30, nil); err != nil || src.limit != MaxFlowLimit {
		t.Errorf("flows: asked for %d at once, %v", src.limit, err)
	}
	if l, err := c.Events(ctx, &EventFilter{Kind: "reload", Service: "default/web", Since: time.Hour, After: 7, Limit: 3}); err != nil || l.Last != 17 || len(l.Events) != 2 {
		t.Errorf("events: %+v, %v", l, err)
	}
	if f := src.events; f.Kind != event.Reload || f.Service != "default/web" || time.Since(f.Since) < time.Hour || f.After != 7 || f.Limit != 3 {
		t.Errorf("events: asked for %+v", f)
	}
	if l, err := c.Frontends(ctx); err != nil || len(l.Frontends) != 2 {
		t.Errorf("frontends: %+v, %v", l, err)
	}
	if raw, err := c.Explain(ctx, ExplainQuery{Service: "default/web"}); err != nil || !strings.Contains(string(raw), `"web"`) {
		t.Errorf("explain: %s, %v", raw, err)
	}
	if _, err := c.Explain(ctx, ExplainQuery{Service: "a/b"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "Service a/b") {
		t.Errorf("explain of what is not there: %v", err)
	}
	src.status = nil
	if _, err := c.Status(ctx); err == nil || err.Error() != "no status yet" {
		t.Errorf("an error of the source: %v", err)
	}
}

func TestServerRefuses(t *testing.T) {
	socket := serve(t, &fakeSource{})
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	for _, tt := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/v1/flows?limit=0", 400, `limit: expected a positive number, got \"0\"`},
		{"GET", "/v1/flows?limit=many", 400, "limit: expected a positive number"},
		{"GET", "/v1/connections?limit=-1", 400, `limit: expected a number, got \"-1\"`},
		{"GET", "/v1/connections?minAge=5", 400, `minAge: expected a duration such as 90s, got \"5\"`},
		{"GET", "/v1/connections/count?by=colour", 400, "by: expected service, frontend"},
		{"POST", "/v1/connections/kill", 400, "a filter is required"},
		{"PUT", "/v1/log-level?level=loud", 400, "level: expected debug"},
		{"GET", "/v1/profile?kind=face", 400, "kind: expected cpu"},
		{"GET", "/v1/events?kind=loud", 400, "kind: no events are of kind"},
		{"GET", "/v1/events?since=-1m", 400, "since: expected a duration"},
		{"GET", "/v1/events?after=x", 400, "after: expected a number"},
		{"GET", "/v1/services?service=a/b", 404, "service a/b: not found"},
		{"GET", "/v1/services?name=a/b", 400, "name: unknown parameter"},
		{"POST", "/v1/connections/kill?service=a/b&client=%zz", 400, "parameters: invalid URL escape"},
		{"POST", "/v1/connections/kill?service=a/b;client=10.0.0.1", 400, "parameters: invalid semicolon"},
		{"POST", "/v1/connections/kill?client=10.0.0.1&client=10.0.0.2", 400, "client: there are 2 of it"},
		{"GET", "/v2/status", 404, "there is no such thing here"},
		{"POST", "/v1/status", 404, "there is no such thing here"},
		{"GET", "/v1/status", 500, "no status yet"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://weir"+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s %s: %d %s; want %d %s", tt.method, tt.path, res.StatusCode, body, tt.code, tt.want)
		}
	}
}

func TestSocketIsRootsAlone(t *testing.T) {
	// Whatever the umask is: it could only take more away.
	old := unix.Umask(0)
	defer unix.Umask(old)
	l, err := Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o", got)
	}
}

func TestListenReplacesTheSocketOfTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal("the dead socket is not there")
	}
	if _, err := NewClient(path).Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a client of the dead: %v", err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close the socket is still there: %v", err)
	}
}

func TestListenLeavesTheSocketOfTheLiving(t *testing.T) {
	socket := serve(t, &fakeSource{status: exampleStatus()})
	_, err := Listen(socket)
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("a second Listen: %v", err)
	}
	c := NewClient(socket)
	defer c.daemon.http.CloseIdleConnections()
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("the first is disturbed: %v", err)
	}
}

func TestListenLeavesAFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("got %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Error("the file is changed")
	}
}

func TestClientSaysWhatFailedConnectionsMean(t *testing.T) {
	_, err := NewClient("/nonexistent/weir.sock").Status(t.Context())
	if !errors.Is(err, ErrNotRunning) || err.Error() != "no Weir is running: nothing answers on /nonexistent/weir.sock" {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	l, err := Listen(filepath.Join(t.TempDir(), "s")) // nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := NewClient(l.Addr().String()).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The client says once that a Service is not found, and that a daemon of another version does
// not know a request.
func TestClientSaysWhatIsNotFound(t *testing.T) {
	c := NewClient(serve(t, &fakeSource{}))
	defer c.daemon.http.CloseIdleConnections()
	if _, err := c.Services(t.Context(), "a/b"); !errors.Is(err, ErrNotFound) || err.Error() != "service a/b: not found" {
		t.Errorf("%v", err)
	}
	if _, err := c.Events(t.Context(), &EventFilter{Service: "a/b"}); !errors.Is(err, ErrNotFound) || err.Error() != "service a/b: not found" {
		t.Errorf("%v", err)
	}
	const other = "the running Weir does not know GET /v1/later: it is of another version than this command"
	if _, err := c.daemon.do(t.Context(), http.MethodGet, "/v1/later", nil); err == nil || errors.Is(err, ErrNotFound) || err.Error() != other {
		t.Errorf("%v", err)
	}
	if _, err := c.daemon.stream(t.Context(), "/v1/later", nil); err == nil || err.Error() != other {
		t.Errorf("%v", err)
	}
}

func TestFilterHasAText(t *testing.T) {
	f := FlowFilter{Client: "192.0.2.7", State: "established", MinIdle: time.Hour}
	if got := f.String(); got != "client=192.0.2.7 minIdle=1h0m0s state=established" {
		t.Errorf("%q", got)
	}
}
