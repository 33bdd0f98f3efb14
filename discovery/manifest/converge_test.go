package manifest

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever was written in between, malformed, given twice or moved from file
// to file: once every document is well and described once, a Source serves
// what one serves that starts with these files.
func TestAnyHistoryEndsAsAFreshStart(t *testing.T) {
	files := []string{"a.yaml", "b.yaml", "c.yml"}
	names := []string{"s1", "s2", "s3", "s4"}
	rapid.Check(t, func(rt *rapid.T) {
		d := newDir(t)
		present := map[string]bool{}
		write := func(name, text string) {
			d.write(name, text)
			present[name] = true
		}
		for range rapid.IntRange(1, 8).Draw(rt, "edits") {
			name := rapid.SampledFrom(files).Draw(rt, "file")
			switch rapid.IntRange(0, 9).Draw(rt, "edit") {
			case 0:
				if present[name] {
					d.remove(name)
					delete(present, name)
				}
			case 1:
				write(name, "\x00")
			default:
				text := ""
				for range rapid.IntRange(0, 4).Draw(rt, "documents") {
					svc := rapid.SampledFrom(names).Draw(rt, "service")
					port := rapid.IntRange(0, 5).Draw(rt, "port") // 0 is refused
					switch rapid.IntRange(0, 4).Draw(rt, "kind") {
					case 0:
						text += slice(svc+"-1", svc, fmt.Sprintf("10.1.1.%d", port))
					case 1:
						text += slice(svc+"-1", svc, "not an address")
					case 2:
						text += "---\nkind: [Service\n"
					default:
						text += service(svc, port)
					}
				}
				write(name, text)
			}
			d.load()
		}
		// The end: every Service in one of the files.
		for _, name := range slices.Sorted(maps.Keys(present)) {
			d.remove(name)
		}
		texts := map[string]string{}
		for _, svc := range names {
			name := rapid.SampledFrom(files).Draw(rt, "last file")
			texts[name] += service(svc, rapid.IntRange(1, 5).Draw(rt, "last port")) + slice(svc+"-1", svc, "10.2.2.2")
		}
		for name, text := range texts {
			d.write(name, text)
		}
		if errs := d.load(); len(errs) > 0 {
			rt.Fatalf("errors at the end: %q", errs)
		}
		fresh := newSource(d.path)
		if _, err := fresh.Load(); err != nil {
			rt.Fatal(err)
		}
		fresh.Flush()
		if got, want := d.served(), serves(fresh); !slices.Equal(got, want) {
			rt.Fatalf("served %q, a fresh start serves %q", got, want)
		}
		for name := range texts {
			d.remove(name)
		}
	})
}
