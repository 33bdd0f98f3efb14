// Package weirtest has the binaries of weir and weirperf for tests that run them in a lab.
package weirtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the directory of the binaries, to be removed in the end.
var built string

var directory = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		return "", err
	}
	built = dir
	return dir, os.Chmod(dir, 0o755) // a test runs weir without root
})

// WEIR_BINARY and WEIRPERF_BINARY name existing binaries.
var (
	weir     = sync.OnceValues(func() (string, error) { return build("weir", os.Getenv("WEIR_BINARY")) })
	weirperf = sync.OnceValues(func() (string, error) { return build("weirperf", os.Getenv("WEIRPERF_BINARY")) })
)

// build builds a program, where there is no existing binary.
func build(name, existing string) (string, error) {
	if existing != "" {
		return existing, nil
	}
	dir, err := directory()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	out, err := exec.Command("go", "build", "-ldflags=-s", "-o", file, "github.com/weirlb/weir/cmd/"+name).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return file, nil
}

// Binary is the path of the weir under test, built from this source the first
// time. Main has to run the tests, which removes it.
func Binary(t testing.TB) string { return path(t, weir) }

// Perf is the path of weirperf, as Binary.
func Perf(t testing.TB) string { return path(t, weirperf) }

func path(t testing.TB, program func() (string, error)) string {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Main runs the tests of a package that uses Binary, and then atEnd. It is for
// TestMain and does not return.
func Main(m *testing.M, atEnd ...func()) {
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}
