package vm

import (
	"bufio"
	"cmp"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Tests are the outcomes of a test binary.
type Tests struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
	// Failures are the names of failed tests, each with the last line it logged.
	Failures []string `json:"failures,omitempty"`
	// Reasons are the reasons of skipped tests, each once.
	Reasons []string `json:"reasons,omitempty"`
	// Check is what `weir check` says of features that the kernel lacks, as tests log it.
	Check []string `json:"check,omitempty"`
	// Depth is that of the deepest subtest with an outcome.
	Depth int `json:"-"`
}

var (
	outcome = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	logged  = regexp.MustCompile(`^\s+\w+\.go:\d+: (.*)`)
	begins  = regexp.MustCompile(`^=== (?:RUN|CONT|NAME)\s+(\S+)`)
	checked = regexp.MustCompile(`^note +kernel +(.*)`)
	stopped = regexp.MustCompile(`^(panic: |fatal error: |SIGQUIT: )`)
)

// parseTests reads the output of a test binary with -test.v (go doc test2json has the form).
// A test without an outcome has failed: the process died in it.
func parseTests(r io.Reader) (Tests, error) {
	var t Tests
	var current string
	running, last := map[string]bool{}, map[string]string{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line := s.Text()
		if m := begins.FindStringSubmatch(line); m != nil {
			current = m[1]
			running[current] = true
		} else if m := outcome.FindStringSubmatch(line); m != nil {
			delete(running, m[2])
			t.count(m[1], m[2], last[m[2]])
		} else if m := logged.FindStringSubmatch(line); m != nil {
			if c := checked.FindStringSubmatch(m[1]); c != nil {
				t.Check = append(t.Check, c[1])
			}
			// A heading of lines that follow tells nothing: the log of a program, behind the failure.
			if last[current] == "" || !strings.HasSuffix(m[1], ":") {
				last[current] = m[1]
			}
		} else if stopped.MatchString(line) {
			last[current] = line
			break
		}
	}
	for name := range running {
		t.Failed++
		t.Failures = append(t.Failures, failure(name, last[name], "did not end"))
	}
	slices.Sort(t.Failures)
	return t, s.Err()
}

func (t *Tests) count(outcome, name, why string) {
	t.Depth = max(t.Depth, strings.Count(name, "/"))
	switch outcome {
	case "PASS":
		t.Passed++
	case "FAIL":
		t.Failed++
		t.Failures = append(t.Failures, failure(name, why, "failed"))
	case "SKIP":
		t.Skipped++
		why = cmp.Or(strings.TrimPrefix(why, "skipped: "), name+" gives no reason")
		if !slices.Contains(t.Reasons, why) {
			t.Reasons = append(t.Reasons, why)
		}
	}
}

func failure(name, why, otherwise string) string {
	if why == "" {
		why = otherwise
	}
	return name + ": " + why
}
