package lastknown

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack/statefile"
)

func TestLoadSetsAFileAsideThatOthersCouldHaveWritten(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"mode": func(path string) error { return os.Chmod(path, 0o666) },
		"link": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := saved(t)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			counted := statefile.Counted(statefile.ClusterState, statefile.Untrusted)
			o, _, err := Load(path, "cluster")
			if !errors.Is(err, statefile.ErrUntrusted) || o != nil || !strings.Contains(err.Error(), "set aside as "+path+".corrupt") {
				t.Errorf("got %v", err)
			}
			if n := statefile.Counted(statefile.ClusterState, statefile.Untrusted); n != counted+1 {
				t.Errorf("%d files are counted, want %d", n, counted+1)
			}
			if _, _, err := Load(path, "cluster"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file is still there: %v", err)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		path := saved(t)
		if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Load(path, "cluster"); !errors.Is(err, statefile.ErrDirectory) {
			t.Errorf("Load: %v", err)
		}
		if err := Save(path, "cluster", time.Now(), objects()); !errors.Is(err, statefile.ErrDirectory) {
			t.Errorf("Save: %v", err)
		}
	})
}
