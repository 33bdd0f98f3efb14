package process

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// FileWatch notices when the content of the configuration file changes. It watches
// the directory: editors replace files, and the kubelet a link beside a mounted
// ConfigMap's.
type FileWatch struct {
	file string
	seen [sha256.Size]byte
	has  bool // the file could be read
}

// WatchFile begins with the content that the file has now: it is to be called before
// the file is read, so that no change is missed.
func WatchFile(file string) *FileWatch {
	w := &FileWatch{file: file}
	w.changed()
	return w
}

// changed reports whether the content is another than at the last call. A file that
// is not there, in the middle of being replaced, is no change.
func (w *FileWatch) changed() bool {
	text, err := os.ReadFile(w.file)
	if err != nil {
		return false
	}
	sum := sha256.Sum256(text)
	if w.has && sum == w.seen {
		return false
	}
	w.has, w.seen = true, sum
	return true
}

const (
	// settle is how long nothing may happen before the file is looked at: whoever
	// writes it may not be done.
	settle = 200 * time.Millisecond
	// lookAnyway is how often it is looked at without a notice: there is none of a
	// file elsewhere to which a link leads.
	lookAnyway = 10 * time.Second
)

// notices are those of the directory. An error costs promptness alone: a node without free
// inotify instances or watches still needs the load balancer.
func (w *FileWatch) notices() (*fsnotify.Watcher, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := n.Add(filepath.Dir(w.file)); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Follow asks for a reload after each change, until ctx ends.
func (w *FileWatch) Follow(ctx context.Context, reload chan<- os.Signal, log *slog.Logger) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if n, err := w.notices(); err != nil {
		log.Warn("the configuration file is polled", "file", w.file, "every", lookAnyway, "err", err)
	} else {
		defer n.Close()
		events, errs = n.Events, n.Errors
	}
	timer := time.NewTimer(settle) // changes before the watch
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			timer.Reset(settle)
		case <-errs: // an overflow: something happened
			timer.Reset(settle)
		case <-timer.C:
			if w.changed() {
				select {
				case reload <- syscall.SIGHUP:
				default: // a notice is waiting already
				}
			}
			timer.Reset(lookAnyway)
		}
	}
}
