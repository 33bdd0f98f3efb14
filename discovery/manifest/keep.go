package manifest

import (
	"errors"
	"os"
	"slices"
	"time"
)

// Files that lose their contents are mostly files that are being written, and
// directories that lose their files are mostly volumes that are not mounted.
// Nothing is withdrawn on their account. A withdrawal is said: by a file that
// has documents and lacks the object, by a List without items, or by removal
// of the file.

// errEmptied is the error of a directory that had manifests and has none.
var errEmptied = errors.New("no manifest is there any more; to withdraw everything leave a file with an empty List (kind: List, items: [])")

// unfinished returns the file as it was last read where it is probably being
// written: it was shortened in place, and has not been left alone for
// Config.Shorter since. A file that is written again and again is never left alone: it is
// read after ten times that. It returns nil where the file is to be read.
func (s *Source) unfinished(old *file, now fileStamp) *file {
	if old == nil || now.dev != old.accepted.dev || now.ino != old.accepted.ino || now.size >= old.accepted.size {
		return nil
	}
	f, u := *old, old.unfinished
	switch {
	case u == nil:
		u = &unfinished{stamp: now, since: time.Now(), first: time.Now()}
	case u.stamp != now:
		u = &unfinished{stamp: now, since: time.Now(), first: u.first, anew: u.anew || now.size <= u.stamp.size}
	}
	f.unfinished = u
	left := s.cfg.Shorter - time.Since(u.since)
	if left <= 0 || u.anew && time.Since(u.first) >= 10*s.cfg.Shorter {
		return nil
	}
	if s.recheck == 0 || left < s.recheck {
		s.recheck = left
	}
	return &f
}

// unfinished is the state of a file that is probably being written.
type unfinished struct {
	stamp fileStamp
	since time.Time // when the file was first seen in this state
	first time.Time // when it was first seen shorter
	anew  bool      // it has not only grown since then
}

// accept notes the size with which f is accepted. A fault of the whole
// file leaves the size that was expected before.
func (f *file) accept(old *file) {
	switch {
	case f.unfinished != nil: // a copy of old
	case f.fault == nil:
		f.accepted = f.stamp
	case old != nil:
		f.accepted = fileStamp{dev: f.stamp.dev, ino: f.stamp.ino, size: old.accepted.size}
	}
}

// keepServedFile copies the last report's entries about f, and keeps the objects.
func (r *round) keepServedFile(f *file) {
	f.clean = false
	for _, e := range r.s.applied.Errors {
		if e.File == f.path {
			r.report.Errors = append(r.report.Errors, e)
		}
	}
	for _, e := range r.s.applied.Warnings {
		if e.File == f.path {
			r.report.Warnings = append(r.report.Warnings, e)
		}
	}
	for _, n := range r.s.applied.Notes {
		if n.File == f.path {
			r.report.Notes = append(r.report.Notes, n)
		}
	}
	r.keepServed(f)
}

// becameEmpty reports whether the directory has lost all files without any sign of intent.
// A sign is the removal of the only file.
func (s *Source) becameEmpty(found int) bool {
	if found > 0 || len(s.files) == 0 || len(s.served) == 0 {
		return false
	}
	return len(s.files) > 1 || s.dir != directoryOf(s.cfg.Path)
}

// directory tells a directory from another of the same name.
type directory struct{ dev, ino uint64 }

func directoryOf(path string) directory {
	dev, ino := identity(path)
	return directory{dev, ino}
}

// failed reports that the path as a whole cannot be read: all that is served
// stays.
func (s *Source) failed(err error) (*Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := *s.applied
	e := Error{File: s.cfg.Path, Reason: withoutPath(err).Error()}
	var pe *os.PathError
	if errors.As(err, &pe) {
		e.File = pe.Path
	}
	e.Kept = len(s.served) > 0
	r.Errors = slices.Concat([]Error{e}, r.Errors)
	s.report = &r
	return s.report, err
}
