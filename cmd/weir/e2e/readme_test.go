package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// The commands of the quick start without a cluster in README.md, run one after the
// other, print the output that stands there.
func TestWireReadmeQuickStart(t *testing.T) {
	section := quickStart(t)
	dir, out, err := runQuickStart(t, "set -euo pipefail\n"+strings.Join(blocks(section, "sh"), ""))
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "lab", "weir.log"))
		t.Fatalf("%v\n%s\nlab/weir.log:\n%s", err, out, log)
	}

	shown := blocks(section, "text")
	if len(shown) == 0 {
		t.Error("README.md shows no output")
	}
	for _, want := range append(shown, "\nweb-2\n", "Serving     1 Service, 1 frontend") {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks\n%s\nin\n%s", want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "lab")); err == nil {
		t.Error("the lab was not removed")
	}
}

// Where weir run fails, the quick start ends with the error.
func TestWireReadmeQuickStartFails(t *testing.T) {
	script := strings.Join(blocks(quickStart(t), "sh"), "")
	wrong := strings.Replace(script, "--interface eth0", "--interface absent0", 1)
	if wrong == script {
		t.Fatal("the quick start names no interface")
	}
	_, out, err := runQuickStart(t, wrong)
	if err != nil || !strings.Contains(out, "absent0") {
		t.Errorf("%v\n%s", err, out)
	}
}

// quickStart is that without a cluster in README.md.
func quickStart(t *testing.T) string {
	t.Helper()
	labtest.Require(t)
	requirePrograms(t, "ip", "curl", "python3")
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n### A. Without a cluster\n")
	section, _, ok2 := strings.Cut(section, "\n### ")
	if !ok || !ok2 {
		t.Fatal("README.md has no quick start without a cluster")
	}
	return section
}

// runQuickStart runs the commands in a directory with bin/weir.
func runQuickStart(t *testing.T, commands string) (dir, out string, err error) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(weirtest.Binary(t), filepath.Join(dir, "bin", "weir")); err != nil {
		t.Fatal(err)
	}
	// In namespaces of mounts and processes: the names of network namespaces and
	// /run/weir are private, and every process ends with the shell.
	script := "mount --make-rprivate /\nmount -t tmpfs tmpfs /run\nmount -t proc proc /proc\n" + commands
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "no_proxy=*")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	text, err := cmd.CombinedOutput()
	return dir, string(text), err
}

// blocks returns the fenced code blocks of a language in a Markdown text.
func blocks(text, language string) []string {
	var out []string
	fence := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}
