package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newStore is a store in a folder of its own, whose weir.yaml is not judged by Weir.
func newStore(t *testing.T) store {
	t.Helper()
	return store{dir: t.TempDir(), check: checkFiles}
}

// used returns weir.yaml of the configuration in use.
func used(t *testing.T, s store) string {
	t.Helper()
	text, err := os.ReadFile(s.at(linkUsed) + "/weir/weir.yaml")
	must(t, err)
	return string(text)
}

// A configuration replaces the former as a whole, without the files that only a file manager
// needs, and without links out of the drive.
func TestAConfigurationReplacesTheFormer(t *testing.T) {
	s, first, second := newStore(t), t.TempDir(), t.TempDir()
	write(t, first, "weir/weir.yaml", "first")
	write(t, first, "weir/manifests/old.yaml", "old")
	write(t, second, "weir/weir.yaml", "second")
	write(t, second, "weir/._weir.yaml", "junk")
	write(t, second, ".Trashes/x", "junk")
	if err := os.Symlink("/etc/shadow", filepath.Join(second, "authorized_keys")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{first, second} {
		must(t, s.keep(dir))
	}
	if got := used(t, s); got != "second" {
		t.Errorf("weir.yaml is %q", got)
	}
	for _, name := range []string{"weir/manifests/old.yaml", "weir/._weir.yaml", ".Trashes", "authorized_keys"} {
		if _, err := os.Lstat(filepath.Join(s.at(linkUsed), name)); err == nil {
			t.Errorf("%s is kept", name)
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 2 {
		t.Errorf("%d files beside each other, want the link and a folder: %v", len(left), err)
	}
}

// A drive that cannot be used leaves the former configuration, which is served, and the
// console says why.
func TestADriveThatCannotBeUsedLeavesTheFormerConfiguration(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"too much":     func(dir string) error { return os.Truncate(dir+"/weir/weir.yaml", maxConfig+1) },
		"no weir.yaml": func(dir string) error { return os.RemoveAll(dir + "/weir") },
		"weir.yaml is a link": func(dir string) error {
			return errors.Join(os.Remove(dir+"/weir/weir.yaml"), os.Symlink("/etc/shadow", dir+"/weir/weir.yaml"))
		},
		"weir.yaml is a folder": func(dir string) error {
			return errors.Join(os.Remove(dir+"/weir/weir.yaml"), os.Mkdir(dir+"/weir/weir.yaml", 0o755))
		},
		"weir is a link": func(dir string) error {
			return errors.Join(os.Rename(dir+"/weir", dir+"/else"), os.Symlink("else", dir+"/weir"))
		},
		"keys in a folder":  func(dir string) error { return os.Mkdir(dir+"/authorized_keys", 0o755) },
		"a name of no host": func(dir string) error { return os.WriteFile(dir+"/hostname", []byte("edge 1\x1b[2J"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			s, good, bad := newStore(t), t.TempDir(), t.TempDir()
			write(t, good, "weir/weir.yaml", "good")
			must(t, s.keep(good))
			write(t, bad, "weir/weir.yaml", "bad")
			must(t, spoil(bad))
			dir, source, err := s.choose(func() error { return s.keep(bad) })
			must(t, err)
			if text, err := os.ReadFile(dir + "/weir/weir.yaml"); err != nil || string(text) != "good" {
				t.Errorf("weir.yaml is %q, %v", text, err)
			}
			if !strings.Contains(source, "an earlier boot: the drive WEIR-CONFIG cannot be used") {
				t.Errorf("it is of %q", source)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) != 2 {
				t.Errorf("%d files beside each other, want the link and a folder: %v", len(left), err)
			}
		})
	}
}

// Without an earlier configuration the reason is the drive's.
func TestTheFirstDriveMustBeWhole(t *testing.T) {
	s := newStore(t)
	if _, _, err := s.choose(func() error { return s.keep(t.TempDir()) }); err == nil ||
		!strings.Contains(err.Error(), "no file weir/weir.yaml") {
		t.Errorf("a drive without files: %v", err)
	}
	if _, _, err := s.choose(nil); err == nil || !strings.Contains(err.Error(), "attach a drive") {
		t.Errorf("no drive: %v", err)
	}
}
