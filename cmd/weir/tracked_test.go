package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxFileBytes is the most that a file of the repository has. The largest are results of measurements
// (perf/results) and the compiled steering program (lb/steer), of less than 500 kB.
const maxFileBytes = 1_000_000

// A large file is most often a program, a capture or a log that was committed by mistake, and stays in
// the history of each clone.
func TestBoundaryTrackedFiles(t *testing.T) {
	root := moduleRoot(t)
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, fs.ErrNotExist) {
		return // an archive has what was committed in a clone, whose test looked
	}
	// safe.directory: the clone may be another user's.
	out, err := exec.Command("git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed, and not committed yet
		case err != nil:
			t.Error(err)
		case info.Size() > maxFileBytes:
			t.Errorf("%s has %d bytes, more than %d", name, info.Size(), maxFileBytes)
		}
	}
}
