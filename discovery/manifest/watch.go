package manifest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirlb/weir/discovery"
)

// Run reads the manifests, hands their objects to deliver, and does so again after every
// change until ctx ends. deliver is called from a single goroutine; changes while it runs
// are coalesced into the next call. The first call
// comes as soon as the path could be read, also when it holds nothing, with
// Synced set. Run returns nil when ctx ends.
func (s *Source) Run(ctx context.Context, deliver func(*discovery.Update)) error {
	w := newWatcher(s.cfg.Path, s.cfg.Log)
	defer w.close()
	poll := s.cfg.Poll
	if w.fs == nil {
		poll = min(poll, 2*time.Second)
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()

	var pathErr string
	for {
		// The watches are set before the files are read, so that no change
		// falls between the two.
		w.arm()
		err := s.refresh()
		if msg := errorText(err); msg != pathErr {
			if err != nil {
				s.cfg.Log.Error("manifests cannot be read; what is served stays", "err", err)
			}
			pathErr = msg
		}
		s.flush(deliver)
		if !s.wait(ctx, w, ticker.C, s.retryTimer()) {
			return nil
		}
	}
}

// retryTimer returns a channel that gets a value when a file that was not read
// because it is being written should be looked at again, nil for no such file.
func (s *Source) retryTimer() <-chan time.Time {
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.recheck == 0 {
		return nil
	}
	return time.After(s.recheck)
}

// wait returns true when the manifests are to be read again, false when ctx
// has ended.
func (s *Source) wait(ctx context.Context, w *watcher, poll, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.reload:
			return true
		case <-poll:
			return true
		case <-again:
			return true
		case ev := <-w.events():
			if w.matters(ev.Name) {
				return w.settle(ctx, s.cfg.Quiet)
			}
		case err := <-w.errors():
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				s.cfg.Log.Warn("watching manifests", "path", s.cfg.Path, "err", err)
			}
			return true
		}
	}
}

// flush delivers the changes.
func (s *Source) flush(deliver func(*discovery.Update)) {
	defer s.cfg.Working()()
	if s.cfg.Store.Settle() {
		s.takeAnswers()
	}
	if up := s.Flush(); up != nil {
		deliver(up)
	}
}

// refresh loads, and logs what is new in the report.
func (s *Source) refresh() error {
	old := s.Report()
	report, err := s.Load()
	if err == nil {
		for _, e := range fresh(report.Errors, old.Errors) {
			s.cfg.Log.Error("manifest refused", "err", e.Error())
		}
		for _, e := range fresh(report.Warnings, old.Warnings) {
			s.cfg.Log.Warn("manifest", "warning", e.Error())
		}
		if len(old.Errors) > 0 && len(report.Errors) == 0 {
			s.cfg.Log.Info("all manifests are understood again", "path", s.cfg.Path)
		}
	}
	return err
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// watcher notices when the contents of a path may have changed. It watches
// directories, never files: an editor or a ConfigMap volume replaces files,
// and a watch would stay with the old file.
type watcher struct {
	path string
	log  *slog.Logger
	fs   *fsnotify.Watcher // nil: notification is not to be had
	dirs map[string]*watched
}

// watched is a directory under watch.
type watched struct {
	dev, ino uint64
	names    map[string]bool // of interest; nil: all
}

func newWatcher(path string, log *slog.Logger) *watcher {
	w := &watcher{path: path, log: log, dirs: map[string]*watched{}}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("manifests are polled: no file notification", "err", err)
		return w
	}
	w.fs = fs
	return w
}

func (w *watcher) close() {
	if w.fs != nil {
		w.fs.Close()
	}
}

func (w *watcher) errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

func (w *watcher) events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

// settle drains events until there has been none for quiet, or for ten times
// that. It is false when ctx ended.
func (w *watcher) settle(ctx context.Context, quiet time.Duration) bool {
	limit := time.NewTimer(10 * quiet)
	defer limit.Stop()
	idle := time.NewTimer(quiet)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return true
		case <-idle.C:
			return true
		case ev := <-w.fs.Events:
			if w.matters(ev.Name) {
				idle.Reset(quiet)
			}
		}
	}
}

func (w *watcher) matters(name string) bool {
	if _, ok := w.dirs[name]; ok {
		return true
	}
	dir, base := filepath.Split(name)
	d := w.dirs[filepath.Clean(dir)]
	return d == nil || d.names == nil || d.names[base]
}

// arm watches the directories that matter now and no other. A directory that is made before
// the one above it is watched goes unnoticed: therefore arm looks again after each new watch.
func (w *watcher) arm() {
	const most = 16 // of a path that changes all the time
	for range most {
		if w.fs == nil || !w.armOnce() {
			return
		}
	}
}

// armOnce is a pass of arm. It reports whether there is a new watch.
func (w *watcher) armOnce() (added bool) {
	want := map[string]map[string]bool{}
	abs, err := filepath.Abs(w.path)
	if err != nil {
		return false
	}
	watchTargets(abs, want, 0)
	if info, err := os.Stat(abs); err == nil && info.IsDir() {
		want[abs] = nil
		// Files that are links into other directories.
		entries, _ := os.ReadDir(abs)
		for _, e := range entries {
			if e.Type()&os.ModeSymlink != 0 && !strings.HasPrefix(e.Name(), ".") {
				watchTargets(filepath.Join(abs, e.Name()), want, 0)
			}
		}
		want[abs] = nil
	}
	// A directory that is moved keeps or loses the watch.
	alive := w.fs.WatchList()
	for dir, old := range w.dirs {
		names, ok := want[dir]
		if dev, ino := identity(dir); !ok || dev != old.dev || ino != old.ino || !slices.Contains(alive, dir) {
			_ = w.fs.Remove(dir) // it may be gone with the directory
			delete(w.dirs, dir)
			continue
		}
		old.names = names
	}
	for dir, names := range want {
		if w.dirs[dir] != nil {
			continue
		}
		dev, ino := identity(dir)
		if err := w.fs.Add(dir); err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				w.log.Warn("manifests are polled: directory cannot be watched", "directory", dir, "err", err)
			}
			continue
		}
		w.dirs[dir] = &watched{dev: dev, ino: ino, names: names}
		added = true
	}
	return added
}

// watchTargets adds to want every directory in which the meaning of path can change:
// its directory, those that hold a symbolic link of the path, and where path does not exist
// the nearest existing directory.
func watchTargets(path string, want map[string]map[string]bool, depth int) {
	const maxLinks = 40 // as the kernel's MAXSYMLINKS
	interest := func(dir, name string) {
		names, ok := want[dir]
		if ok && names == nil {
			return
		}
		if names == nil {
			names = map[string]bool{}
			want[dir] = names
		}
		names[name] = true
	}
	dir := string(filepath.Separator)
	parts := strings.Split(strings.TrimPrefix(path, dir), dir)
	for i, name := range parts {
		at := filepath.Join(dir, name)
		info, err := os.Lstat(at)
		if err != nil || i == len(parts)-1 {
			interest(dir, name)
		}
		if err != nil {
			return
		}
		if info.Mode()&os.ModeSymlink != 0 {
			interest(dir, name)
			target, err := os.Readlink(at)
			if err != nil || depth >= maxLinks {
				return
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(dir, target)
			}
			watchTargets(filepath.Join(append([]string{target}, parts[i+1:]...)...), want, depth+1)
			return
		}
		dir = at
	}
}

// identity tells a directory from another of the same name.
func identity(dir string) (dev, ino uint64) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev), st.Ino
	}
	return 0, 0
}
