package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/perf/netlab/labtest"
)

// The key of the SSH server stays, unless it is damaged: an empty file would keep operators
// out for good.
func TestTheHostKeyIsMadeOnce(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		labtest.Skip(t, err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "ssh_host_ed25519_key")
	key := func() string {
		t.Helper()
		must(t, hostKey(dir))
		text, err := os.ReadFile(file)
		must(t, err)
		return string(text)
	}
	first := key()
	if again := key(); again != first {
		t.Error("the key is replaced")
	}
	for name, text := range map[string]string{
		"empty": "", "cut": first[:len(first)/2], "zeros": string(make([]byte, len(first))),
	} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		if got := key(); got == first || !wholeKey.MatchString(got) {
			t.Errorf("%s: the key is %q", name, got)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v: %v", st.Mode(), err)
	}
}
