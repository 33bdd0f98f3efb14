package conntrack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack/statefile"
)

// A file that another user could have written is renamed, not changed: it may be a link.
func TestAFileThatIsNotTrustedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		reason string
	}{
		"mode": {func(path string) error { return os.Chmod(path, 0o666) }, "mode 0666"},
		"symbolic link": {func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}, "symbolic link"},
		"hard link": {func(path string) error { return os.Link(path, path+".real") }, "2 names"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fileConfig(t)
			tab := open(t, cfg)
			w := tab.Worker(0)
			w.Online()
			establish(t, tab, w, 1)
			tab.Close()
			before, err := os.ReadFile(cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(cfg.Path); err != nil {
				t.Fatal(err)
			}
			counted := statefile.Counted(statefile.FlowTable, statefile.Untrusted)
			tab = open(t, cfg)
			defer tab.Close()
			a := tab.Restoration()
			if a.Restored || a.Flows != 0 || a.SetAside != cfg.Path+".bad" || !strings.Contains(a.Reason, c.reason) {
				t.Fatalf("restoration %+v", a)
			}
			if n := statefile.Counted(statefile.FlowTable, statefile.Untrusted); n != counted+1 {
				t.Errorf("%d files are counted, want %d", n, counted+1)
			}
			if after, err := os.ReadFile(a.SetAside); err != nil || string(after) != string(before) {
				t.Errorf("the file that was set aside has changed: %d bytes, %v", len(after), err)
			}
			w = tab.Worker(0)
			w.Online()
			establish(t, tab, w, 1)
		})
	}
}

func TestADirectoryThatOthersMayWriteIsRefused(t *testing.T) {
	cfg := fileConfig(t)
	open(t, cfg).Close()
	if err := os.Chmod(filepath.Dir(cfg.Path), 0o777); err != nil {
		t.Fatal(err)
	}
	if tab, err := Open(cfg); !errors.Is(err, statefile.ErrDirectory) {
		t.Errorf("got %v", err)
		if err == nil {
			tab.Close()
		}
	}
}

// A table of another layout is counted, so that a downgrade which loses connections shows.
func TestATableOfAnotherLayoutIsCounted(t *testing.T) {
	cfg := fileConfig(t)
	open(t, cfg).Close()
	b, err := os.ReadFile(cfg.Path)
	if err == nil {
		err = os.WriteFile(cfg.Path, reshape(b, func(s *shape) { s.Version++ }), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	counted := statefile.Counted(statefile.FlowTable, statefile.Layout)
	open(t, cfg).Close()
	if n := statefile.Counted(statefile.FlowTable, statefile.Layout); n != counted+1 {
		t.Errorf("%d tables are counted, want %d", n, counted+1)
	}
}
