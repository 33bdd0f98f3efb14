// Package weirtest has the weir binary for tests that run it in a lab.
package weirtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the directory of the binary, to be removed in the end.
var built string

// binary builds weir once. WEIR_BINARY names an existing binary.
var binary = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("WEIR_BINARY"); b != "" {
		return b, nil
	}
	dir, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		return "", err
	}
	built = dir
	if err := os.Chmod(dir, 0o755); err != nil { // a test runs it without root
		return "", err
	}
	file := filepath.Join(dir, "weir")
	out, err := exec.Command("go", "build", "-ldflags=-s", "-o", file, "github.com/weirlb/weir/cmd/weir").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build weir: %w\n%s", err, out)
	}
	return file, nil
})

// Binary is the path of the weir under test, built from this source the first
// time. Main has to run the tests, which removes it.
func Binary(t testing.TB) string {
	t.Helper()
	file, err := binary()
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
