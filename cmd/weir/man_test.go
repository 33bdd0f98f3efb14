package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Each command has a page with its flags and examples, and refers to pages that exist.
func TestManHasAPagePerCommand(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767323045")
	t.Setenv("NODE_NAME", "")
	dir := filepath.Join(t.TempDir(), "man8")
	if code := run(t.Context(), []string{"man", dir}, io.Discard, t.Output()); code != exitOK {
		t.Fatalf("exit status %d", code)
	}
	for _, c := range commands(newRoot()) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, name+".8"))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(page), `\`, "")
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s has no --%s", name, f.Name)
			}
		})
		for line := range strings.Lines(c.Example) {
			if line = strings.ReplaceAll(strings.TrimSpace(line), `\`, ""); !strings.Contains(text, line) {
				t.Errorf("%s has no %q", name, line)
			}
		}
		if !strings.Contains(text, `"Jan 2026"`) {
			t.Errorf("%s has not the date of the build", name)
		}
		if c.HasParent() && !strings.Contains(text, strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")+"(8)") {
			t.Errorf("%s does not refer to the command above", name)
		}
	}
	first, err := os.ReadFile(filepath.Join(dir, "weir.8"))
	if err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), []string{"man", dir}, io.Discard, t.Output()); code != exitOK {
		t.Fatalf("again: exit status %d", code)
	}
	if again, _ := os.ReadFile(filepath.Join(dir, "weir.8")); !bytes.Equal(first, again) {
		t.Error("the page changes from run to run")
	}
}

func TestManNeedsADirectory(t *testing.T) {
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"man"}, io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "expected a directory") {
		t.Errorf("exit status %d, %q", code, &stderr)
	}
	if code := run(t.Context(), []string{"man", "/proc/none/man"}, io.Discard, &stderr); code != exitFailed {
		t.Errorf("exit status %d", code)
	}
}
