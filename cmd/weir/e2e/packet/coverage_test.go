package packet

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/perf/golden"
)

// elsewhere are the reasons of dropping that no crafted packet brings about on
// a wire, with the test that does: package directory, test.
var elsewhere = map[string][2]string{
	"not-ip":               {"lb/worker", "TestWhatIsNotIPGoesBackToTheKernelOnce"},
	"unsupported-protocol": {"lb/worker", "TestPingsThatAreNotAnswered"},
	"echo-rate-limited":    {"lb/worker", "TestAnswersAreLimitedPerSource"},
	"reply-rate-limited":   {"lb/worker", "TestAnswersAreLimitedPerSource"},
	"snat-ports-exhausted": {"lb/worker", "TestExhaustedPortsNameTheEndpoint"},
	"flow-table-full":      {"lb/worker", "TestAFullTableForwardsWhatNeedsNoFlow"},
	"no-route":             {"lb/worker", "TestEndpointsWithoutARoute"},
	"transmit-ring-full":   {"lb/worker", "TestAFullTransmitRingLosesOnlyWhatDoesNotFit"},
	"handoff-ring-full":    {"lb/worker", "TestAFullHandoffRingDropsOnlyWhatDoesNotFit"},
	"unsupported":          {"lb/worker", "TestAFrameWithoutRoomIsDropped"},
	"draining":             {"lb/worker", "TestADrainLeavesNewConnectionsToTheKernel"},
	"refused-by-endpoint":  {"lb/worker", "TestARefusedConnectionGoesElsewhere"},
}

// TestCoverage holds the report to the table, and the table to its promises.
func TestCoverage(t *testing.T) {
	names := map[string]bool{}
	counted := map[string]string{}
	var cases int
	for _, c := range scenarios {
		for _, v := range c.variants() {
			if names[v.test()] {
				t.Errorf("two cases are called %s", v.test())
			}
			names[v.test()] = true
			cases++
			for reason := range c.drops {
				counted[reason] = v.test()
			}
		}
	}
	t.Logf("%d cases of %d scenarios", cases, len(scenarios))
	if cases < 250 || len(scenarios) < 80 {
		t.Error("want at least 250 cases of 80 scenarios")
	}
	for _, reason := range worker.DropReasons() {
		at, ok := elsewhere[reason]
		switch {
		case ok && !exists(t, at[0], at[1]):
			t.Errorf("drop reason %s: there is no %s in %s", reason, at[1], at[0])
		case ok:
			counted[reason] = at[1] + " in " + at[0]
		case counted[reason] == "":
			t.Errorf("no test counts drop reason %s", reason)
		}
	}
	golden.File(t, "COVERAGE.md", string(render(counted)))
}

// exists says whether a package's tests have a function of that name.
func exists(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Name.Name == test
		}) {
			return true
		}
	}
	return false
}

// render is COVERAGE.md.
func render(counted map[string]string) []byte {
	var b bytes.Buffer
	total := 0
	for _, c := range scenarios {
		total += len(c.variants())
	}
	fmt.Fprintf(&b, "# What a packet gets, and the test of it\n\nWritten by `go test ./cmd/weir/e2e/packet -run Coverage -update`. %d cases of %d scenarios;\n"+
		"a case's test is TestWirePackets/row/scenario/mode/family/tags.\n", total, len(scenarios))
	for _, row := range rows {
		fmt.Fprintf(&b, "\n## %s\n\n| Scenario (%s/…) | Modes | Families | Tags | Counted as |\n| --- | --- | --- | --- | --- |\n", row.text, row.key)
		for _, c := range scenarios {
			if c.row != row.key {
				continue
			}
			var families, tags, drops []string
			for _, f := range c.families {
				families = append(families, fmt.Sprintf("IPv%d", f))
			}
			for _, n := range c.tags {
				tags = append(tags, taggingOf(n))
			}
			for reason, n := range c.drops {
				drops = append(drops, fmt.Sprintf("%s %d", reason, n))
			}
			slices.Sort(drops)
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.name, strings.Join(c.modes, ", "), strings.Join(families, ", "),
				strings.Join(tags, ", "), strings.Join(drops, ", "))
		}
	}
	b.WriteString("\n## Drop reasons\n\n| Reason | A test that counts it |\n| --- | --- |\n")
	for _, reason := range worker.DropReasons() {
		fmt.Fprintf(&b, "| %s | %s |\n", reason, counted[reason])
	}
	return b.Bytes()
}
