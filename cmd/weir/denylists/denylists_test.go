package denylists

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

// A file that changes is read when it is the same at two looks. One with an error, one that is gone
// and a directory in its place are problems, and leave the last list.
func TestChangedFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "192.0.2.1\n")
	write("b", "192.0.2.2/99\n")
	cfg := &config.Configuration{DenyLists: []config.DenyList{{Name: "a", File: path("a")}, {Name: "b", File: path("b"), Established: config.DeniedKeep}}}
	if _, _, err := Read(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), path("b")+": line 1: ") {
		t.Fatalf("a start with a bad line: %v", err)
	}
	write("b", "")
	f, lists, err := Read(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if lists[0].Keep || !lists[1].Keep || lists[0].Name != "a" {
		t.Errorf("%+v", lists)
	}
	a := lists[0].Prefixes
	var refusal error
	deny := func(i int, list []netip.Prefix) error {
		if i != 0 {
			return errors.New("list b has changed")
		}
		if refusal != nil {
			return refusal
		}
		a = list
		return nil
	}
	expect := func(address, problem string) {
		t.Helper()
		f.look(deny)
		if f.look(deny); len(a) != 1 || !a[0].Contains(netip.MustParseAddr(address)) {
			t.Errorf("the list is %v, want %s", a, address)
		}
		p := f.problems()
		if problem == "" && len(p) > 0 || problem != "" && (len(p) != 1 || !strings.Contains(p[0].String(), problem)) {
			t.Errorf("problems %v, want %q", p, problem)
		}
	}
	expect("192.0.2.1", "")
	write("new", "2001:db8::/32\n")
	if err := os.Rename(path("new"), path("a")); err != nil {
		t.Fatal(err)
	}
	expect("2001:db8::1", "")
	write("a", "198.51.100.0/24\nexample.org\n")
	expect("2001:db8::1", "line 2: ")
	if err := os.Remove(path("a")); err != nil {
		t.Fatal(err)
	}
	expect("2001:db8::1", "no such file")
	if err := os.Mkdir(path("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect("2001:db8::1", "no regular file")
	if err := os.Remove(path("a")); err != nil {
		t.Fatal(err)
	}
	write("a", "203.0.113.7")
	expect("203.0.113.7", "")
	// What there is no room for is tried again, and a file that changes meanwhile is read when it is the same at two looks.
	refusal = errors.New("no memory")
	write("a", "203.0.113.8")
	expect("203.0.113.7", "no memory")
	write("a", "203.0.113.98")
	refusal = nil
	if f.look(deny); !a[0].Contains(netip.MustParseAddr("203.0.113.7")) {
		t.Errorf("a file that may be half written is read: %v", a)
	}
	expect("203.0.113.98", "")
	refusal = errors.New("no memory")
	write("a", "203.0.113.10")
	expect("203.0.113.98", "no memory")
	refusal = nil
	expect("203.0.113.10", "")
}
