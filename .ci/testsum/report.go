package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// groups in the order in which they are shown.
var groups = []string{"unit", "property", "example", "fuzz", "wire", "race", "kube"}

type tally struct {
	passed, failed, skipped int
	seconds                 float64
}

func (t *tally) count(outcome string) {
	switch outcome {
	case passed:
		t.passed++
	case failed:
		t.failed++
	case skipped:
		t.skipped++
	}
}

// report writes the sum of the runs in dir; the last line is "N passed, N
// failed, N skipped". ok is the verdict.
func report(w io.Writer, dir string, ci bool) (ok bool, err error) {
	runs, err := load(dir)
	if err != nil {
		return false, err
	}
	byGroup := map[string]*tally{}
	var sum tally
	var bad, unrun []string
	var stages strings.Builder
	ran := passedTests(runs)
	for _, r := range runs {
		for _, t := range leaves(r.Tests) {
			if r.Name == "race" && t.Outcome == skipped && ran[t.Package+" "+t.Test] {
				continue
			}
			g := group(r.Name, t)
			if byGroup[g] == nil {
				byGroup[g] = &tally{}
			}
			byGroup[g].count(t.Outcome)
			sum.count(t.Outcome)
			switch t.Outcome {
			case failed:
				bad = append(bad, strings.TrimSpace(g+": "+short(t.Package)+" "+t.Test))
			case skipped:
				unrun = append(unrun, fmt.Sprintf("%s: %s %s: %s", g, short(t.Package), t.Test, t.Why))
			}
		}
		sum.seconds += r.Seconds
		fmt.Fprintf(&stages, " %s %.0f", r.Name, r.Seconds)
	}
	show(w, "slowest", slowest(runs))
	show(w, "skipped", unrun)
	show(w, "failed", bad)
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "group\tpassed\tfailed\tskipped\t")
	for _, g := range groups {
		if t := byGroup[g]; t != nil {
			fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t\n", g, t.passed, t.failed, t.skipped)
		}
	}
	tw.Flush()
	ok = sum.failed == 0 && sum.passed > 0
	if ci && sum.skipped > 0 {
		fmt.Fprintln(w, "CI=true: a skipped test is a failure")
		ok = false
	}
	if sum.passed == 0 {
		fmt.Fprintln(w, "no test has run")
	}
	fmt.Fprintf(w, "in %.0f s:%s\n", sum.seconds, stages.String())
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return ok, nil
}

// slowest are the tests, without subtests, that took longest: where time is to be saved.
func slowest(runs []*result) []string {
	const shown = 20
	type timed struct {
		test
		run string
	}
	var all []timed
	for _, r := range runs {
		for _, t := range r.Tests {
			if t.Seconds >= 1 && !strings.Contains(t.Test, "/") {
				all = append(all, timed{t, r.Name})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.Seconds, a.Seconds) })
	var lines []string
	for _, t := range all[:min(len(all), shown)] {
		lines = append(lines, fmt.Sprintf("%4.0f s  %s: %s %s", t.Seconds, t.run, short(t.Package), t.Test))
	}
	return lines
}

func show(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, l := range lines {
		fmt.Fprintln(w, "  "+l)
	}
}

func load(dir string) ([]*result, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var runs []*result
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r := &result{}
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// passedTests are the tests that passed without the race detector.
func passedTests(runs []*result) map[string]bool {
	m := map[string]bool{}
	for _, r := range runs {
		if r.Name == "race" {
			continue
		}
		for _, t := range r.Tests {
			if t.Outcome == passed {
				m[t.Package+" "+t.Test] = true
			}
		}
	}
	return m
}

// leaves leaves out a test that has subtests: its outcome is theirs. One that
// fails or is skipped by itself counts.
func leaves(tests []test) []test {
	type children struct{ n, failed int }
	of := map[string]children{}
	for _, t := range tests {
		for i := range len(t.Test) {
			if t.Test[i] != '/' {
				continue
			}
			key := t.Package + " " + t.Test[:i]
			c := of[key]
			c.n++
			if t.Outcome == failed {
				c.failed++
			}
			of[key] = c
		}
	}
	return slices.DeleteFunc(slices.Clone(tests), func(t test) bool {
		c := of[t.Package+" "+t.Test]
		switch {
		case c.n == 0:
			return false
		case t.Outcome == failed:
			return c.failed > 0
		default:
			return t.Outcome == passed
		}
	})
}

func group(run string, t test) string {
	name := t.Test
	switch {
	case run == "race" || run == "kube":
		return run
	case strings.HasPrefix(name, "TestWire"):
		return "wire"
	case strings.HasPrefix(name, "TestKube"):
		return "kube"
	case strings.HasPrefix(name, "Fuzz"):
		return "fuzz"
	case t.Property:
		return "property"
	case strings.HasPrefix(name, "Example"):
		return "example"
	case name == "":
		return run
	}
	return "unit"
}
