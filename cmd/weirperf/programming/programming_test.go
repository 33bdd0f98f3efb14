package programming

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

func TestMain(m *testing.M) { weirtest.Main(m) }

func TestWrongUsageSaysAllThatIsWrong(t *testing.T) {
	t.Setenv("KUBEENV_BIN", "")
	t.Setenv("KUBEPROXY_BIN", "/nonexistent/kube-proxy")
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--services", "5,40000", "--seconds", "0", "--rate", "1000"}, []string{"is 5", "is 40000", "--seconds", "--rate"}},
		{[]string{"--peers", "ipvs", "--weir", "x"}, []string{`unknown peer "ipvs"`}},
		{[]string{"--weir", "x"}, []string{"--kubeenv: is not set: discovery/kube/kubeenv/build.sh", "--kube-proxy: stat /nonexistent/kube-proxy"}},
		{[]string{"--weir", "x", "--kubeenv", "command.go"}, []string{"command.go is not executable"}},
	} {
		cmd := Command()
		cmd.SetArgs(c.args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.Execute()
		var coder interface{ ExitCode() int }
		if !errors.As(err, &coder) || coder.ExitCode() != 2 {
			t.Errorf("%v: not an error of usage: %v", c.args, err)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v: the error does not say %q: %v", c.args, s, err)
			}
		}
	}
}

func TestReportHasRatiosFirst(t *testing.T) {
	var times []time.Duration
	for i := range 200 {
		times = append(times, time.Duration(200-i)*time.Millisecond)
	}
	q := quantilesOf(times)
	if want := (Quantiles{Of: 200, P50: 101, P90: 181, P99: 199, Max: 200}); q != want {
		t.Errorf("%+v, want %+v", q, want)
	}
	slow := Quantiles{Of: 1, P50: 1000, P90: 1000, P99: 1990, Max: 2000}
	r := newReport(&options{rate: 10, seconds: 20}, []Result{
		{Peer: peerWeir, Services: 1000, ColdStartSeconds: 2, ToNew: q}, {Peer: peerKubeProxy, Services: 1000, ColdStartSeconds: 1, ToNew: slow},
		{Peer: peerWeir, Services: 2000, ToNew: q, Missed: 3},
	})
	var out bytes.Buffer
	if err := r.render(&out); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, want := range []string{
		"0.100    1000 Services, to new p99, weir/kube-proxy", "1000 Services, weir",
		"p50 101.0 ms, p90 181.0, p99 199.0, max 200.0 of 200", "3 changes have not arrived",
	} {
		next := strings.Index(out.String(), want)
		if next < at || next < 0 {
			t.Errorf("%q is not there, or not in this order:\n%s", want, out.String())
		}
		at = next
	}
}

// Both peers in a small cluster: each change arrives, and no connection fails for long.
func TestKubeWireProgrammingFollowsBothPeers(t *testing.T) {
	labtest.Require(t)
	if os.Getenv("KUBEENV_BIN") == "" || os.Getenv("KUBEPROXY_BIN") == "" {
		labtest.Skip(t, "KUBEENV_BIN or KUBEPROXY_BIN is not set: run make test-kube, which builds both")
	}
	cmd := Command()
	var out, progress bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	cmd.SetArgs([]string{"--weir", weirtest.Binary(t), "--services", "25", "--seconds", "1", "--json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var peers []string
	for _, r := range got.Results {
		peers = append(peers, r.Peer)
		if r.Missed > 0 || r.ToNew.Of == 0 || r.ToNew.P50 <= 0 || r.Connect.Of != connects || r.ColdStartSeconds <= 0 || r.CPUSeconds <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if !slices.Equal(peers, peerNames()) {
		t.Errorf("results of %v\n%s", peers, out.String())
	}
}
