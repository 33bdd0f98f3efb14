package vm

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const output = `=== RUN   TestGood
--- PASS: TestGood (0.10s)
=== RUN   TestParent
=== RUN   TestParent/IPv4
    traffic_test.go:75: 1024 packets left on the ring
=== RUN   TestParent/IPv6
--- FAIL: TestParent (0.20s)
    --- FAIL: TestParent/IPv4 (0.10s)
    --- PASS: TestParent/IPv6 (0.10s)
=== RUN   TestLacking
    probe_test.go:12: skipped: the kernel has no TCX
--- SKIP: TestLacking (0.00s)
=== RUN   TestLackingToo
    probe_test.go:12: skipped: the kernel has no TCX
--- SKIP: TestLackingToo (0.00s)
FAIL
`

func TestOutputIsCounted(t *testing.T) {
	got, err := parseTests(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	if got.Passed != 2 || got.Failed != 2 || got.Skipped != 2 {
		t.Errorf("%+v", got)
	}
	if want := []string{"TestParent/IPv4: 1024 packets left on the ring", "TestParent: failed"}; !slices.Equal(got.Failures, want) {
		t.Errorf("failures %q, want %q", got.Failures, want)
	}
	if want := []string{"the kernel has no TCX"}; !slices.Equal(got.Reasons, want) {
		t.Errorf("reasons %q, want %q", got.Reasons, want)
	}
}

func TestATestThatDoesNotEndHasFailed(t *testing.T) {
	for text, want := range map[string]string{
		"=== RUN   TestA\n    a_test.go:1: waits\n":                                                    "TestA: waits",
		"=== RUN   TestA\n    a_test.go:1: no answer\n    b_test.go:2: weir run said:\n        time=1": "TestA: no answer",
		"=== RUN   TestA\npanic: nil map\n\ngoroutine 1":                                               "TestA: panic: nil map",
		"=== RUN   TestA\nSIGQUIT: quit\nPC=0x1":                                                       "TestA: SIGQUIT: quit",
		"=== RUN   TestA\n":                                                                            "TestA: did not end",
	} {
		got, err := parseTests(strings.NewReader(text))
		if err != nil || got.Failed != 1 || len(got.Failures) != 1 || got.Failures[0] != want {
			t.Errorf("%q: %+v %v, want %q", text, got, err, want)
		}
	}
}

func TestOutcomeOfACase(t *testing.T) {
	for name, c := range map[string]struct {
		tests    Tests
		exit     int
		timedOut bool
		kernel   []string
		nics     string
		want     string
	}{
		"passed":             {tests: Tests{Passed: 2}, want: Pass},
		"lacks a part":       {tests: Tests{Passed: 2, Skipped: 1, Reasons: []string{"AF_XDP multi-buffer: no (invalid argument; kernel 6.6)"}}, want: Pass},
		"lacks all":          {tests: Tests{Skipped: 2, Reasons: []string{" AF_XDP transmit metadata: no (invalid argument; kernel 6.8)"}}, want: Lacks},
		"has the feature":    {tests: Tests{Passed: 2, Skipped: 1, Reasons: []string{"AF_XDP rings of bound sockets: no (kernel 6.4)"}}, want: Fail},
		"a missing module":   {tests: Tests{Passed: 2, Skipped: 1, Reasons: []string{"the kernel has no bond: operation not supported"}}, want: Fail},
		"a driver":           {tests: Tests{Passed: 2, Skipped: 1, Reasons: []string{"the driver does not change the number of queues: 2"}}, nics: "e1000e", want: Pass},
		"a driver of a veth": {tests: Tests{Passed: 2, Skipped: 1, Reasons: []string{"the driver does not change the number of queues: 2"}}, want: Fail},
		"no NICs":            {tests: Tests{Skipped: 1, Reasons: []string{"no NICs (WEIR_NICS): run this by make test-vm"}}, want: Fail},
		"not root":           {tests: Tests{Skipped: 1, Reasons: []string{"needs root to make network namespaces"}}, want: Fail},
		"no test":            {want: Fail},
		"a failure":          {tests: Tests{Passed: 1, Failed: 1}, exit: 1, want: Fail},
		"a failing TestMain": {tests: Tests{Passed: 1}, exit: 1, want: Fail},
		"a time limit":       {tests: Tests{Passed: 1}, timedOut: true, want: Fail},
		"a kernel defect":    {tests: Tests{Passed: 1}, kernel: []string{"BUG: unable to handle page fault"}, want: Fail},
	} {
		o := Outcome{Tests: c.tests}
		o.decide(&Case{NICs: c.nics}, c.exit, c.timedOut, c.kernel, "6.4.0-1-amd64")
		if o.Outcome != c.want || o.Outcome == Fail && o.Why == "" && o.Tests.Failed == 0 {
			t.Errorf("%s: %+v, want %s", name, o, c.want)
		}
	}
}

// The report that is committed has no skipped test that its kernel, or the driver, does not explain.
func TestReasonsOfTheReportAreExplained(t *testing.T) {
	text, err := os.ReadFile("../results/vm.json")
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	nics := map[string]string{}
	for _, c := range Cases {
		nics[c.Name] = c.NICs
	}
	for _, k := range r.Kernels {
		for _, o := range k.Cases {
			if reason := o.Tests.unexplained(k.Version, nics[o.Case]); reason != "" {
				t.Errorf("%s: %s: %s", k.Version, o.Case, reason)
			}
		}
	}
}

// Each feature that may be missing has a row in the table of features, by which the message of
// `weir check` is found.
func TestLacksAreFeaturesOfTheTable(t *testing.T) {
	text, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lacks {
		if l.feature == "" {
			if l.otherwise == "" {
				t.Errorf("%v has neither a feature nor a reason", l.reason)
			}
			continue
		}
		if row := "\n| " + l.feature + " | " + l.since; !strings.Contains(string(text), row) {
			t.Errorf("deploy/README.md has no row %q", row)
		}
	}
}

func TestReasonsHaveTheMessageOfCheck(t *testing.T) {
	got, err := parseTests(strings.NewReader("=== RUN   TestTable\n    guest_test.go:73: ok    kernel   TCX programs: yes\n" +
		"    guest_test.go:73: note  kernel   AF_XDP multi-buffer: no (invalid argument; Linux 6.6 has it): Weir needs small packets\n--- PASS: TestTable (0.1s)\n"))
	const message = "AF_XDP multi-buffer: no (invalid argument; Linux 6.6 has it): Weir needs small packets"
	if err != nil || !slices.Equal(got.Check, []string{message}) {
		t.Fatalf("%+v, %v", got, err)
	}
	r := Report{Kernels: []OnKernel{{Version: "6.1", Cases: []Outcome{
		{Case: "kernel-table", Outcome: Pass, Tests: got},
		{Case: "xsk", Outcome: Pass, Tests: Tests{Passed: 1, Skipped: 2, Reasons: []string{" AF_XDP multi-buffer: no (invalid argument; kernel 6.6)", "this kernel does not keep neighbors fresh by itself"}}}}}}}
	var b strings.Builder
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{"kernel 6.6); `weir check`: " + message, "fresh by itself; Weir probes neighbors itself"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestReportHasEveryCaseAndReason(t *testing.T) {
	r := &Report{Kernels: []OnKernel{
		{Version: "5.10.0-32-amd64", Cases: []Outcome{
			{Case: "xsk", Outcome: Pass, Tests: Tests{Passed: 3, Skipped: 1, Reasons: []string{"no multi-buffer"}}},
			{Case: "tcx", Outcome: Lacks, Tests: Tests{Skipped: 1, Reasons: []string{"no TCX"}}}}},
		{Version: "6.12.1", Cases: []Outcome{
			{Case: "xsk", Outcome: Fail, Why: "it did not end in time", Tests: Tests{Passed: 1, Failed: 2, Failures: []string{"TestA: a|b"}}},
			{Case: "repeat", Outcome: Pass, Tests: Tests{Passed: 4}, Omitted: []string{"TestB: the driver"}}}},
	}}
	var b strings.Builder
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| Case | 5.10.0-32-amd64 | 6.12.1 |\n", "| xsk | 3, 1 skipped | **fail** (2 of 3) |\n", "| tcx | kernel lacks it |  |\n",
		"| repeat |  | 4, 1 left out |\n", "- repeat: left out: TestB: the driver\n",
		"- xsk: skipped: no multi-buffer\n", "- tcx: skipped: no TCX\n", "- xsk: failed: it did not end in time\n", "- xsk: failed: TestA: a\\|b\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if r.Failed() != 1 {
		t.Errorf("%d failed", r.Failed())
	}
}

func TestItemsAreWrapped(t *testing.T) {
	text := item(strings.Repeat("word ", 50))
	for line := range strings.Lines(text) {
		if len(line) > columns+1 || !strings.HasPrefix(line, "- word") && !strings.HasPrefix(line, "  word") {
			t.Errorf("%q", line)
		}
	}
	if strings.Count(text, "word") != 50 {
		t.Errorf("words are lost: %q", text)
	}
}

func TestReportsOfSeveralRunsAreMerged(t *testing.T) {
	run := func(name, version string, cases ...string) OnKernel {
		k := OnKernel{Name: name, Version: version}
		for _, c := range cases {
			k.Cases = append(k.Cases, Outcome{Case: c, Revision: "old", Outcome: Pass})
		}
		return k
	}
	earlier := &Report{Kernels: []OnKernel{run("5.10", "5.10.0-32", "xsk"), run("6.1", "6.1.0-50", "xsk", "steer"),
		run("6.12", "6.12.117", "steer", "xsk", "a case of the past")}}
	r := &Report{Kernels: []OnKernel{run("6.12", "6.12.117", "xsk"), run("6.1", "6.1.0-56", "steer")}}
	r.Kernels[0].Cases[0].Revision = "new"
	r.Merge(earlier)
	var got []string
	for _, k := range r.Kernels {
		for _, c := range k.Cases {
			got = append(got, k.Version+" "+c.Case+" "+c.Revision)
		}
	}
	want := []string{"5.10.0-32 xsk old", "6.1.0-50 xsk old", "6.1.0-56 steer old", "6.12.117 xsk new", "6.12.117 steer old"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A kernel may be asked for as the newest, and as the series that it is.
func TestAKernelWithTwoNamesHasAColumn(t *testing.T) {
	of := func(name string, outcome string, cases ...string) *Report {
		k := OnKernel{Name: name, Version: "7.3.4"}
		for _, c := range cases {
			k.Cases = append(k.Cases, Outcome{Case: c, Outcome: outcome})
		}
		return &Report{Kernels: []OnKernel{k}}
	}
	r := of("7.3", Pass, "xsk")
	r.Merge(of(Newest, Fail, "xsk", "steer"))
	want := of("7.3", Pass, "xsk")
	want.Kernels[0].Cases = append(want.Kernels[0].Cases, Outcome{Case: "steer", Outcome: Fail})
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestCasesAreSelectedByPattern(t *testing.T) {
	all := []Case{{Name: "xsk"}, {Name: "nic-igb", NICs: "igb"}, {Name: "steer"}, {Name: "nic-e1000e", NICs: "e1000e"}}
	got, err := selectCases(all, []string{"nic-*", "xsk"})
	if err != nil || strings.Join(names(got), " ") != "xsk nic-igb nic-e1000e" {
		t.Errorf("%v %v", names(got), err)
	}
	if _, err := selectCases(all, []string{"xsk", "xks"}); err == nil || !strings.Contains(err.Error(), "xks") {
		t.Errorf("a name that no case has: %v", err)
	}
	var groups []string
	for _, g := range boots(all) {
		groups = append(groups, strings.Join(names(g), "+"))
	}
	if got, want := strings.Join(groups, " "), "xsk+steer nic-igb nic-e1000e"; got != want {
		t.Errorf("boots %s, want %s", got, want)
	}
}

// A test that a case leaves out is one of those that it would run, and has a reason.
func TestOmissionsAreOfTheCase(t *testing.T) {
	c := Case{Package: "lb/xsk", Run: "^Test", Skip: "^TestA$", Omit: []Omission{{"TestB", "why"}, {"TestC", "why"}}}
	if got, want := c.command()[len(c.command())-1], "-test.skip=^TestA$|^TestB$|^TestC$"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, c := range Cases {
		for _, o := range c.Omit {
			if !regexp.MustCompile(c.Run).MatchString(o.Test) || o.Why == "" {
				t.Errorf("%s leaves out %+v", c.Name, o)
			}
		}
	}
}

// A test that is skipped without a reason is not what a kernel lacks.
func TestASkippedTestHasAReason(t *testing.T) {
	got, err := parseTests(strings.NewReader("=== RUN   TestA\n--- PASS: TestA (0.1s)\n=== RUN   TestB\n--- SKIP: TestB (0.0s)\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := Outcome{Tests: got}
	o.decide(&Case{}, 0, false, nil, "5.10.0")
	if o.Outcome != Fail || !strings.Contains(o.Why, "TestB") {
		t.Errorf("%+v", o)
	}
}

// A pattern of subtests that none matches leaves their test without any, which passes.
func TestACaseWithoutItsSubtestsFails(t *testing.T) {
	for text, want := range map[string]string{
		"=== RUN   TestA\n--- PASS: TestA (0.1s)\n":                                                  Fail,
		"=== RUN   TestA\n=== RUN   TestA/b\n--- PASS: TestA (0.1s)\n    --- PASS: TestA/b (0.1s)\n": Pass,
	} {
		got, err := parseTests(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		o := Outcome{Tests: got}
		if o.decide(&Case{Run: "^TestA$/^b$"}, 0, false, nil, "6.12.0"); o.Outcome != want {
			t.Errorf("%s%+v, want %s", text, o, want)
		}
	}
}

// Each case names a folder with tests.
func TestCasesHavePackages(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases {
		if seen[c.Name] {
			t.Errorf("two cases are named %s", c.Name)
		}
		seen[c.Name] = true
		if c.Seconds <= 0 {
			t.Errorf("%s has no time", c.Name)
		}
		if !exists("../../" + c.Package) {
			t.Errorf("%s: there is no package %s", c.Name, c.Package)
		}
		for _, s := range c.Scripts {
			if _, file, _ := strings.Cut(s, "="); !exists("../../" + file) {
				t.Errorf("%s: there is no script %s", c.Name, file)
			}
		}
		// Several queues need taps, which only root makes.
		if _, err := nicsOf(strings.TrimSuffix(c.NICs, severalQueues)); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
