package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// store keeps configurations in a folder of the state partition. Each has a folder of its own,
// and links tell them apart: a cut leaves a link as it was before or as it is after.
type store struct {
	dir   string
	check func(dir string) error // of a configuration that is to be kept
	left  givenUp                // at the last boot
	gone  bool                   // with the next boot: the folder is in memory
}

// givenUp is a configuration with which Weir did not serve.
type givenUp struct{ sum, why string }

// Links of a store, and its file left-out: the configuration to leave out at the next boot, as
// a checksum, and in the next line the reason.
const (
	linkUsed   = "config" // to the configuration that is in use
	linkServed = "served" // to the last with which Weir has served
	leftOut    = "left-out"
)

func (s store) at(name string) string { return filepath.Join(s.dir, name) }

// target is the name of the folder to which a link points, "" without one.
func (s store) target(link string) string {
	name, err := os.Readlink(s.at(link))
	if err != nil {
		return ""
	}
	if st, err := os.Stat(s.at(name)); err != nil || !st.IsDir() {
		return "" // lost by a mend of the file system
	}
	return name
}

// inUse is the name of the folder whose configuration counts, "" if there is none.
func (s store) inUse() string { return cmp.Or(s.target(linkUsed), s.target(linkServed)) }

// point lets a link point to a folder that is on the disk.
func (s store) point(link, to string) error {
	temporary := s.at(link + ".new")
	_ = os.Remove(temporary)
	err := errors.Join(os.Symlink(to, temporary), os.Rename(temporary, s.at(link)))
	unix.Sync()
	return err
}

// keep copies a folder, checks the copy, and has it be the configuration in use. The same
// files as those in use leave all as it is.
func (s store) keep(from string) error {
	// Of a boot that was cut.
	if err := s.removeOthers(); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.dir, "config-")
	if err != nil {
		return err
	}
	if err = copyFolder(from, fresh); err == nil {
		if used := s.target(linkUsed); used != "" && same(fresh, s.at(used)) {
			return os.RemoveAll(fresh)
		}
		err = s.judge(fresh)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	unix.Sync()
	if err := s.point(linkUsed, filepath.Base(fresh)); err != nil {
		return err
	}
	return s.removeOthers()
}

// served notes that Weir serves with the configuration in use.
func (s store) served() error {
	used := s.target(linkUsed)
	if used == "" || used == s.target(linkServed) {
		return nil
	}
	return errors.Join(s.point(linkServed, used), s.removeOthers())
}

// judge returns an error for a configuration that is not to be used at this boot.
func (s store) judge(dir string) error {
	sum, err := sumOf(dir)
	switch {
	case err != nil:
		return err
	case sum == s.left.sum:
		return fmt.Errorf("with it Weir did not serve: %s", s.left.why)
	}
	return s.check(dir)
}

// giveUp goes back from the configuration in use to the last with which Weir has served, if
// there is another, and leaves out the former at the next boot.
func (s store) giveUp(why error) (bool, error) {
	used, served := s.target(linkUsed), s.target(linkServed)
	if used == "" || served == "" || served == used || s.gone {
		return false, nil // in memory, the next boot would take the drive again, and so on
	}
	sum, err := sumOf(s.at(used))
	if err == nil {
		err = os.WriteFile(s.at(leftOut), []byte(sum+"\n"+why.Error()), 0o600)
	}
	if err != nil {
		return false, err // the next boot would try the drive, and so on
	}
	err = s.point(linkUsed, served)
	return err == nil, err
}

// boot is the store with the configuration that the last boot gave up. It is left out once:
// the cause may have been outside.
func (s store) boot() store {
	text, err := os.ReadFile(s.at(leftOut))
	if err != nil {
		return s
	}
	_ = os.Remove(s.at(leftOut))
	unix.Sync()
	s.left.sum, s.left.why, _ = strings.Cut(string(text), "\n")
	return s
}

// removeOthers removes the configurations to which no link points.
func (s store) removeOthers() error {
	list, err := filepath.Glob(s.at("config-*"))
	for _, dir := range list {
		if name := filepath.Base(dir); name != s.target(linkUsed) && name != s.target(linkServed) {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

// same reports whether two folders have the same files.
func same(a, b string) bool {
	x, err := filesOf(a)
	if err != nil {
		return false
	}
	y, err := filesOf(b)
	return err == nil && maps.Equal(x, y)
}

// sumOf is a checksum of a folder's files and their names.
func sumOf(dir string) (string, error) {
	files, err := filesOf(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %q\n", name, files[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// filesOf returns the content of a folder's files, by name.
func filesOf(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		name, _ := filepath.Rel(dir, file)
		files[name] = string(text)
		return err
	})
	return files, err
}
