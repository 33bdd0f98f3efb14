package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// soundSeries are the metrics of alerts that a node without API server, routers and controller
// does not have, with values of a sound node. An alert that asks for another metric needs a row.
var soundSeries = map[string]string{
	`weir_announce_address{address="192.0.2.1"}`:                          "1",
	`weir_announce_addresses`:                                             "10",
	`weir_announce_addresses_limit`:                                       "1000",
	`weir_announce_held_total`:                                            "0",
	`weir_announce_link_changes_total{change="claimed",interface="eth0"}`: "0",
	`weir_announce_link_up{interface="eth0"}`:                             "1",
	`weir_announce_peer_bfd_up{peer="192.0.2.254"}`:                       "1",
	`weir_announce_peer_up{peer="192.0.2.254"}`:                           "1",
	`weir_announce_withheld_addresses{reason="not-served"}`:               "3",
	`weir_announce_withheld_addresses{reason="unhealthy"}`:                "0",
	`weir_controller_leading`:                                             "1",
	`weir_pool_addresses{family="ipv4",pool="p",state="assigned"}`:        "80",
	`weir_pool_addresses{family="ipv4",pool="p",state="available"}`:       "20",
	`weir_pool_faults`:                                                    "0",
	`weir_discovery_connected{resource="services"}`:                       "1",
	`weir_discovery_stale_age_seconds`:                                    "0",
	`weir_state_file_good_timestamp_seconds{file="state"}`:                "0+60x60",
	`weir_state_file_not_used_total{cause="layout",file="x"}`:             "0",
	`weir_state_file_not_used_total{cause="reboot",file="x"}`:             "1",
	`weir_service_endpoints_checked{health="failing",service="ns/idle"}`:  "0",
	`up`: "1",
	`weir_dropped_packets_total{reason="not-ip"}`:                                 "0",
	`weir_service_dropped_packets_total{reason="source-range",service="ns/idle"}`: "0",
}

// recording are the metrics of several scrapes in a row: of a round of traffic each, which counts
// as a minute at the same rate.
type recording struct {
	counter map[string]bool      // by metric
	values  map[string][]float64 // by series; a series may begin late
	lengths []time.Duration      // of the rounds
	scrapes int
}

var sampleLine = regexp.MustCompile(`^([a-z_]+)(\{.*\})? (\S+)$`)

// add adds a scrape, at the end of a round.
func (r *recording) add(text string, round time.Duration) error {
	now := time.Now()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if f := strings.Fields(line); strings.HasPrefix(line, "# TYPE") {
			r.counter[f[2]] = f[3] == "counter"
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], "weir_") {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return err
		}
		if v > 0 && (strings.HasSuffix(m[1], "_timestamp_seconds") || m[1] == "weir_start_time_seconds") {
			v += float64(60*r.scrapes) - float64(now.UnixNano())/1e9 // the clock of the rules begins at 0
		}
		series := m[1] + m[2]
		for len(r.values[series]) < r.scrapes {
			r.values[series] = append(r.values[series], 0)
		}
		r.values[series] = append(r.values[series], v)
	}
	r.lengths = append(r.lengths, round)
	r.scrapes++
	return nil
}

// series is the recording in promtool's notation. After the recorded minutes all goes on as on
// average.
func (r *recording) series() map[string]string {
	out := map[string]string{}
	for series, values := range r.values {
		name, _, _ := strings.Cut(series, "{")
		at, step := values[0], 0.0
		words := []string{fmt.Sprint(at)}
		for i := 1; i < len(values); i++ {
			if r.counter[name] {
				at += (values[i] - values[i-1]) * 60 / r.lengths[i].Seconds()
			} else {
				at = values[i]
			}
			words = append(words, fmt.Sprint(at))
		}
		if r.counter[name] && len(values) > 1 {
			step = (at - values[0]) / float64(len(values)-1)
		}
		out[series] = strings.Join(words, " ") + fmt.Sprintf(" %v+%vx40", at, step)
	}
	return out
}

// names are the metrics of some series.
func names(series map[string]string) map[string]bool {
	out := map[string]bool{}
	for s := range series {
		name, _, _ := strings.Cut(s, "{")
		out[name] = true
	}
	return out
}

// silent has promtool evaluate the chart's alerts over the series for half an hour, in which
// none may fire.
func silent(t *testing.T, file string, series map[string]string) error {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		labtest.Skip(t, "no promtool: see .ci/programs")
	}
	rules, err := filepath.Abs(chartAlerts)
	must(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n", rules)
	for s, values := range series {
		name, labels, _ := strings.Cut(s, "{")
		labels = strings.TrimPrefix(`instance="edge-1",job="weir",`+labels, "{")
		fmt.Fprintf(&b, "  - {series: %q, values: %q}\n", name+"{"+strings.TrimSuffix(strings.TrimSuffix(labels, "}"), ",")+"}", values)
	}
	b.WriteString("  promql_expr_test:\n")
	for _, minute := range []int{8, 15, 25, 35} {
		fmt.Fprintf(&b, "  - {expr: 'ALERTS{alertstate=\"firing\"}', eval_time: %dm}\n", minute)
	}
	must(t, os.WriteFile(file, []byte(b.String()), 0o644))
	if out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// askedFor are the metrics that the chart's alerts ask for, with an alert that does.
func askedFor(t *testing.T) map[string]string {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err := os.ReadFile(chartAlerts)
	must(t, err)
	must(t, yaml.Unmarshal(text, &rules))
	out := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			found := regexp.MustCompile(`\b(weir_\w+|up)\b`).FindAllString(r.Expr, -1)
			if len(found) == 0 {
				t.Errorf("%s asks for no metric of Weir", r.Alert)
			}
			for _, name := range found {
				out[name] = r.Alert
			}
		}
	}
	return out
}

// Nothing that an alert counts counts success: TCP and UDP in all forwarding modes and both
// families, to node ports and load balancer addresses, also from a client port that another
// frontend of the Service has at the same time, raise no alert in half an hour at the same rate.
func TestWireOrdinaryTrafficRaisesNoAlert(t *testing.T) {
	f := newDirectFixture(t, toAttached, toRouted, toOverlay, toLocalPod, toLocalNode)
	var web, echo []netip.AddrPort
	for _, six := range []bool{false, true} {
		for _, s := range f.services {
			web = append(web, s.at(httpPort, six), s.atNode(httpPort, six))
			echo = append(echo, s.at(echoPort, six), s.atNode(echoPort, six))
		}
		for _, s := range directServices {
			addr := service{index: s.index}.lbIP(six)
			web, echo = append(web, netip.AddrPortFrom(addr, httpTarget)), append(echo, netip.AddrPortFrom(addr, echoTarget))
		}
	}
	load := &workload.Load{Namespace: f.Client, Targets: web, Concurrency: 8, Requests: 8 * len(web), Pause: 10 * time.Millisecond}
	r := recording{counter: map[string]bool{}, values: map[string][]float64{}}
	must(t, r.add(f.metrics(t), time.Second))
	for round := range 4 {
		begun := time.Now()
		record, err := load.Run(inTime(t, within))
		must(t, errors.Join(err, record.Err()))
		for _, to := range echo {
			_, err := workload.Ask(f.Client, to, within)
			must(t, err)
		}
		for n := range 8 {
			must(t, f.sharePort(t, uint16(20000+100*round+n), n%2 == 1, toLocalPod))
		}
		must(t, r.add(f.metrics(t), time.Since(begun)))
	}
	series := r.series()
	recorded := names(series)
	for s, values := range soundSeries {
		if name, _, _ := strings.Cut(s, "{"); !recorded[name] {
			if !strings.Contains(values, "x") {
				values += "x60"
			}
			series[s] = values
		}
	}
	known := names(series)
	for name, alert := range askedFor(t) {
		if !known[name] {
			t.Errorf("%s asks for %s, which neither this node has nor soundSeries", alert, name)
		}
	}
	must(t, silent(t, f.path("ordinary.yaml"), series))
	events := f.ask(t, "events")
	for _, kind := range []string{"snat-ports-exhausted", "flow-table-full"} {
		if strings.Contains(events, kind) {
			t.Errorf("event %s:\n%s", kind, events)
		}
	}
	if t.Failed() {
		t.Log(f.whatWasDropped())
	}
}

// sharePort connects from a client's port to the node port of a Service, and meanwhile from the
// same port to the load balancer address: the client's port is taken at the endpoint.
func (f *fixture) sharePort(t *testing.T, port uint16, six bool, s service) error {
	t.Helper()
	local := netlab.Host4(netlab.ClientNet, 2)
	if six {
		local = netlab.Host6(netlab.ClientNet, 2)
	}
	d := &net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, port)),
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}), err)
		},
	}
	var errs []error
	for _, to := range []netip.AddrPort{s.atNode(echoPort, six), s.at(echoPort, six)} {
		c, err := f.Client.DialWith(inTime(t, within), d, "tcp", to.String())
		if err != nil {
			return fmt.Errorf("port %d to %s: %w", port, to, err)
		}
		defer c.Close()
		errs = append(errs, workload.PingPong(c, "hello", within))
	}
	return errors.Join(errs...)
}
