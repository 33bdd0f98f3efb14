// Package labtest says whether a test can have a lab.
package labtest

import (
	"os"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// Require skips the test where no lab can be made, and fails it in continuous
// integration, which must be able to.
func Require(t testing.TB) {
	t.Helper()
	if err := netlab.Available(); err != nil {
		Skip(t, err)
	}
}

// Skip skips a test that cannot run here, and fails it in continuous
// integration, which must be able to.
func Skip(t testing.TB, reason any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip("skipped: ", reason)
}
