package metrics

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/cmd/weir/api"
)

type serviceSource struct{ list []api.ServiceState }

func (s *serviceSource) ServiceMetrics() []api.ServiceState {
	return append([]api.ServiceState(nil), s.list...)
}

func serviceState(name string, connections uint64) api.ServiceState {
	return api.ServiceState{
		Service: name, NewConnections: connections, FailedHandshakes: 1, Open: 2,
		Packets: api.Traffic{FromClients: 10 * connections, FromEndpoints: 20 * connections}, Bytes: api.Traffic{FromClients: 1000 * connections},
		Drops: map[string]uint64{"no-endpoint": 3}, Health: map[string]int{"failing": 1}, Retransmissions: api.Retransmissions{SYNs: connections, SYNACKs: 2, FINs: 1},
		Handshakes: api.Histogram{Count: 3 * connections, SumSeconds: 2 * float64(connections), Buckets: []api.Bucket{
			{UpToSeconds: 0.5, Count: connections}, {UpToSeconds: 1, Count: connections}, {Count: connections},
		}},
		Ports: []api.ServicePort{{EndpointsByTier: map[string]int{"same-zone": 2}}, {EndpointsByTier: map[string]int{"same-zone": 1, "all": 4}}},
	}
}

// Up to the limit each Service has series, beyond it those with the most new connections;
// each count is in the series of a Service or in those of the others, which never go down.
func TestServicesHaveSeriesUpToTheLimit(t *testing.T) {
	src := &serviceSource{list: []api.ServiceState{serviceState("ns/a", 5), serviceState("ns/b", 7)}}
	c := NewServices(src, 2)
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	shows := func(want ...string) {
		t.Helper()
		code, body := scrape(t, Handler(r, func() bool { return false }, slog.New(slog.DiscardHandler)))
		if code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		for _, w := range want {
			absent := strings.HasPrefix(w, "!")
			if strings.Contains(body, strings.TrimPrefix(w, "!")) == absent {
				t.Errorf("%s in\n%s", w, body)
			}
		}
	}
	shows(`weir_service_new_connections_total{service="ns/a"} 5`, `weir_service_packets_total{from="endpoint",service="ns/b"} 140`,
		`weir_service_bytes_total{from="client",service="ns/b"} 7000`, `weir_service_failed_handshakes_total{service="ns/a"} 1`,
		`weir_service_dropped_packets_total{reason="no-endpoint",service="ns/a"} 3`, `weir_service_connections_open{service="ns/a"} 2`,
		`weir_service_endpoints_checked{health="failing",service="ns/b"} 1`,
		`weir_service_retransmissions_total{segment="syn",service="ns/a"} 5`, `weir_service_retransmissions_total{segment="syn-ack",service="ns/b"} 2`,
		`weir_service_retransmissions_total{segment="fin",service="ns/b"} 1`,
		`weir_service_endpoints{service="ns/a",tier="same-zone"} 3`, `weir_service_endpoints{service="ns/a",tier="all"} 4`, `!service="other"`,
		`weir_service_handshake_duration_seconds_bucket{service="ns/a",le="0.5"} 5`, `weir_service_handshake_duration_seconds_bucket{service="ns/a",le="1"} 10`,
		`weir_service_handshake_duration_seconds_bucket{service="ns/a",le="+Inf"} 15`, `weir_service_handshake_duration_seconds_sum{service="ns/b"} 14`)

	src.list = append(src.list, serviceState("ns/c", 1), serviceState("ns/d", 2))
	shows(`weir_service_new_connections_total{service="other"} 3`, `weir_service_retransmissions_total{segment="syn",service="other"} 3`, `weir_service_endpoints{service="other",tier="all"} 8`, `!service="ns/c"`)
	src.list[2] = serviceState("ns/c", 11) // is now among the first: ns/a is not, and counts from here on
	shows(`weir_service_handshake_duration_seconds_count{service="ns/c"} 30`, `weir_service_handshake_duration_seconds_bucket{service="other",le="0.5"} 3`)
	shows(`weir_service_new_connections_total{service="ns/c"} 10`, `weir_service_new_connections_total{service="other"} 3`, `!service="ns/a"`)
	src.list[0] = serviceState("ns/a", 6)
	shows(`weir_service_new_connections_total{service="other"} 4`)
	src.list[0] = serviceState("ns/a", 20) // is among the first again, without what the others have
	shows(`weir_service_new_connections_total{service="ns/a"} 19`, `weir_service_new_connections_total{service="other"} 4`)
	src.list = src.list[1:2]
	shows(`weir_service_new_connections_total{service="other"} 4`, `weir_service_new_connections_total{service="ns/b"} 7`)
}

// growingSource has a connection more each time.
type growingSource struct{ connections atomic.Uint64 }

func (g *growingSource) ServiceMetrics() []api.ServiceState {
	s := serviceState("ns/a", g.connections.Add(1))
	runtime.Gosched() // another scrape comes between
	return []api.ServiceState{s}
}

// Two scrapes at once, of two Prometheus servers, count nothing twice.
func TestScrapesAtOnceCountOnce(t *testing.T) {
	src := &growingSource{}
	c := NewServices(src, 1)
	var scrapes sync.WaitGroup
	for range 8 {
		scrapes.Go(func() {
			ch := make(chan prometheus.Metric, 100)
			for range 2000 {
				c.Collect(ch)
				for len(ch) > 0 {
					<-ch
				}
			}
		})
	}
	scrapes.Wait()
	if got, want := c.known["ns/a"].own.connections, src.connections.Load(); got != want {
		t.Errorf("%d connections, want %d", got, want)
	}
}

// The others keep their series also without a new connection.
func TestDropsOfOthersStay(t *testing.T) {
	src := &serviceSource{list: []api.ServiceState{serviceState("ns/a", 5), serviceState("ns/b", 0)}}
	c := NewServices(src, 1)
	counts := func() int {
		ch := make(chan prometheus.Metric, 100)
		c.Collect(ch)
		return len(ch)
	}
	before := counts()
	src.list = src.list[:1]
	if n := counts(); n != before-3 { // without endpoints of two tiers, and those checked
		t.Errorf("%d series, and %d before the last of the others was deleted", n, before)
	}
}

// The series of 10,000 Services stay bounded.
func TestSeriesOfServicesAreBounded(t *testing.T) {
	src := &serviceSource{}
	for i := range 10000 {
		src.list = append(src.list, serviceState(fmt.Sprintf("ns/s%d", i), uint64(i)))
	}
	ch := make(chan prometheus.Metric, 10000)
	NewServices(src, 200).Collect(ch)
	if n := len(ch); n != 201*15 {
		t.Errorf("%d series", n)
	}
}

// A Service without endpoints has drops in place of connections, and a name in the alert.
func TestAServiceThatRefusesHasSeriesOfItsOwn(t *testing.T) {
	src := &serviceSource{list: []api.ServiceState{serviceState("ns/a", 500), serviceState("ns/b", 400), serviceState("ns/idle", 0), serviceState("ns/none", 0)}}
	src.list[3].Drops = map[string]uint64{"no-endpoint": 585}
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(NewServices(src, 2)); err != nil {
		t.Fatal(err)
	}
	_, body := scrape(t, Handler(r, func() bool { return false }, slog.New(slog.DiscardHandler)))
	if want := `weir_service_dropped_packets_total{reason="no-endpoint",service="ns/none"} 585`; !strings.Contains(body, want) {
		t.Errorf("%s in\n%s", want, body)
	}
}
