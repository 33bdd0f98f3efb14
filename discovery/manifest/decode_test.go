package manifest

import (
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirlb/weir/discovery"
)

// FuzzDecode holds whatever text to what every manifest must keep: nothing
// panics, every object is served, refused with a reason, or skipped, and to
// read the same text again changes nothing.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		goodService, goodSlice, goodEndpoints, edge + "---" + webRoute + "---" + withEndpoint("v1", "10.1.1.1"),
		"---\n# nothing\n---\n...\n",
		`{"kind":"List","apiVersion":"v1","items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}},7]}`,
		"kind: Service\na: &a [b]\nc: *a\n",
	} {
		f.Add(text)
	}
	// The scripts hold manifests of every sort.
	_ = filepath.WalkDir("testdata", func(path string, e fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" {
			if text, err := os.ReadFile(path); err == nil {
				f.Add(string(text))
			}
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, text string) {
		src := newSource("")
		report, err := src.LoadFiles([]string{"-"}, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range report.Errors {
			if e.Reason == "" || e.File == "" {
				t.Errorf("an error without a reason: %+v", e)
			}
			if utf8.ValidString(text) && !utf8.ValidString(e.Error()) {
				t.Errorf("an error that is no text: %q", e.Error())
			}
		}
		src.Flush()
		first := len(report.Errors)
		if report, _ = src.LoadFiles([]string{"-"}, strings.NewReader(text)); len(report.Errors) != first {
			t.Errorf("%d errors, %d when read again: %v", first, len(report.Errors), report.Err())
		}
		if up := src.Flush(); up != nil {
			t.Errorf("reading again changed %+v", up)
		}
	})
}

func TestPathAtNamesTheValueAtAnOffset(t *testing.T) {
	const text = `{"a":{"b":[1,{"c":"x"},[2,3]]},"d":null,"e":{}}`
	for value, want := range map[string]string{
		`1,`:   "a.b[0]",
		`"x"`:  "a.b[1].c",
		`2,`:   "a.b[2][0]",
		`3]`:   "a.b[2][1]",
		`null`: "d",
		`{}}`:  "e",
	} {
		at := strings.Index(text, value)
		if got := pathAt([]byte(text), int64(at+1)); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	if got := pathAt([]byte(`{"a":`), 100); got != "" {
		t.Errorf("broken text: %q", got)
	}
}

func TestKnownObjectsAreNotDecoded(t *testing.T) {
	d := &decoder{seed: maphash.MakeSeed()}
	first := d.document(document{number: 1, line: 1, raw: []byte(goodService)}, false)
	d.known = func(hash uint64) (Key, bool) { return first[0].key, hash == first[0].hash }
	again := d.document(document{number: 1, line: 1, raw: []byte(goodService)}, false)
	if len(again) != 1 || again[0].value != nil || again[0].key != (Key{"Service", "shop", "web"}) {
		t.Errorf("%+v", again)
	}
}

func BenchmarkLoadUnchanged(b *testing.B) {
	dir := b.TempDir()
	var text strings.Builder
	for i := range 1000 {
		text.WriteString(slice("s"+strings.Repeat("x", i%50)+string(rune('a'+i%26)), "web", "10.1.1.1", "10.1.1.2"))
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text.String()), 0o644); err != nil {
		b.Fatal(err)
	}
	src := New(Config{Path: dir, Store: discovery.Options{}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := src.Load(); err != nil {
			b.Fatal(err)
		}
	}
}
