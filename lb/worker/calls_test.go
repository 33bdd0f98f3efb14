package worker

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// onFastPath are the functions that run for every packet of an established flow, with the
// calls in them that such packets do not meet.
var onFastPath = map[string][]string{
	"(*fastPath).fastLanes":   nil,
	"(*fastPath).fastLanes6":  nil,
	"(*fastPath).fastTunnels": nil,
	"(*classifier).classify":  {"(*classifier).classifyOther"},
}

// A call costs as much as a good part of the path, and a bounds check ends in a call that
// panics. So the compiler's assembly shows both.
func TestFastPathHasNeitherCallsNorBoundsChecks(t *testing.T) {
	cmd := exec.Command("go", "build", "-gcflags=-S", ".")
	cmd.Env = append(cmd.Environ(), "GOFLAGS=-buildvcs=false -trimpath")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var (
		text = regexp.MustCompile(`^\S*/lb/worker\.(\S+) STEXT`)
		call = regexp.MustCompile(`\tCALL\t(?:\S*/)?(\S+)\(SB\)|\tCALL\t([A-Z]\S*)$`)
		in   string
		seen = map[string]bool{}
	)
	for line := range strings.Lines(string(out)) {
		if m := text.FindStringSubmatch(line); m != nil {
			in, seen[m[1]] = m[1], true
		}
		allowed, checked := onFastPath[in]
		m := call.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || !checked || strings.HasPrefix(m[1], "runtime.morestack") {
			continue
		}
		if to := strings.TrimPrefix(m[1], "worker."); !slices.Contains(allowed, to) {
			t.Errorf("%s calls %s%s: %s", in, m[1], m[2], strings.TrimSpace(line))
		}
	}
	for name := range onFastPath {
		if !seen[name] {
			t.Errorf("%s was not compiled", name)
		}
	}
}
