package announcer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/cmd/weir/config"
)

// A password that is replaced must not go unnoticed until the router restarts.
func TestChangedPasswordsAreNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	c := &config.Announce{Peers: []config.Peer{{}, {PasswordFile: write("a", "one")}, {PasswordFile: write("b", "two")}}}
	a := &Announcer{passwords: passwordsOf(c.Peers)}
	want := func(fields ...string) {
		t.Helper()
		if diff := cmp.Diff(fields, a.ChangedPasswords(c)); diff != "" {
			t.Error(diff)
		}
	}
	want()
	write("a", "one\n") // the same password
	want()
	write("b", "three")
	want("announce.peers[2].passwordFile")
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	want("announce.peers[1].passwordFile", "announce.peers[2].passwordFile")
	write("a", "one")
	write("b", "two")
	want()
	if off := (*Announcer)(nil); off.ChangedPasswords(c) != nil {
		t.Error("passwords without an announcement")
	}
}
