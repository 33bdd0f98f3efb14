package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"
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

// Network files may have keys: systemd-networkd reads them, and others do not.
func TestNetworkFilesAreForNetworkdAlone(t *testing.T) {
	if os.Getuid() != 0 {
		labtest.Skip(t, "needs root to give files to a group")
	}
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "network")
	write(t, dir, "network/30-wg.netdev", "PrivateKey=secret")
	write(t, dir, "network/10-lan.network", "[Match]")
	write(t, dir, "network/notes.txt", "none")
	must(t, os.Mkdir(filepath.Join(dir, "network/folder.network"), 0o755))
	must(t, applyNetwork(dir, to, "daemon"))
	group, err := user.LookupGroup("daemon")
	must(t, err)
	list, err := os.ReadDir(to)
	must(t, err)
	if len(list) != 2 {
		t.Errorf("%d files, want 2", len(list))
	}
	for _, f := range list {
		info, err := f.Info()
		must(t, err)
		got := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm() != 0o640 || fmt.Sprint(got.Gid) != group.Gid {
			t.Errorf("%s has mode %v and group %d", f.Name(), info.Mode(), got.Gid)
		}
	}
	if err := applyNetwork(dir, to, "no-such-group"); err == nil {
		t.Error("files for a group that does not exist")
	}
}
