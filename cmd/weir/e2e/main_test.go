package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// binary builds the weir binary under test, once. WEIR_BINARY names one that
// is there already.
var binary = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("WEIR_BINARY"); b != "" {
		return b, nil
	}
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // a test runs it without root
		return "", err
	}
	file := filepath.Join(dir, "weir")
	out, err := exec.Command("go", "build", "-o", file, "github.com/weirlb/weir/cmd/weir").CombinedOutput()
	if err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("build weir: %w\n%s", err, out)
	}
	built = dir
	return file, nil
})

// built is the directory of the binary, to be removed in the end.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	closeShared()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// requireLab skips without root, and fails in CI, which must have it.
func requireLab(t *testing.T) {
	t.Helper()
	if err := netlab.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("skipped: ", err)
	}
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
}
