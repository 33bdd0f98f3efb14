package lastknown

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/discovery/names"
)

func answers() []names.Kept {
	return []names.Kept{
		{Namespace: "shop", Host: "db.example", At: at, Targets: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("[fd00::1]:0")}},
		{Namespace: "shop", Host: "db.example", Service: "_pg._tcp", At: at, Targets: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:5432")}},
	}
}

// namesFile is a file with answers.
func namesFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state", NamesFile)
	if _, err := SaveNames(path, at, answers()); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file that no process of Weir's could have left, is set aside, and the error says why.
func TestNamesAreReadAsTheyWereSaved(t *testing.T) {
	edit := func(old, with string) func([]byte) []byte {
		return func(b []byte) []byte { return resum(bytes.Replace(b, []byte(old), []byte(with), 1)) }
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string // of the error
		kind   error
	}{
		"as it is":          {func(b []byte) []byte { return b }, "", nil},
		"a bit":             {func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, "its checksum is wrong", ErrCorrupt},
		"cut short":         {func(b []byte) []byte { return b[:20] }, "20 bytes are too few", ErrCorrupt},
		"no JSON":           {edit("[{", "{["), "invalid character", ErrCorrupt},
		"another number":    {edit(`"objects":2`, `"objects":3`), "2 answers, its header says 3", ErrCorrupt},
		"no address":        {edit("10.0.0.1:0", "10.0.0.256:0"), "10.0.0.256", ErrCorrupt},
		"no order":          {edit("10.0.0.1:0", "[fd00::2]:0"), "targets are not sorted", ErrCorrupt},
		"another kind":      {edit("WeirNames", "WeirState"), "not that of a WeirNames", ErrCorrupt},
		"another version":   {edit(`"version":1`, `"version":2`), "format 2, this is 1", ErrOther},
		"larger than it is": {func([]byte) []byte { return make([]byte, MaxNamesFileSize+1) }, "larger than 8388608 bytes", ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			path := namesFile(t)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.change(data), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := LoadNames(path)
			if c.want == "" {
				if err != nil || !reflect.DeepEqual(list, answers()) {
					t.Errorf("%v, %v", list, err)
				}
				return
			}
			if list != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v, want %q", list, err, c.want)
			}
			_, again := LoadNames(path)
			if aside := c.kind == ErrCorrupt; errors.Is(again, fs.ErrNotExist) != aside || strings.Contains(err.Error(), "set aside as "+path+".corrupt") != aside {
				t.Errorf("%v, and then %v", err, again)
			}
		})
	}
}

func TestNamesThatOthersCouldHaveWrittenAreNotRead(t *testing.T) {
	path := namesFile(t)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	counted := statefile.Counted(statefile.Names, statefile.Untrusted)
	if list, err := LoadNames(path); list != nil || !errors.Is(err, statefile.ErrUntrusted) || !strings.Contains(err.Error(), "set aside") {
		t.Errorf("%v, %v", list, err)
	}
	if n := statefile.Counted(statefile.Names, statefile.Untrusted); n != counted+1 {
		t.Errorf("%d files are counted, want %d", n, counted+1)
	}
}

// Without an answer there is no file. Later it has the times of the answers at the end of a process, and while it
// runs as of 10 minutes ago.
func TestNamesAreSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), NamesFile)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var list []names.Kept // guarded by mu
		set := func(to []names.Kept) {
			mu.Lock()
			defer mu.Unlock()
			list = slices.Clone(to)
		}
		k := NewNamesKeeper(path, func() []names.Kept {
			mu.Lock()
			defer mu.Unlock()
			return list
		}, slog.New(slog.DiscardHandler))
		run := func(f func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan bool)
			go func() { k.Run(ctx); close(done) }()
			f()
			cancel()
			<-done
		}
		expect := func(when string, want ...names.Kept) {
			t.Helper()
			synctest.Wait()
			if got, err := LoadNames(path); len(got) != len(want) || err == nil && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, %v, want %v", when, got, err, want)
			}
		}
		run(func() { time.Sleep(time.Hour) })
		expect("without an answer")
		now := answers()
		set(now)
		run(func() {
			k.Changed()
			time.Sleep(6 * time.Second)
			expect("after a change", now...)
			now[0].At = at.Add(time.Hour)
			set(now)
			time.Sleep(11 * time.Minute)
			expect("a later time", now...)
			now = now[:1]
			set(now)
		})
		expect("at the end", now...)
	})
}

func FuzzDecodeNames(f *testing.F) {
	for _, body := range []string{
		`{"kind":"WeirNames","version":1,"objects":1}` + "\n" + `[{"namespace":"a","host":"b.c","at":"2026-01-02T03:04:05Z","targets":["10.0.0.1:0"]}]`,
		`{"kind":"WeirNames","version":1,"objects":1}` + "\n" + `[{"namespace":"a","host":"b.c","service":"_x._tcp","at":"2026-01-02T03:04:05Z","targets":["[fd00::1]:80"]}]`,
		`{"kind":"WeirNames","version":1}` + "\n" + `null`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := decodeNames(resum(append(bytes.Clone(body), make([]byte, 32)...)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOther) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		for i := range list {
			if err := list[i].Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
