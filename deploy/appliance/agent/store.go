package main

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// store keeps configurations in a folder of the state partition. Each has a folder of its own,
// and links tell them apart: a cut leaves a link as it was before or as it is after.
type store struct {
	dir   string
	check func(dir string) error // of a configuration that is to be kept
}

// Links of a store, and its file left-out: the reason why the drive is left out at the next
// boot.
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
		err = s.check(fresh)
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

// giveUp goes back from the configuration in use to the last with which Weir has served, if
// there is another, and leaves the drive out at the next boot.
func (s store) giveUp(why error) (bool, error) {
	served := s.target(linkServed)
	if served == "" || served == s.target(linkUsed) {
		return false, nil
	}
	err := errors.Join(os.WriteFile(s.at(leftOut), []byte(why.Error()), 0o644), s.point(linkUsed, served))
	return err == nil, err
}

// whyLeftOut returns the reason to leave the drive out at this boot, "" without one. It counts
// once.
func (s store) whyLeftOut() string {
	why, err := os.ReadFile(s.at(leftOut))
	if err != nil {
		return ""
	}
	_ = os.Remove(s.at(leftOut))
	unix.Sync()
	return string(why)
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
