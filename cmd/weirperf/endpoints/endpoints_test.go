package endpoints

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// The processes of endpoints are this program: see startServers.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "endpoints" && os.Args[2] == "--serve" {
		cmd := Command()
		cmd.SetArgs(os.Args[2:])
		if cmd.Execute() != nil {
			os.Exit(1)
		}
		return
	}
	weirtest.Main(m)
}

func TestWrongUsageSaysAllThatIsWrong(t *testing.T) {
	cmd := Command()
	cmd.SetArgs([]string{"--parts", "dead", "--peers", "nftables", "--turns", "0", "--endpoints", "0", "--weir", "x"})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()
	var coder interface{ ExitCode() int }
	if !errors.As(err, &coder) || coder.ExitCode() != 2 {
		t.Fatalf("not an error of usage: %v", err)
	}
	for _, s := range []string{`unknown part "dead"`, "nftables checks no endpoints", "--turns", "--endpoints"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

func TestConnectionsSinceTheFaultAreSummedUp(t *testing.T) {
	s := time.Second
	r := sumUp([]connection{
		{begun: -s, err: errors.New("before")}, {begun: 2 * s, took: s}, {begun: s, took: 2 * s}, {begun: 3 * s, took: s / 10},
		{begun: 11 * s, took: s / 10}, {begun: 12 * s, took: 20 * s, err: errors.New("timeout")},
	})
	if want := (Result{Connections: 5, Failed: 1, Affected: 3, LastAffected: 12, SlowFirst: 100. / 3, SlowAfter: 50, MaxSeconds: 20, FirstError: "timeout"}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	var out bytes.Buffer
	rep := report{Results: []Result{{Part: partKilled, Peer: "weir", Connections: 7}}, Loads: []Load{{"weir", "", 1, 0}, {"weir", "http", 4, 500}, {"weir", "", 3, 0}, {"weir", "", 2, 0}}}
	if err := rep.render(&out); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"killed", "weir      checks: none        2.00 (1.00 - 3.00)", "checks: http        4.00"} {
		if !strings.Contains(out.String(), s) {
			t.Errorf("no %q in:\n%s", s, &out)
		}
	}
}

// A killed endpoint costs no connection. On a busy machine the others may fail to answer within a second, too: then a
// refusal reaches a client, but most that met the killed endpoint are served.
func TestWireAKilledEndpointIsMeasured(t *testing.T) {
	labtest.Require(t)
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(os.Stderr)
	cmd.SetArgs([]string{"--parts", "killed", "--peers", "weir", "--turns", "1", "--json", "--weir", weirtest.Binary(t)})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 || r.Results[0].Connections < 100 {
		t.Fatalf("%+v", r.Results)
	}
	if k := r.Results[0]; k.Failed > max(k.Connections/1000, k.Affected/2) {
		t.Errorf("%+v", k)
	}
}
