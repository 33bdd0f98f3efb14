package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Outcomes of a test, as `go test -json` names them.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

// test is one test that has ended; Test is "" for a package that failed as a
// whole (it did not build, or its process died).
type test struct {
	Package, Test, Outcome string
	// Why is the last thing that a test which was skipped or failed said.
	Why string `json:",omitempty"`
	// Property is true when rapid drew the inputs.
	Property bool `json:",omitempty"`
	// Seconds from its start to its end, waiting for other tests included.
	Seconds float64 `json:",omitempty"`
}

// result is one run.
type result struct {
	Name    string
	Seconds float64
	Tests   []test

	output map[string][]string // of running tests and packages
}

func newResult(name string) *result {
	return &result{Name: name, output: map[string][]string{}}
}

func (r *result) add(t test) { r.Tests = append(r.Tests, t) }

func (r *result) anyFailed() bool {
	for _, t := range r.Tests {
		if t.Outcome == failed {
			return true
		}
	}
	return false
}

// parse reads events and shows, on w, one line per package and the output of
// what failed or was skipped.
func (r *result) parse(in io.Reader, w io.Writer) error {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			fmt.Fprintf(w, "%s\n", s.Bytes()) // not from test2json: show it
			continue
		}
		r.event(&e, w)
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	return nil
}

func (r *result) event(e *event, w io.Writer) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case passed, failed, skipped:
		if e.Test == "" {
			r.packageEnded(e, w)
		} else {
			r.testEnded(e, w)
		}
		delete(r.output, key)
	}
}

func (r *result) testEnded(e *event, w io.Writer) {
	t := test{Package: e.Package, Test: e.Test, Outcome: e.Action, Seconds: e.Elapsed}
	lines := r.output[e.Package+"\x00"+e.Test]
	out := strings.Join(lines, "")
	t.Property = strings.Contains(out, "[rapid]")
	switch e.Action {
	case failed:
		t.Why = reason(out)
		fmt.Fprintf(w, "FAIL %s %s (%.2fs)\n%s", short(e.Package), e.Test, e.Elapsed, shorten(lines))
	case skipped:
		t.Why = reason(out)
		fmt.Fprintf(w, "skip %s %s: %s\n", short(e.Package), e.Test, t.Why)
	}
	r.add(t)
}

// What is shown of the output of a failed test: a property test that shrinks
// its input writes thousands of lines, of which the last ones tell.
const headLines, tailLines = 20, 200

func shorten(lines []string) string {
	if n := len(lines) - headLines - tailLines; n > 0 {
		return strings.Join(lines[:headLines], "") + fmt.Sprintf("    ... %d lines ...\n", n) + strings.Join(lines[len(lines)-tailLines:], "")
	}
	return strings.Join(lines, "")
}

// packageEnded shows a package. One that failed without a failed test of its
// own counts as a failure itself.
func (r *result) packageEnded(e *event, w io.Writer) {
	n := 0
	broken := e.Action == failed
	for _, t := range r.Tests {
		if t.Package == e.Package {
			n++
			broken = broken && t.Outcome != failed
		}
	}
	if broken {
		r.add(test{Package: e.Package, Outcome: failed})
	}
	if e.Action == failed {
		fmt.Fprintf(w, "FAIL %s\n", short(e.Package))
		if broken {
			// A panic or a race is told in the output of the test that ran.
			for key, out := range r.output {
				if strings.HasPrefix(key, e.Package+"\x00") {
					fmt.Fprint(w, strings.Join(out, ""))
				}
			}
		}
		return
	}
	if n > 0 {
		fmt.Fprintf(w, "ok   %s  %d tests  %.1fs\n", short(e.Package), n, e.Elapsed)
	}
}

// reason is what t.Skip said, without file and line.
func reason(output string) string {
	var last string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		last = line
	}
	if _, after, ok := strings.Cut(last, ".go:"); ok {
		if _, msg, ok := strings.Cut(after, ": "); ok {
			last = msg
		}
	}
	if last == "" {
		return "no reason given"
	}
	return last
}

func short(pkg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(pkg, "github.com/weirlb/weir"), "/")
}

func (r *result) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.Name+".json"), data, 0o644)
}
