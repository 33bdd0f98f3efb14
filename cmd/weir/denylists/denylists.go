// Package denylists reads the files of denyLists, and follows them.
package denylists

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/denylist"
)

// lookEvery is how often the files are looked at. One that has changed is read when it is the same
// at the next look: whoever writes it may not be done.
const lookEvery = 2 * time.Second

// Files are the files of deny lists.
type Files struct {
	log   *slog.Logger
	cfg   []config.DenyList
	files []file
}

// file is the state of a file.
type file struct {
	read, seen stamp
	err        error // of the last reading
}

// stamp changes when a file is written or replaced.
type stamp struct {
	at    time.Time
	size  int64
	inode os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.at.Equal(o.at) && s.size == o.size && (s.inode == nil) == (o.inode == nil) &&
		(s.inode == nil || os.SameFile(s.inode, o.inode))
}

// stampOf is the zero value for a file that is not there.
func stampOf(path string) stamp {
	i, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{i.ModTime(), i.Size(), i}
}

// Read reads all files, and logs the changes of later. An error names each file that is wrong, and
// the first line.
func Read(cfg []config.DenyList, log *slog.Logger) (*Files, []lb.DenyList, error) {
	f := &Files{log: log, cfg: cfg, files: make([]file, len(cfg))}
	lists := make([]lb.DenyList, len(cfg))
	var errs []error
	for i, l := range cfg {
		f.files[i].seen = stampOf(l.File)
		prefixes := f.read(i)
		lists[i] = lb.DenyList{Name: l.Name, Prefixes: prefixes, Keep: l.Established == config.DeniedKeep,
			Services: l.Scope == config.ScopeServices}
		errs = append(errs, f.files[i].err)
	}
	return f, lists, errors.Join(errs...)
}

// read reads a file as it was seen; nil after an error, which is the file's.
func (f *Files) read(i int) []netip.Prefix {
	l, s := &f.cfg[i], &f.files[i]
	s.read = s.seen
	list, err := readFile(l.File)
	if s.err = err; err != nil {
		s.err = fmt.Errorf("deny list %s: %w", l.Name, err)
		return nil
	}
	return list
}

func readFile(path string) ([]netip.Prefix, error) {
	if i, err := os.Stat(path); err != nil {
		return nil, err
	} else if !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	list, err := denylist.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// Follow gives each list that has changed to deny, by number, and the problems with files to
// complain, until ctx ends.
func (f *Files) Follow(ctx context.Context, deny func(int, []netip.Prefix) error, complain func([]problem.Problem)) error {
	if len(f.cfg) == 0 {
		return nil
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if f.look(deny) {
				complain(f.problems())
			}
		}
	}
}

// look reads the files that have changed, and reports whether there was one. After an error the list
// stays as it was.
func (f *Files) look(deny func(int, []netip.Prefix) error) (changed bool) {
	for i := range f.files {
		s, now := &f.files[i], stampOf(f.cfg[i].File)
		settled := now.same(s.seen)
		if s.seen = now; !settled || now.same(s.read) {
			continue
		}
		changed = true
		list := f.read(i)
		if s.err == nil {
			s.err = deny(i, list)
		}
		if s.err == nil {
			f.log.Info("deny list changed", "name", f.cfg[i].Name, "prefixes", len(list))
		}
	}
	return changed
}

func (f *Files) problems() (list []problem.Problem) {
	for i := range f.files {
		if err := f.files[i].err; err != nil {
			list = append(list, problem.New(problem.DenyList, fmt.Sprintf("denyLists[%d].file", i), "%v: the last list goes on", err))
		}
	}
	return list
}
