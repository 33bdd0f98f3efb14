package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/perf/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct {
	status *api.Status
	err    error
}

func (s *source) Status(context.Context) (*api.Status, error) { return s.status, s.err }

func (s *source) Health() healthz.Health { return healthz.Health{Healthy: true, Synced: true} }

func example() *api.Status {
	goodAt := time.Unix(1000, 5e8)
	return &api.Status{
		StartTime: time.Unix(1000, 5e8), Synced: true, Healthy: true, FrontendsHash: 77, Snapshot: 42, Services: 3, Frontends: 8, Endpoints: 12,
		Discovery: api.Discovery{Resources: []api.Resource{{Name: "services", LastContact: time.Unix(1000, 5e8)}},
			Slices: 9, FQDNSlices: 2, NamedEndpoints: 7, Mirrored: 1, RefusedEndpoints: 4, ServicesRemoved: 5},
		Interfaces: []api.Interface{{Name: "eth0", Mode: "native", Driver: "veth", Hook: "tcx", TxChecksum: "metadata", Pinned: true,
			Repeated: &api.Repeated{Packets: 8, Bytes: 800, Steered: 2}, Lost: api.Lost{Pair: 6, Transmit: 9}, Queues: 4, BoundQueues: 2,
			Sockets: []api.Socket{{Queue: 0, RxRingFull: 5, RxInvalidDescs: 1, TxInvalidDescs: 2}, {Queue: 1}}}},
		Absent: []api.AbsentInterface{{Name: "eth1", Reason: "interface eth1 is gone"}},
		Workers: []api.Worker{
			{ID: 0, Counters: counter.Values{counter.RxPackets: 10, counter.TxBytes: 99}},
			{ID: 1, Counters: counter.Values{counter.RxPackets: 20}},
		},
		Drops: map[string]uint64{"no-conntrack-entry": 7, "martian": 0},
		Flows: api.Flows{Current: 1, Max: 2, NoPort: 3, Full: 4, ByState: map[string]uint64{"tcp-established": 6}},
		Neighbors: []api.Neighbor{
			{State: "valid"}, {State: "valid"}, {State: "failed"},
		},
		Steering: map[string]uint64{"frontend": 30},

		ProblemCounts: map[problem.Kind]int{problem.UnsupportedField: 1, problem.FrontendConflict: 3, problem.StateFile: 1},
		StateFiles: []api.StateFile{{Name: "flow-table", NotUsed: map[string]uint64{"layout": 1}},
			{Name: "cluster-state", Bytes: 4096, GoodAt: &goodAt}},
		Kernel: []api.Feature{{Name: "a feature"}},
		Announce: &api.Announce{Speaker: "bgp", Held: 3, Peers: []api.AnnouncePeer{
			{Peer: "10.0.0.1", Established: true, BFD: "up"}, {Peer: "10.0.0.2", Established: true, BFD: "down"}, {Peer: "10.0.0.3"},
		}},
	}
}

func scrape(t *testing.T, h http.Handler) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Code, w.Body.String()
}

func TestMetricsShowTheStatus(t *testing.T) {
	code, body := scrape(t, Handler(NewRegistry(&source{status: example()}), func() bool { return false }, slog.New(slog.DiscardHandler)))
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{
		"weir_synced 1",
		"weir_draining 0",
		`weir_interface_attached{device="eth0"} 1`,
		`weir_interface_attached{device="eth1"} 0`,
		"weir_start_time_seconds 1000.5",
		"weir_snapshot_generation 42",
		"weir_snapshot_last_timestamp_seconds 0",
		"weir_services 3",
		"weir_services_skipped 1",
		"weir_healthy 1",
		"weir_frontends_hash 77",
		"weir_state_file_ok 0",
		`weir_state_file_not_used_total{cause="layout",file="flow-table"} 1`,
		`weir_state_file_bytes{file="cluster-state"} 4096`,
		`weir_state_file_good_timestamp_seconds{file="cluster-state"} 1000.5`,
		`weir_discovery_connected{resource="services"} 0`,
		`weir_discovery_last_contact_timestamp_seconds{resource="services"} 1000.5`,
		"weir_discovery_slices 9",
		`weir_problems{kind="frontend-conflict",severity="error"} 3`,
		`weir_problems{kind="manifest",severity="error"} 0`,
		"weir_discovery_fqdn_slices 2",
		"weir_discovery_named_endpoints 7",
		"weir_discovery_mirrored_services 1",
		"weir_discovery_refused_endpoints 4",
		"weir_discovery_services_removed_total 5",
		`weir_interface_repeated_packets_total{device="eth0"} 8`,
		`weir_interface_repeated_bytes_total{device="eth0"} 800`,
		`weir_interface_lost_packets_total{cause="pair",device="eth0"} 6`,
		`weir_interface_lost_packets_total{cause="transmit",device="eth0"} 9`,
		`weir_interface_steered_packets_total{device="eth0"} 2`,
		`weir_interface_info{device="eth0",driver="veth",hook="tcx",mode="native",pinned="true",tx_checksum="metadata"} 1`,
		`weir_interface_bound_queues{device="eth0"} 2`,
		`weir_socket_receive_ring_full_total{device="eth0",queue="0"} 5`,
		`weir_socket_invalid_descriptors_total{device="eth0",queue="0"} 3`,
		`weir_receive_packets_total{worker="1"} 20`,
		`weir_transmit_bytes_total{worker="0"} 99`,
		`weir_dropped_packets_total{reason="no-conntrack-entry"} 7`,
		`weir_dropped_packets_total{reason="martian"} 0`,
		"weir_flows 1",
		"weir_flows_limit 2",
		`weir_flows_by_state{state="tcp-established"} 6`,
		`weir_flows_refused_total{reason="no-port"} 3`,
		`weir_flows_refused_total{reason="table-full"} 4`,
		`weir_neighbors{state="valid"} 2`,
		`weir_neighbors{state="resolving"} 0`,
		`weir_steering_packets_total{action="frontend"} 30`,
		`weir_kernel_feature{feature="a feature"} 0`,
		`weir_announce_peer_bfd_up{peer="10.0.0.1"} 1`,
		"weir_announce_held_total 3",
		`weir_announce_peer_bfd_up{peer="10.0.0.2"} 0`,
		"# TYPE go_goroutines gauge",
		"# TYPE process_cpu_seconds_total counter",
	} {
		if !strings.Contains(body, "\n"+want+"\n") {
			t.Errorf("there is no line %s", want)
		}
	}
	if strings.Contains(body, `weir_announce_peer_bfd_up{peer="10.0.0.3"}`) {
		t.Error("a router without BFD has a state of BFD")
	}
	if !strings.Contains(body, "\nweir_build_info{") {
		t.Error("there is no weir_build_info")
	}
	if t.Failed() {
		t.Log(body)
	}
}

// The same descriptions and values, as a pedantic registry has it.
// An interface may be listed while it is absent: the host veth that is gone, or one that
// is about to be attached again. A VLAN upon a bond is listed for each member.
func TestInterfacesAreShownOncePerName(t *testing.T) {
	st := example()
	st.Interfaces = append(st.Interfaces,
		api.Interface{Name: "weir0", Mode: "native", HostVeth: true, Queues: 1, BoundQueues: 1},
		api.Interface{Name: "bond0.7", Device: "eth0"}, api.Interface{Name: "bond0.7", Mode: "native", Device: "eth9"})
	st.Absent = append(st.Absent, api.AbsentInterface{Name: "weir0", Reason: "is gone"})
	code, body := scrape(t, Handler(NewRegistry(&source{status: st}), func() bool { return false }, slog.New(slog.DiscardHandler)))
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{
		`weir_interface_attached{device="weir0"} 0`, `weir_interface_attached{device="bond0.7"} 1`, `weir_interface_attached{device="eth0"} 1`,
		`weir_interface_queues{device="weir0"} 1`,
	} {
		if strings.Count(body, want) != 1 {
			t.Errorf("%d times %s", strings.Count(body, want), want)
		}
	}
}

func TestMetricsAreConsistent(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	src := &source{status: example()}
	r.MustRegister(&collector{src}, healthCollector{src})
	if _, err := r.Gather(); err != nil {
		t.Error(err)
	}
}

func TestMetricNamesFollowTheConventions(t *testing.T) {
	name := regexp.MustCompile(`^weir_[a-z][a-z0-9_]*$`)
	labels := []string{"worker", "device", "queue", "umem", "reason", "state", "action", "feature", "mode", "driver", "hook", "tx_checksum", "pinned", "version", "revision", "goversion", "resource", "kind", "severity", "file", "cause", "address", "peer", "class", "interface", "change", "list", "to"}
	for _, m := range all {
		if !name.MatchString(m.name) {
			t.Errorf("%s is no name", m.name)
		}
		if total := strings.HasSuffix(m.name, "_total"); total != (m.kind == prometheus.CounterValue) {
			t.Errorf("%s: counters, and only they, end in _total", m.name)
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: the help is no sentence: %s", m.name, m.help)
		}
		for _, l := range m.labels {
			if !slices.Contains(labels, l) {
				t.Errorf("%s: label %s is not known to be bounded", m.name, l)
			}
		}
	}
}

func TestScrapeFailsWithOneLineWhenThereIsNoStatus(t *testing.T) {
	code, body := scrape(t, Handler(NewRegistry(&source{err: errors.New("not yet")}), func() bool { return false }, slog.New(slog.DiscardHandler)))
	if code != http.StatusInternalServerError || strings.Count(body, "not yet") != 1 {
		t.Errorf("%d %s", code, body)
	}
}

func TestProfilingIsServedWhenAskedFor(t *testing.T) {
	for _, on := range []bool{false, true} {
		w := httptest.NewRecorder()
		Handler(NewRegistry(&source{status: example()}), func() bool { return on }, slog.New(slog.DiscardHandler)).
			ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil))
		if got := w.Code == http.StatusOK; got != on {
			t.Errorf("profiling %v: %d", on, w.Code)
		}
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	golden.File(t, "README.md", reference())
}

func reference() string {
	b := &strings.Builder{}
	b.WriteString(`# Metrics

Served at /metrics of ` + "`metricsBindAddress`" + ` (default 127.0.0.1:9464), beside those of the Go
runtime (go_*) and of the process (process_*). Counters count since the start of
the process. At most ` + "`metricsServices`" + ` Services have series of their own (default
200), those with the most new connections and drops. The others are in the series of service
"other", so that the number of series does not grow with the cluster. Each packet counts
in a single series: that of its Service has those that came while the Service had series,
and the sum over the label service is that of all Services. "other" keeps the counts of Services
that are deleted, and the series of such a Service ends.

<!-- Written by go generate from collector.go, packets.go, services.go and endpoints.go. -->

| Metric | Type | Labels | Meaning |
| --- | --- | --- | --- |
`)
	for _, m := range all {
		kind := "gauge"
		if m.kind == prometheus.CounterValue {
			kind = "counter"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.name, kind, strings.Join(m.labels, ", "), m.help)
	}
	for _, m := range serviceMetrics {
		kind := map[prometheus.ValueType]string{
			prometheus.GaugeValue: "gauge", prometheus.CounterValue: "counter", prometheus.UntypedValue: "histogram",
		}[m.kind]
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.name, kind, strings.Join(m.labels, ", "), m.help)
	}
	fmt.Fprintf(b, "| `%s` | counter | %s | %s |\n", attemptsName, strings.Join(attemptLabels, ", "), attemptsHelp)
	for _, h := range latencies {
		fmt.Fprintf(b, "| `%s` | histogram |  | %s |\n", h.name, h.help)
	}
	b.WriteString("\n## Drop reasons\n\nValues of the label `reason` of `weir_dropped_packets_total`, and of *Drops* in `weir status`. `weir status --drops`\n" +
		"shows the last packets of each.\n\n| Reason | Meaning |\n| --- | --- |\n")
	for _, d := range worker.Drops() {
		fmt.Fprintf(b, "| `%s` | %s |\n", d, d.Text())
	}
	return b.String()
}

// A reason that nobody explains is of no use to an operator.
func TestEveryDropReasonIsExplained(t *testing.T) {
	for _, d := range worker.Drops() {
		if !strings.HasSuffix(d.Text(), ".") && !strings.HasSuffix(d.Text(), "explain.") {
			t.Errorf("%s: %q is no sentence", d, d.Text())
		}
	}
}
