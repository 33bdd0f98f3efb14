package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/table"
)

// Shares of figure 12 as published by an independent implementation
// (1,000 endpoints, 65,537 slots): 1 to 5 % of endpoints fail.
func TestTableSizesOfThePaperChangeAsThePaperSays(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute with the race detector")
	}
	published := map[int]float64{10: 3.34, 20: 4.67, 30: 5.89, 40: 7.11, 50: 8.24}
	for removed, want := range published {
		small, err := paperCurve(context.Background(), 1, 65537, removed, 20)
		if err != nil {
			t.Fatal(err)
		}
		if d := small.ChangedPercent/want - 1; math.Abs(d) > 0.05 {
			t.Errorf("%d removed: %.3f %% of slots change, want %.2f %% within a twentieth", removed, small.ChangedPercent, want)
		}
		// The paper: a larger table is more resilient.
		large, err := paperCurve(context.Background(), 1, 655373, removed, 1)
		if err != nil {
			t.Fatal(err)
		}
		if own := float64(removed) / 10; large.ChangedPercent < own || large.ChangedPercent > small.ChangedPercent {
			t.Errorf("%d removed: %.3f %% of 655373 slots change, want from %.1f to %.3f %%", removed, large.ChangedPercent, own, small.ChangedPercent)
		}
	}
}

func TestHashThresholdMovesFlowsAsRFC2992Says(t *testing.T) {
	for _, n := range []int{2, 3, 4, 8, 33, 1000} {
		if first, last := thresholdDisruption(n, 1), thresholdDisruption(n, n); first != 0.5 || last != 0.5 {
			t.Errorf("%d nodes: formula says %v and %v for the ends, the RFC 1/2", n, first, last)
		}
		if n%2 == 1 { // the RFC: 1/4 + 1/(4N) in the middle
			if got, want := thresholdDisruption(n, (n+1)/2), 0.25+0.25/float64(n); math.Abs(got-want) > 1e-12 {
				t.Errorf("%d nodes: formula says %v for the middle, want %v", n, got, want)
			}
		}
		for _, k := range []int{1, (n + 1) / 2, n} {
			f := formula(1, n, k, 200_000, 64)
			if math.Abs(f.SimulatedPercent-f.FormulaPercent) > 0.5 {
				t.Errorf("node %d of %d: %.2f %% of flows move, formula %.2f %%", k, n, f.SimulatedPercent, f.FormulaPercent)
			}
			if want := 100 * float64(n-1) / float64(n); math.Abs(f.ModuloPercent-want) > 0.5 {
				t.Errorf("node %d of %d, modulo: %.2f %% of flows move, want %.2f %%", k, n, f.ModuloPercent, want)
			}
			if want := 100 / float64(n); math.Abs(f.ResilientPercent-want) > 0.5 {
				t.Errorf("node %d of %d, resilient: %.2f %% of flows move, want %.2f %%", k, n, f.ResilientPercent, want)
			}
		}
	}
}

func TestResilientBucketsMoveNoFlowOfANodeThatStays(t *testing.T) {
	before := newGroup(resilient, 8, 64)
	after := before.without([]int32{3})
	back := after.with([]int32{3})
	moved := 0
	for i := range before.buckets {
		if before.buckets[i] != 3 && after.buckets[i] != before.buckets[i] {
			t.Fatalf("bucket %d moved from node %d, which stays", i, before.buckets[i])
		}
		if after.buckets[i] == 3 {
			t.Fatalf("bucket %d is still of the lost node", i)
		}
		if back.buckets[i] != after.buckets[i] {
			moved++
			if back.buckets[i] != 3 {
				t.Fatalf("bucket %d moved to node %d when 3 came", i, back.buckets[i])
			}
		}
	}
	if moved < 60 || moved > 64 {
		t.Errorf("%d buckets moved to the node that came, want about 64", moved)
	}
}

// A flow is a tuple as workers have it, to the simulated frontend.
func TestFlowsAreTuplesOfTheFrontend(t *testing.T) {
	tuple := [5]uint64{0: destination.addr | 0x0100000a, 4: destination.rest | destination.ports | 0x1234}
	want := table.MakeKey(netip.AddrPortFrom(frontendAddr, frontendPort), protoTCP)
	if got := table.DestinationKey(&tuple); got != want {
		t.Errorf("destination %+v, want %+v", got, want)
	}
}

// sweep is the cells of options.
func sweep(t *testing.T, o Options) []Cell {
	t.Helper()
	o.Endpoints, o.Slots, o.ECMP, o.Buckets, o.Lost = 1000, []int{0}, []string{"modulo", "threshold", "resilient"}, 64, []int{1}
	o.Lag, o.Lifetime, o.Trials = []time.Duration{0, 5 * time.Second}, time.Minute, 5
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	s := simulation{ctx: t.Context(), seed: o.Seed, flows: o.Flows, trials: o.Trials, older: o.Older}
	out, err := s.sweep(&o, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The relations between modes and kinds of ECMP that follow from their definitions.
func TestBrokenConnectionsFollowFromTheMode(t *testing.T) {
	byECMP := map[string]Cell{}
	for _, c := range sweep(t, Options{Nodes: []int{8}, Churn: []int{0, 10}, Flows: 50_000, Seed: 1}) {
		if c.NATPercent != c.MovedPercent {
			t.Errorf("nat: %v broken, %v moved: %+v", c.NATPercent, c.MovedPercent, c)
		}
		if c.Replaced == 0 && (c.DSRPercent.Max != 0 || c.NoTablePercent.Max != 0 || c.GonePercent != 0 || c.MisledPercent != 0) {
			t.Errorf("without churn nothing breaks in DSR modes: %+v", c)
		}
		if c.DSRPercent.Mean > c.NATPercent.Mean || c.DSRPercent.Mean > c.NoTablePercent.Mean {
			t.Errorf("dsr breaks more than nat or than no flow table: %+v", c)
		}
		if c.ECMP == "resilient" && c.LivingPercent.Max != 0 && c.Event == loss {
			t.Errorf("resilient: flows of living nodes moved: %+v", c)
		}
		if (c.MisledPercent > 0) != (c.Replaced > 0 && c.LagSeconds > 0) {
			t.Errorf("new connections to endpoints that are gone: %+v", c)
		}
		if c.Replaced == 10 && c.Event == loss && c.LagSeconds == 0 {
			byECMP[c.ECMP] = c
		}
	}
	m, th, r := byECMP["modulo"].DSRPercent.Mean, byECMP["threshold"].DSRPercent.Mean, byECMP["resilient"].DSRPercent.Mean
	if !(m > th && th > r && r > 0) {
		t.Errorf("broken in DSR modes: modulo %v, threshold %v, resilient %v; want descending", m, th, r)
	}
}

// Of connections with exponential lifetimes the share exp(-1/2) is older than a replacement half a
// lifetime ago. With --older all are.
func TestAllConnectionsCanBeOlderThanTheReplacement(t *testing.T) {
	o := Options{Nodes: []int{4}, Churn: []int{1}, Flows: 500_000, Seed: 1}
	mixed := sweep(t, o)
	o.Older = true
	for i, c := range sweep(t, o) {
		if c.LagSeconds > 0 {
			continue
		}
		if got, want := c.NoTablePercent.Mean, mixed[i].NoTablePercent.Mean*math.Exp(0.5); math.Abs(got/want-1) > 0.05 {
			t.Errorf("%s, %s: %.3f %% change their endpoint, want %.3f %%", c.ECMP, c.Event, got, want)
		}
		if c.MovedPercent.Mean != mixed[i].MovedPercent.Mean && c.GonePercent == mixed[i].GonePercent {
			t.Errorf("%s, %s: other connections move", c.ECMP, c.Event)
		}
	}
}

func TestASeedGivesTheSameShares(t *testing.T) {
	o := Options{Nodes: []int{64}, Churn: []int{10}, Flows: 20_000, Seed: 7}
	a, b := sweep(t, o), sweep(t, o)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("two runs differ:\n%+v\n%+v", a[i], b[i])
		}
	}
	o.Seed = 8
	if c := sweep(t, o); c[0] == a[0] {
		t.Error("another seed gives the same")
	}
}

// The short form is that of continuous integration; the results hold every part.
func TestResultsAreAPageAChartAndJSON(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute with the race detector")
	}
	dir := t.TempDir()
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs([]string{"--short", "--flows", "20000", "--results", dir})
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{
		"fleet.md":   {"Buy resilient hashing", "Table size: leave it", "](fleet.svg)", "RFC 2992", "Lag matters", "Mode `nat`"},
		"fleet.svg":  {"resilient", "8 nodes"},
		"fleet.json": {`"maglevPaper"`, `"rfc2992"`, `"tableSizes"`, `"cells"`, `"brokenDsrPercent"`},
	}
	for name, parts := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(b), part) {
				t.Errorf("%s has no %q", name, part)
			}
		}
		if strings.Contains(string(b), "%!") {
			t.Errorf("%s has a figure without a value", name)
		}
	}
	var rep Report
	b, _ := os.ReadFile(filepath.Join(dir, "fleet.json"))
	if err := json.Unmarshal(b, &rep); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := rep.render(&out); err != nil || strings.Count(out.String(), "\n") < len(rep.Cells)+len(rep.Paper)+len(rep.RFC2992) {
		t.Errorf("printed, %v:\n%s", err, &out)
	}
}

func TestFleetRefusesWhatCannotBeSimulated(t *testing.T) {
	for _, args := range [][]string{
		{"--nodes", "1"}, {"--nodes", "10001"}, {"--ecmp", "random"}, {"--slots", "1000"}, {"--slots", "997"}, {"--lost", "8", "--nodes", "8"},
		{"--lifetime", "0s"}, {"--lag", "-1s"}, {"--flows", "1"}, {"--churn", "1001"},
	} {
		cmd := Command()
		cmd.SetArgs(append(args, "--short"))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.Execute(); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
