// Package golden holds files of the tree to the code: references that are written from it,
// and the expected output of tests.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that tests compare with")

// Update reports whether the test is to write files, as go generate wants it.
func Update() bool { return *update }

// File fails a test unless the named file has the given text. With -update it writes it.
func File(t testing.TB, name, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not current: run go generate, or go test -update (-want +got):\n%s", name, diff)
	}
}
