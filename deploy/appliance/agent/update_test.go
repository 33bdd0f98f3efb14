package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/deploy/appliance/bundle"
	"github.com/weirlb/weir/deploy/appliance/slot"
)

// disk is a boot partition with both slots, of which a runs, and the root partition of b.
func disk(t *testing.T) (b slot.Entries, partition string) {
	t.Helper()
	b, partition = slot.Entries{Root: t.TempDir()}, filepath.Join(t.TempDir(), "weir-root-b")
	must(t, os.MkdirAll(filepath.Join(b.Root, "loader", "entries"), 0o755))
	must(t, b.Add(slot.Entry{Slot: "b", Version: "1.0.0"}))
	must(t, b.Add(slot.Entry{Slot: "a", Version: "1.1.0"}))
	must(t, os.WriteFile(partition, bytes.Repeat([]byte("o"), 8<<10), 0o600))
	return b, partition
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newBundle is an update of which each file has some KiB.
func newBundle(t *testing.T, m bundle.Manifest, kib int) []byte {
	t.Helper()
	dir := t.TempDir()
	for _, name := range bundle.Files {
		write(t, dir, name, strings.Repeat("n", kib<<10))
	}
	m.Architecture = cmp.Or(m.Architecture, runtime.GOARCH)
	var out bytes.Buffer
	must(t, bundle.Write(&out, &m, dir))
	return out.Bytes()
}

func TestAnUpdateIsTriedInItsSlot(t *testing.T) {
	b, partition := disk(t)
	version, err := install(b, "b", partition, bytes.NewReader(newBundle(t, bundle.Manifest{Version: "1.2.0", Options: "quiet"}, 8)))
	must(t, err)
	e, err := b.Of("b")
	must(t, err)
	if version != "1.2.0" || e.Version != version || !e.Trial || e.Left != slot.Tries || e.Options != "quiet" {
		t.Errorf("release %s, entry %+v", version, e)
	}
	for _, file := range []string{partition, filepath.Join(b.Root, "weir/b/vmlinuz"), filepath.Join(b.Root, "weir/b/initrd")} {
		if text, err := os.ReadFile(file); err != nil || strings.Trim(string(text), "n") != "" || len(text) != 8<<10 {
			t.Errorf("%s has %d bytes: %v", file, len(text), err)
		}
	}
}

// A file that is no update, or does not fit, leaves the fallback as it was.
func TestAnotherFileLeavesTheFallback(t *testing.T) {
	for name, file := range map[string][]byte{
		"text":           []byte(strings.Repeat("no tar ", 1000)),
		"nothing":        nil,
		"another option": newBundle(t, bundle.Manifest{Version: "1.2.0", Options: "quiet\nlinux /else"}, 1),
		"no version":     newBundle(t, bundle.Manifest{}, 1),
		"no machine":     newBundle(t, bundle.Manifest{Version: "1.2.0", Architecture: "s390x"}, 1),
		"no files":       newBundle(t, bundle.Manifest{Version: "1.2.0"}, 0),
		"too large":      newBundle(t, bundle.Manifest{Version: "1.2.0"}, 9),
		"no root":        bytes.Replace(newBundle(t, bundle.Manifest{Version: "1.2.0"}, 1), []byte(`"root"`), []byte(`"rood"`), 1),
	} {
		t.Run(name, func(t *testing.T) {
			b, partition := disk(t)
			if _, err := install(b, "b", partition, bytes.NewReader(file)); err == nil {
				t.Fatal("it is installed")
			}
			if e, err := b.Of("b"); err != nil || e.Version != "1.0.0" || e.Trial {
				t.Errorf("entry %+v, %v", e, err)
			}
			if !untouched(t, partition) {
				t.Error("the root has been written")
			}
		})
	}
}

// An update that ends early, or is damaged, is not booted: its slot has files of two releases.
func TestAnUpdateThatIsNotWholeIsNotBooted(t *testing.T) {
	whole := newBundle(t, bundle.Manifest{Version: "1.2.0"}, 8)
	tests := map[string][]byte{}
	for n := 0; n < len(whole)-1024; n += 512 { // the end of a tar is 1,024 zeros
		tests[fmt.Sprintf("cut at %d", n)] = whole[:n]
	}
	for n := bytes.IndexByte(whole, 'n'); n < len(whole); n += 3 << 10 {
		if whole[n] == 'n' {
			tests[fmt.Sprintf("another byte at %d", n)] = slices.Concat(whole[:n], []byte("o"), whole[n+1:])
		}
	}
	for name, file := range tests {
		t.Run(name, func(t *testing.T) {
			b, partition := disk(t)
			if _, err := install(b, "b", partition, bytes.NewReader(file)); err == nil {
				t.Fatal("it is installed")
			}
			list, err := b.List()
			must(t, err)
			for _, e := range list {
				whole := e.Slot == "a" || e.Version == "1.0.0" && untouched(t, partition)
				if !whole || e.Trial {
					t.Errorf("entry %+v can be booted", e)
				}
			}
			if !slices.ContainsFunc(list, func(e slot.Entry) bool { return e.Slot == "a" }) {
				t.Errorf("entries %+v have no slot a", list)
			}
		})
	}
}

// A slot whose partition cannot be written keeps its entry.
func TestAnUpdateWithoutAPartitionLeavesTheFallback(t *testing.T) {
	b, partition := disk(t)
	must(t, os.Remove(partition))
	if _, err := install(b, "b", partition, bytes.NewReader(newBundle(t, bundle.Manifest{Version: "1.2.0"}, 8))); err == nil {
		t.Error("it is installed")
	}
	if e, err := b.Of("b"); err != nil || e.Version != "1.0.0" {
		t.Errorf("entry %+v, %v", e, err)
	}
}

// untouched reports whether a partition has its bytes from before the update.
func untouched(t *testing.T, partition string) bool {
	t.Helper()
	text, err := os.ReadFile(partition)
	must(t, err)
	return strings.Trim(string(text), "o") == ""
}
