package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A changed file asks for a reload, by whatever means it changed: written, replaced,
// or by the link that the kubelet turns for a ConfigMap. What does not change it
// does not.
func TestWatchedFile(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	version := func(name, text string) {
		must(os.Mkdir(filepath.Join(dir, name), 0o755))
		must(os.WriteFile(filepath.Join(dir, name, "weir.yaml"), []byte(text), 0o644))
		must(os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", "one")
	file := filepath.Join(dir, "weir.yaml")
	must(os.Symlink("..data/weir.yaml", file))

	w, reload := WatchFile(file), make(chan os.Signal, 1)
	version("..2", "two") // before the watch begins
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Follow(ctx, reload, slog.New(slog.DiscardHandler)) }()
	expect := func(what string) {
		t.Helper()
		select {
		case <-reload:
		case <-time.After(30 * time.Second):
			t.Fatalf("no reload after %s", what)
		}
	}
	expect("a change before the watch")
	version("..3", "three")
	expect("the kubelet's link")
	must(os.WriteFile(filepath.Join(dir, "new"), []byte("four"), 0o644))
	must(os.Rename(filepath.Join(dir, "new"), file))
	expect("replacing")
	must(os.WriteFile(file, []byte("five"), 0o644))
	expect("writing")
	must(os.WriteFile(filepath.Join(dir, "other"), []byte("x"), 0o644))
	must(os.Chtimes(file, time.Now(), time.Now()))
	cancel()
	must(<-done)
	if len(reload) > 0 {
		t.Error("a reload without a change")
	}
}

// A directory that cannot be watched, as when the node has no inotify instance left, is
// looked at from time to time: it ends nothing.
func TestWatchedFileWithoutNotices(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	file := filepath.Join(dir, "weir.yaml")
	w, reload := WatchFile(file), make(chan os.Signal, 1)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Follow(ctx, reload, slog.New(slog.DiscardHandler)) }()
		time.Sleep(time.Minute)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, []byte("one"), 0o644)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("the watch ended: %v", err)
		case <-reload:
		default:
			t.Error("no reload after a change")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
