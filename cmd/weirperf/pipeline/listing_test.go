package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain is the process that asks when the command starts itself as that.
func TestMain(m *testing.M) {
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--client=") }) {
		cmd := ListingCommand()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Lists and counts are complete while packets pass, and no connection is lost to them: the
// command would fail. The form of the JSON is a contract.
func TestConnectionsAreListedBesideTheLoop(t *testing.T) {
	var out bytes.Buffer
	cmd := ListingCommand()
	cmd.SetArgs([]string{"--flows", "5000", "--seconds", "0.3", "--turns", "2", "--json"})
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Flows     int
		Turns     []struct{ Without, With map[string]float64 }
		RateRatio map[string]float64
		P99Ratio  map[string]float64
		PeakMB    float64
		LiveMB    float64
		Asked     map[string]int
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Flows != 5000 || len(got.Turns) != 2 || got.RateRatio["median"] <= 0 || got.P99Ratio["median"] <= 0 {
		t.Errorf("%+v", got)
	}
	for _, turn := range got.Turns {
		for _, part := range []map[string]float64{turn.Without, turn.With} {
			if part["packetsPerSecond"] <= 0 || part["p99us"] < part["p50us"] || part["p50us"] <= 0 {
				t.Errorf("%v", part)
			}
		}
	}
	if got.Asked["lists"] == 0 || got.Asked["connections"] < 5000*got.Asked["lists"] || got.PeakMB <= 0 || got.LiveMB <= 0 {
		t.Errorf("%v", got.Asked)
	}
}

func TestLatenciesAreClassedClosely(t *testing.T) {
	for ns := uint64(1); ns < 1<<40; ns += 1 + ns/97 {
		least, next := leastOf(classOf(ns)), leastOf(classOf(ns)+1)
		if least > ns || next <= ns || ns >= 2*latencyParts && next-least > least/latencyParts {
			t.Fatalf("%d ns: in a class from %d to %d", ns, least, next)
		}
	}
	h := &latencies{}
	for i := range 1000 {
		h.note(time.Duration(i+1) * time.Microsecond)
	}
	for share, want := range map[float64]float64{0.5: 500, 0.99: 990, 0.999: 999} {
		if got := h.quantile(share); got > want || got < want*63/64 {
			t.Errorf("quantile %v: %v us, want %v", share, got, want)
		}
	}
}

func TestListingBar(t *testing.T) {
	r := &ListingReport{Turns: []ListingTurn{
		{ListingPart{PacketsPerSecond: 100, P99us: 10}, ListingPart{PacketsPerSecond: 95, P99us: 10.5}},
		{ListingPart{PacketsPerSecond: 100, P99us: 10}, ListingPart{PacketsPerSecond: 80, P99us: 12}},
		{ListingPart{PacketsPerSecond: 100, P99us: 10}, ListingPart{PacketsPerSecond: 88, P99us: 11.5}},
	}}
	r.summarize()
	if err := r.judge(10); err == nil || !strings.Contains(err.Error(), "0.880") || !strings.Contains(err.Error(), "1.150") {
		t.Error(err)
	}
	if err := r.judge(20); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"--flows", "1"}, {"--seconds", "0"}, {"--turns", "0"}, {"--bar", "-1"}} {
		cmd := ListingCommand()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
