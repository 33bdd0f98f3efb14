package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const stranger = 65534

// directory is a directory of the process, whatever the umask.
func directory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFilesThatOthersCouldHaveWrittenAreRefused(t *testing.T) {
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("state"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, path string) error
		want string // in the error; "": the file is trusted
		root bool
	}{
		"own":      {make: func(*testing.T, string) error { return nil }},
		"readable": {make: func(_ *testing.T, path string) error { return os.Chmod(path, 0o644) }},
		"group":    {make: func(_ *testing.T, path string) error { return os.Chmod(path, 0o620) }, want: "others may write it (mode 0620)"},
		"world":    {make: func(_ *testing.T, path string) error { return os.Chmod(path, 0o602) }, want: "others may write it (mode 0602)"},
		"stranger": {make: func(_ *testing.T, path string) error { return os.Chown(path, stranger, -1) }, want: "belongs to uid 65534", root: true},
		"link": {make: func(_ *testing.T, path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, want: "symbolic link"},
		"dangling": {make: func(_ *testing.T, path string) error {
			return errors.Join(os.Remove(path), os.Symlink(path+"2", path))
		}, want: "symbolic link"},
		"fifo": {make: func(_ *testing.T, path string) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
		}, want: "no regular file"},
		"socket": {make: func(_ *testing.T, path string) error {
			return errors.Join(os.Remove(path), unix.Mknod(path, unix.S_IFSOCK|0o600, 0))
		}, want: "no regular file"},
		"second name": {make: func(_ *testing.T, path string) error { return os.Link(path, path+"2") }, want: "2 names"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			path := filepath.Join(directory(t), "file")
			write(t, path)
			if err := c.make(t, path); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path, os.O_RDWR|os.O_CREATE)
			if err == nil {
				f.Close()
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.Is(err, ErrUntrusted) || errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The path in a configuration may be wrong: nothing is set aside for that.
func TestADirectoryIsNotSetAside(t *testing.T) {
	for _, flag := range []int{os.O_RDONLY, os.O_RDWR | os.O_CREATE} {
		f, err := Open(directory(t), flag)
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, unix.EISDIR) || errors.Is(err, ErrUntrusted) {
			t.Errorf("flag %#x: got %v", flag, err)
		}
	}
}

func TestDirectoriesThatOthersMayWriteAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		mode os.FileMode
		uid  int
		want string
	}{
		"own":      {0o755, os.Geteuid(), ""},
		"sticky":   {0o777 | os.ModeSticky, os.Geteuid(), ""},
		"world":    {0o777, os.Geteuid(), "chmod go-w"},
		"stranger": {0o700, stranger, "chown "},
	} {
		t.Run(name, func(t *testing.T) {
			if c.uid != os.Geteuid() && os.Geteuid() != 0 {
				t.Skip("needs root, to give a directory away")
			}
			dir := directory(t)
			if err := errors.Join(os.Chmod(dir, c.mode), os.Chown(dir, c.uid, -1)); err != nil {
				t.Fatal(err)
			}
			f, err := Open(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE)
			if err == nil {
				f.Close()
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.Is(err, ErrDirectory) || !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestAMissingFileIsMissing(t *testing.T) {
	path := filepath.Join(directory(t), "file")
	if _, err := Open(path, os.O_RDONLY); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	f, err := Open(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// A link in the place of the new file is not followed.
func TestReplaceWritesNoOtherFile(t *testing.T) {
	dir := directory(t)
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(other, []byte("keep"), 0o600), os.Symlink(other, path+".new")); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("state")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "keep" {
		t.Errorf("the other file has %q, %v", b, err)
	}
	if b, err := Read(path, 100); err != nil || string(b) != "state" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if _, err := Read(path, 4); err == nil {
		t.Error("5 bytes are read, with a limit of 4")
	}
}

func TestFilesThatAreSetAsideAreCounted(t *testing.T) {
	path := filepath.Join(directory(t), "file")
	before := Counted(Offloads, Untrusted)
	if err := SetAside(Offloads, Untrusted, path, path+".bad"); err == nil || Counted(Offloads, Untrusted) != before {
		t.Errorf("a missing file is set aside: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SetAside(Offloads, Untrusted, path, path+".bad"); err != nil || Counted(Offloads, Untrusted) != before+1 {
		t.Errorf("counted %d after %d: %v", Counted(Offloads, Untrusted), before, err)
	}
}
