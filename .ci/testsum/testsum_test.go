package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestWireB","Output":"    b_test.go:12: needs root\n"}
{"Action":"output","Package":"p","Test":"TestWireB","Output":"--- SKIP: TestWireB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestWireB"}
{"Action":"pass","Package":"p","Test":"FuzzC"}
{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:7: [rapid] OK, passed 100 tests (1ms)\n"}
{"Action":"pass","Package":"p","Test":"TestD"}
{"Action":"pass","Package":"p","Elapsed":1.5}
`

const failing = `{"Action":"output","Package":"q","Test":"TestE/x","Output":"    e_test.go:3: wrong\n"}
{"Action":"fail","Package":"q","Test":"TestE/x"}
{"Action":"fail","Package":"q","Test":"TestE"}
{"Action":"pass","Package":"q","Test":"TestF/y"}
{"Action":"fail","Package":"q","Test":"TestF"}
{"Action":"fail","Package":"q"}
{"ImportPath":"r","Action":"build-output","Output":"r.go:1: syntax error\n"}
{"Action":"fail","Package":"r"}
`

func parsed(t *testing.T, name, text string) (*result, string) {
	t.Helper()
	r, out := newResult(name), &strings.Builder{}
	if err := r.parse(strings.NewReader(text), out); err != nil {
		t.Fatal(err)
	}
	return r, out.String()
}

func TestParseShowsWhatMatters(t *testing.T) {
	_, out := parsed(t, "unit", events)
	if want := "skip p TestWireB: needs root\nok   p  6 tests  1.5s\n"; out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	_, out = parsed(t, "unit", failing)
	for _, want := range []string{"FAIL q TestE/x", "e_test.go:3: wrong", "FAIL q\n", "r.go:1: syntax error", "FAIL r\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// verdict saves runs and reports on them.
func verdict(t *testing.T, ci bool, runs ...*result) (bool, string) {
	t.Helper()
	dir := t.TempDir()
	for _, r := range runs {
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
	}
	out := &strings.Builder{}
	ok, err := report(out, dir, ci)
	if err != nil {
		t.Fatal(err)
	}
	return ok, out.String()
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestReportCountsLeavesByGroup(t *testing.T) {
	r, _ := parsed(t, "unit", events)
	ok, out := verdict(t, false, r)
	if !ok || lastLine(out) != "4 passed, 0 failed, 1 skipped" {
		t.Errorf("%v\n%s", ok, out)
	}
	if want := "wire: p TestWireB: needs root"; !strings.Contains(out, want) {
		t.Errorf("%q is not in\n%s", want, out)
	}
	for group, counts := range map[string]string{"unit": "2 0 0", "property": "1 0 0", "fuzz": "1 0 0", "wire": "0 0 1"} {
		if !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
			return strings.Join(strings.Fields(l), " ") == group+" "+counts
		}) {
			t.Errorf("group %s is not %s in\n%s", group, counts, out)
		}
	}
}

func TestReportFailsWhenATestFailed(t *testing.T) {
	r, _ := parsed(t, "unit", failing)
	ok, out := verdict(t, false, r)
	// TestE by its subtest, TestF by itself, r as a whole.
	if ok || lastLine(out) != "1 passed, 3 failed, 0 skipped" {
		t.Errorf("%v\n%s", ok, out)
	}
}

func TestReportFailsOnASkipInCI(t *testing.T) {
	r, _ := parsed(t, "unit", events)
	if ok, out := verdict(t, true, r); ok {
		t.Errorf("a skip passes\n%s", out)
	}
}

func TestReportFailsWhenNothingRan(t *testing.T) {
	if ok, out := verdict(t, false); ok || lastLine(out) != "0 passed, 0 failed, 0 skipped" {
		t.Errorf("%v\n%s", ok, out)
	}
}

func TestReportForgivesASkipUnderTheRaceDetectorOfWhatRanWithout(t *testing.T) {
	unit, _ := parsed(t, "unit", `{"Action":"pass","Package":"p","Test":"TestAllocs"}`+"\n")
	race, _ := parsed(t, "race", `{"Action":"skip","Package":"p","Test":"TestAllocs"}`+"\n"+`{"Action":"pass","Package":"p","Test":"TestOther"}`+"\n")
	if ok, out := verdict(t, true, unit, race); !ok || lastLine(out) != "2 passed, 0 failed, 0 skipped" {
		t.Errorf("%v\n%s", ok, out)
	}
	if ok, out := verdict(t, true, race); ok {
		t.Errorf("a skip of what never ran passes\n%s", out)
	}
}

func TestRunRemembersACommandThatFailsWithoutAWord(t *testing.T) {
	dir := t.TempDir()
	if err := runGroup(dir, "unit", 1, []string{"sh", "-c", "exit 3"}); err != nil {
		t.Fatal(err)
	}
	if ok, err := report(&strings.Builder{}, dir, false); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	if err := runGroup(dir, "unit", 1, []string{"/nonexistent/go"}); err == nil {
		t.Error("a command that is not there gives no error")
	}
}

// says is a command that says what go test -json does.
func says(text string) []string { return []string{"printf", "%s", text} }

func TestRunRemembersCommandsThatRanTogether(t *testing.T) {
	for name, tc := range map[string]struct {
		second []string
		last   string
	}{
		"both pass":         {says(`{"Action":"pass","Package":"p","Test":"TestOther"}`), "2 passed, 0 failed, 0 skipped"},
		"one fails":         {says(`{"Action":"fail","Package":"p","Test":"TestOther"}`), "1 passed, 1 failed, 0 skipped"},
		"one runs no test":  {says(""), "1 passed, 1 failed, 0 skipped"},
		"one cannot be run": {[]string{"/nonexistent/go"}, ""},
	} {
		dir := t.TempDir()
		err := runGroup(dir, "wire", 2, append(append(says(`{"Action":"pass","Package":"p","Test":"TestA"}`), "::"), tc.second...))
		if (err == nil) != (tc.last != "") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil {
			var out strings.Builder
			ok, err := report(&out, dir, true)
			if err != nil || ok != strings.Contains(tc.last, " 0 failed") || lastLine(out.String()) != tc.last {
				t.Errorf("%s: %v %v\n%s", name, ok, err, out.String())
			}
		}
	}
}

func TestFuzzTargetsAreFoundInSource(t *testing.T) {
	got := fuzzTargets("package p\n\nfunc FuzzA(f *testing.F) {\n// func FuzzB(f *testing.F)\nfunc fuzzC() {\nfunc FuzzD(f *testing.F) {\n")
	if want := []string{"FuzzA", "FuzzD"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLongOutputIsShortened(t *testing.T) {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("line %d\n", i))
	}
	out := shorten(lines)
	if !strings.HasPrefix(out, "line 0\n") || !strings.HasSuffix(out, "line 999\n") || strings.Count(out, "\n") != headLines+tailLines+1 || !strings.Contains(out, "... 780 lines ...") {
		t.Errorf("got\n%s", out)
	}
	if out := shorten(lines[:3]); out != "line 0\nline 1\nline 2\n" {
		t.Errorf("got %q", out)
	}
}

func TestResultsAreFiles(t *testing.T) {
	r, _ := parsed(t, "unit", events)
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "unit.json")); err != nil {
		t.Error(err)
	}
}

func TestReportNamesTheSlowestTests(t *testing.T) {
	unit, _ := parsed(t, "unit", `{"Action":"pass","Package":"p","Test":"TestQuick","Elapsed":0.5}`+"\n"+`{"Action":"pass","Package":"p","Test":"TestSlow","Elapsed":2}`+"\n")
	wire, _ := parsed(t, "wire", `{"Action":"pass","Package":"p","Test":"TestWireLong/part","Elapsed":29}`+"\n"+`{"Action":"pass","Package":"p","Test":"TestWireLong","Elapsed":30}`+"\n")
	_, out := verdict(t, false, unit, wire)
	if want := "\nslowest:\n    30 s  wire: p TestWireLong\n     2 s  unit: p TestSlow\n\n"; !strings.Contains(out, want) {
		t.Errorf("%q is not in\n%s", want, out)
	}
}
