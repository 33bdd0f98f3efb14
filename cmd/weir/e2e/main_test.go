package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// binary is the weir binary under test, "" where no lab can be made.
var binary string

func TestMain(m *testing.M) {
	os.Exit(build(m))
}

// build builds the binary once. WEIR_BINARY names one that is there already.
func build(m *testing.M) int {
	if netlab.Available() != nil {
		return m.Run() // every test says why it is skipped
	}
	if binary = os.Getenv("WEIR_BINARY"); binary == "" {
		dir, err := os.MkdirTemp("", "weir-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "weir")
		cmd := exec.Command("go", "build", "-o", binary, "github.com/weirlb/weir/cmd/weir")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build weir:", err)
			return 1
		}
	}
	defer closeShared()
	return m.Run()
}
