package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// fuzzAll fuzzes every target of the packages for a while, one after the
// other: `go test -fuzz` takes one target of one package.
func fuzzAll(dir string, each time.Duration, packages []string) error {
	targets, err := listFuzz(packages)
	if err != nil {
		return err
	}
	all := newResult("fuzz")
	for _, t := range targets {
		r, err := fuzzOne(t, each)
		if err != nil {
			return err
		}
		all.Seconds += r.Seconds
		for _, x := range r.Tests {
			// Apart from the run of its seed corpus, which bears its name too.
			if x.Test == t.Test {
				x.Test += "/fuzzing"
			}
			all.add(x)
		}
	}
	return all.save(dir)
}

// fuzzOne fuzzes one target. When the time runs out in the middle of an input
// the fuzzing engine may call that a failure, with nothing but "context
// deadline exceeded" to say (go.dev/issue/75804): that one is tried again.
func fuzzOne(t test, each time.Duration) (*result, error) {
	// Shrinking interesting inputs, for up to a minute each, would take all
	// of a short time.
	args := []string{"go", "test", "-json", "-run", "^$", "-fuzz", "^" + t.Test + "$",
		"-fuzztime", each.String(), "-fuzzminimizetime", "10x", "-parallel", "2", t.Package}
	for try := 1; ; try++ {
		r, err := runTests("fuzz "+short(t.Package)+" "+t.Test, args)
		if err != nil || try == 3 || !r.anyFailed() {
			return r, err
		}
		for _, x := range r.Tests {
			if x.Outcome == failed && x.Why != "context deadline exceeded" {
				return r, nil
			}
		}
		fmt.Println("the time ran out in the middle of an input: again")
	}
}

// listFuzz finds the fuzz targets of the packages.
func listFuzz(packages []string) ([]test, error) {
	// From the sources: `go test -list` would build every test for it.
	var dirs bytes.Buffer
	list := exec.Command("go", append([]string{"list", "-f", "{{.ImportPath}} {{.Dir}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}"}, packages...)...)
	list.Stdout, list.Stderr = &dirs, os.Stderr
	if err := list.Run(); err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var out []test
	for line := range strings.Lines(dirs.String()) {
		f := strings.Fields(line)
		for _, file := range f[min(2, len(f)):] {
			src, err := os.ReadFile(f[1] + "/" + file)
			if err != nil {
				return nil, err
			}
			for _, name := range fuzzTargets(string(src)) {
				out = append(out, test{Package: f[0], Test: name})
			}
		}
	}
	return out, nil
}

// fuzzTargets are the names of the fuzz targets in a source file.
func fuzzTargets(src string) []string {
	var names []string
	for line := range strings.Lines(src) {
		rest, ok := strings.CutPrefix(line, "func Fuzz")
		if !ok {
			continue
		}
		if name, _, ok := strings.Cut(rest, "("); ok {
			names = append(names, "Fuzz"+name)
		}
	}
	return names
}
