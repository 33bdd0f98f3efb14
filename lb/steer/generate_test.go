package steer

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompiledProgramIsCurrent compiles bpf/ again, by the command in
// generate.go, and compares with what is committed. Other compilers than the
// one named there make other code, so it is skipped without that one.
func TestCompiledProgramIsCurrent(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: no %s (apt install clang-14 llvm-14 libbpf-dev)", tool)
		}
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("skipped: no bpf_helpers.h (apt install libbpf-dev)")
	}
	source, err := os.ReadFile("generate.go")
	must(t, err)
	command := regexp.MustCompile(`(?m)^//go:generate (.*)$`).FindSubmatch(source)
	if command == nil {
		t.Fatal("generate.go has no go:generate line")
	}
	dir := t.TempDir()
	args := strings.Fields(string(command[1]))
	at := len(args)
	for i, a := range args {
		if a == "bpf2go" {
			at = i + 1
		}
	}
	args = append(args[:at:at], append([]string{"-output-dir", dir}, args[at:]...)...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=steer")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	made, err := os.ReadDir(dir)
	must(t, err)
	if len(made) != 4 {
		t.Errorf("bpf2go made %d files, want a Go file and an object for each byte order", len(made))
	}
	for _, f := range made {
		want, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		have, err := os.ReadFile(f.Name())
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not what bpf/ compiles to (%v): run `go generate ./lb/steer`", f.Name(), err)
		}
	}
}
