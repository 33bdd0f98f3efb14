package forward

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/report"
)

func TestMain(m *testing.M) { weirtest.Main(m) }

func TestWrongUsageSaysAllThatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--peers", "nginx2,kernel", "--seconds", "0", "--turns", "0"}, []string{`unknown peer "nginx2"`, "--seconds", "--turns"}},
		{[]string{"--peers", "kernel", "--flows", "0,5", "--setting", "fast", "--endpoints", "0"}, []string{"--flows", "--setting", "--endpoints"}},
		{[]string{"--peers", "kernel", "--workloads", "udp"}, []string{`unknown workload "udp"`, report.Established}},
		{[]string{"--weir", "/nonexistent/weir"}, []string{"/nonexistent/weir"}},
		{[]string{"--peers", "weir-tcx", "--weir", "/nonexistent/weir"}, []string{"/nonexistent/weir"}},
		{[]string{"--peers", "kernel", "--baseline", "/nonexistent/baseline"}, []string{"/nonexistent/baseline"}},
	} {
		cmd := Command()
		cmd.SetArgs(c.args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.Execute()
		if err == nil {
			t.Errorf("%v: no error", c.args)
			continue
		}
		if coder, ok := err.(interface{ ExitCode() int }); !ok || coder.ExitCode() != 2 {
			t.Errorf("%v: not an error of usage: %v", c.args, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v: the error does not say %q: %v", c.args, s, err)
			}
		}
	}
}

func TestTableHasRatiosFirst(t *testing.T) {
	k := report.Key{Peer: "weir", Workload: report.Established, Setting: "threaded", Flows: 100000}
	weir := report.Summarize(k, []report.Turn{{Seconds: 1, Packets: 1e6, CPUSeconds: 1}})
	k.Peer = "nftables"
	nft := report.Summarize(k, []report.Turn{{Seconds: 1, Packets: 4e5, CPUSeconds: 1, Lost: 4e5}})
	o := options{peers: []string{"weir", "nftables"}, endpoints: 256, seconds: 1}
	var out bytes.Buffer
	if err := newResult(o, []report.Result{nft, weir}).render(&out); err != nil {
		t.Fatal(err)
	}
	ratio := strings.Index(out.String(), "2.50  udp-established weir/nftables 100000 flows threaded")
	figure := strings.Index(out.String(), "1000 ns/packet (1000..1000)")
	if ratio < 0 || figure < ratio || !strings.Contains(out.String(), "lost 50.0 %") {
		t.Errorf("%s", out.String())
	}
}

// A ratio is reached, falls short, is an aim alone, or was not measured.
func TestBarsTellWhatFallsShort(t *testing.T) {
	turn := func(p string, flows int, ns float64, bytes float64) report.Result {
		k := report.Key{Peer: p, Workload: report.Established, Setting: "threaded", Flows: flows}
		return report.Summarize(k, []report.Turn{{Seconds: 1, Packets: 1e6, CPUSeconds: ns / 1e3,
			Details: map[string]float64{peer.TableBytes: bytes}}})
	}
	bulk := func(p string, gbps, cpu float64) report.Result {
		return report.Summarize(report.Key{Peer: p, Workload: report.Bulk, Setting: "threaded", Flows: bulkStreams, Detail: "offloads"},
			[]report.Turn{{Seconds: 1, Gbps: gbps, AllCPU: cpu, Bytes: 1e9}})
	}
	bulkByClient := func(p string, gbps float64) report.Result {
		return report.Summarize(report.Key{Peer: p, Workload: report.Bulk, Setting: "threaded", Flows: bulkStreams, Detail: "offloads"},
			[]report.Turn{{Seconds: 1, Gbps: gbps, LBBusy: 0.5, LoadBusy: 1}})
	}
	o := options{bars: true, peers: barPeers, workloads: []string{report.Established, report.Bulk}, flows: []int{10000, 100000}}
	r := newResult(o, []report.Result{
		turn("weir-xdp", 10000, 500, 240), turn("nftables", 10000, 1250, 0), // 2.5 times
		turn("weir-xdp", 100000, 700, 240), turn("nftables", 100000, 1400, 0), // 2 times
		turn("weir-loop", 100000, 1000, 230),
		bulk("weir-tcx", 10, 0.5), bulk("nftables", 10, 0.6), bulk("kernel", 11, 0.4), bulkByClient("weir-loop", 1),
	})
	var out bytes.Buffer
	if err := r.render(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"UDP established, 10000 ns/packet weir-xdp 500 nftables 1250 2.50 2.20 pass",
		"UDP established, 100000 ns/packet weir-xdp 700 nftables 1400 2.00 2.20 FALLS SHORT",
		"UDP established, 10000 weir-tcx - nftables - - 1.50 NOT MEASURED",
		"TCP bulk, 4 Gbit/s weir-tcx 10 kernel 11 0.91 0.95 below the aim",
		"TCP bulk, 4 Gbit/s weir-tcx 10 weir-loop 1.00 - 5.00 no result: the clients were the limit",
		"limit: client (balancer's core 50 % busy, clients' 100 %)",
		"TCP bulk, 4 CPU s/GB weir-tcx 0.50 nftables 0.60 1.20 1.00 pass",
		"memory per connection, 100000 bytes weir-xdp 240 weir-loop 230 0.96 1.00 FALLS SHORT",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if err := missed(r.Bars); err == nil || !strings.Contains(err.Error(), "6 of 11 ratios") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestWireForwardMeasuresEveryPeer runs all peers for a moment, Weir as built
// from this source, and looks at the JSON form and at what is left behind.
func TestWireForwardMeasuresEveryPeer(t *testing.T) {
	labtest.Require(t)
	weir := weirtest.Binary(t)
	limit := conntrackLimit(t)
	for _, setting := range []string{"threaded", "default"} {
		t.Run(setting, func(t *testing.T) {
			cmd := Command()
			var out, progress bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&progress)
			cmd.SetArgs([]string{"--weir", weir, "--peers", "weir,nftables,kernel", "--workloads", "udp-established,udp-new",
				"--setting", setting, "--flows", "500,2000", "--seconds", "0.2", "--turns", "1", "--json"})
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, progress.String())
			}
			checkJSON(t, out.Bytes(), setting)
		})
	}
	if now := conntrackLimit(t); now != limit {
		t.Errorf("nf_conntrack_max is %s, was %s", now, limit)
	}
}

func conntrackLimit(t *testing.T) string {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func checkJSON(t *testing.T, b []byte, setting string) {
	var got struct {
		Results []struct {
			Peer, Workload, Setting                    string
			Flows                                      int
			Mpps, NsPerPacket, CPUSeconds, LostPercent *float64
			PerSecond, Gbps, P50us, P99us              *float64
		}
		Ratios map[string]float64
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 9 { // three peers, two numbers of flows and new ones
		t.Errorf("%d results, want 9\n%s", len(got.Results), b)
	}
	for _, r := range got.Results {
		for name, v := range map[string]*float64{"mpps": r.Mpps, "nsPerPacket": r.NsPerPacket} {
			if v == nil || *v <= 0 {
				t.Errorf("%s %s %d: %s is missing or 0", r.Peer, r.Workload, r.Flows, name)
			}
		}
		if r.Setting != setting || r.CPUSeconds == nil || r.PerSecond == nil || r.Gbps == nil || r.P50us == nil || r.P99us == nil {
			t.Errorf("%s %s: a field of the JSON form is missing: %+v", r.Peer, r.Workload, r)
		}
	}
	for _, name := range []string{"udp-established weir/nftables", "udp-established weir/kernel", "udp-new weir/nftables"} {
		if got.Ratios[name] <= 0 {
			t.Errorf("ratio %q is missing", name)
		}
	}
}
