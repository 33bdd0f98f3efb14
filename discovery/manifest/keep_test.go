package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// never fails the test if a Service is withdrawn while during runs.
func (w *watch) never(name string, during func()) {
	w.t.Helper()
	w.mu.Lock()
	before := w.withdrawn[name]
	w.mu.Unlock()
	during()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.withdrawn[name] - before; n > 0 {
		w.t.Errorf("%s was withdrawn %d times", name, n)
	}
}

// awaitError waits for a report whose errors hold text.
func (w *watch) awaitError(text string) {
	w.t.Helper()
	w.until("an error that holds "+text, func() bool {
		err := w.src.Report().Err()
		return err != nil && strings.Contains(err.Error(), text)
	})
}

// awaitNoError waits for a report without errors.
func (w *watch) awaitNoError() {
	w.t.Helper()
	w.until("a report without errors", func() bool { return w.src.Report().Err() == nil })
}

func (w *watch) until(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("no %s; report: %v", what, w.src.Report().Err())
		}
	}
}

// A shell that redirects into a manifest empties it before the command has
// printed anything, and leaves it empty where the command fails.
func TestEmptyFileWithdrawsNothing(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	writeFile(t, a, service("web", 80)+"---\n"+service("api", 81))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80, "api": 81})
	w.never("web", func() {
		for i, empty := range []string{"", "\n", "---\n", "# nothing yet\n", "---\n---\n"} {
			writeFile(t, a, empty)
			w.awaitError("a.yaml: empty")
			other := 90 + i
			writeFile(t, b, service("other", other)) // the rest applies
			w.await(map[string]uint16{"web": 80, "api": 81, "other": uint16(other)})
			writeFile(t, a+"~", empty) // and as a new file
			must(t, os.Rename(a+"~", a))
			w.awaitError("a.yaml: empty")
			writeFile(t, a, service("web", 80)+"---\n"+service("api", 81))
			w.awaitNoError()
		}
	})

	// Said in so many words, nothing is what is to be served.
	writeFile(t, a+"~", "apiVersion: v1\nkind: List\nitems: []\n")
	must(t, os.Rename(a+"~", a))
	w.await(map[string]uint16{"other": 94})
	w.awaitNoError()
	writeFile(t, a, "") // which has nothing to lose
	writeFile(t, b, service("other", 95))
	w.await(map[string]uint16{"other": 95})
	w.awaitNoError()
}

// A file that is written in place and has become shorter may be half of the
// next one.
func TestHalfWrittenFileWithdrawsNothing(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	web, api := service("web", 80), "---\n"+service("api", 81)
	writeFile(t, a, web+api)
	w := runWith(t, Config{Path: dir, Shorter: time.Hour})
	w.await(map[string]uint16{"web": 80, "api": 81})
	w.never("api", func() {
		for i, steps := range [][]string{{web}, {"", web}, {web[:len(web)/2], web}, {""}} {
			for j, text := range steps {
				writeFile(t, a, text)
				other := 100 + 10*i + j
				writeFile(t, b, service("other", other)) // a sure sign that a was looked at
				w.await(map[string]uint16{"web": 80, "api": 81, "other": uint16(other)})
			}
			writeFile(t, a, web+api)
		}
		writeFile(t, a, web+"---\n"+service("api", 82))
		w.await(map[string]uint16{"web": 80, "api": 82, "other": 130})
	})
	// A complete one, renamed over it, counts at once.
	writeFile(t, a+"~", web)
	must(t, os.Rename(a+"~", a))
	w.await(map[string]uint16{"web": 80, "other": 130})
}

// A shorter file that nobody goes on with is taken at its word.
func TestShorterFileCountsInTheEnd(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, a, service("web", 80)+"---\n"+service("api", 81))
	w := runWith(t, Config{Path: a, Shorter: 50 * time.Millisecond})
	w.await(map[string]uint16{"web": 80, "api": 81})
	writeFile(t, a, service("web", 80))
	w.await(map[string]uint16{"web": 80})
}

// A file that is written anew every second is never left alone. It counts all the same;
// one that grows for a minute does not, before it is complete.
func TestShorterFileThatIsAlwaysWrittenCounts(t *testing.T) {
	whole := service("web", 80) + "---\n" + service("api", 81)
	for name, c := range map[string]struct {
		text func(second int) string
		left int // Services
	}{
		"anew":    {func(i int) string { return service("web", 80) + strings.Repeat("#\n", i%3) }, 1},
		"growing": {func(i int) string { return whole[:i] }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := filepath.Join(t.TempDir(), "a.yaml")
			synctest.Test(t, func(t *testing.T) {
				writeFile(t, a, whole)
				src := New(Config{Path: a, Shorter: 2 * time.Second})
				for i := range 60 {
					if _, err := src.Load(); err != nil {
						t.Fatal(err)
					}
					writeFile(t, a, c.text(i))
					time.Sleep(time.Second)
				}
				if n := src.Report().Objects; n != c.left {
					t.Errorf("%d Services are served after a minute, want %d", n, c.left)
				}
			})
		})
	}
}

// A directory whose volume is not mounted, or whose checkout failed, is empty.
func TestEmptiedDirectoryWithdrawsNothing(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "manifests")
	writeFile(t, filepath.Join(dir, "a.yaml"), service("web", 80))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80})
	w.never("web", func() {
		// Another directory in its place, as where a volume is unmounted.
		must(t, os.Mkdir(filepath.Join(base, "empty"), 0o755))
		must(t, os.Rename(dir, filepath.Join(base, "mounted")))
		must(t, os.Rename(filepath.Join(base, "empty"), dir))
		w.awaitError("no manifest")
		must(t, os.Rename(dir, filepath.Join(base, "empty")))
		must(t, os.Rename(filepath.Join(base, "mounted"), dir))
		w.awaitNoError()

		// Several files that go at once.
		writeFile(t, filepath.Join(dir, "b.yaml"), service("api", 81))
		w.await(map[string]uint16{"web": 80, "api": 81})
		must(t, os.Rename(dir, filepath.Join(base, "away"))) // so that one look finds both gone
		must(t, os.Remove(filepath.Join(base, "away", "a.yaml")))
		must(t, os.Remove(filepath.Join(base, "away", "b.yaml")))
		must(t, os.Rename(filepath.Join(base, "away"), dir))
		w.awaitError("no manifest")
		writeFile(t, filepath.Join(dir, "c.yaml"), service("web", 80)+"---\n"+service("api", 82))
		w.await(map[string]uint16{"web": 80, "api": 82})
		w.awaitNoError()
	})

	// The only file, deleted by itself.
	must(t, os.Remove(filepath.Join(dir, "c.yaml")))
	w.await(nil)
	w.awaitNoError()
}

// A path that is no more is an error that stays visible.
func TestMissingPathIsReported(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "manifests")
	writeFile(t, filepath.Join(dir, "a.yaml"), service("web", 80))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80})
	w.never("web", func() {
		must(t, os.Rename(dir, dir+".old"))
		w.awaitError("no such file or directory")
		must(t, os.Rename(dir+".old", dir))
		w.awaitNoError()
	})
}
