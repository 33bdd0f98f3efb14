package main

import (
	"bytes"
	"os"
	"path/filepath"
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

// A file that is no update leaves the fallback as it was.
func TestAnotherFileLeavesTheFallback(t *testing.T) {
	for name, file := range map[string][]byte{
		"text":           []byte(strings.Repeat("no tar ", 1000)),
		"nothing":        nil,
		"another option": newBundle(t, bundle.Manifest{Version: "1.2.0", Options: "quiet\nlinux /else"}, 1),
		"no version":     newBundle(t, bundle.Manifest{}, 1),
		"no files":       newBundle(t, bundle.Manifest{Version: "1.2.0"}, 0),
	} {
		t.Run(name, func(t *testing.T) {
			b, partition := disk(t)
			if _, err := install(b, "b", partition, bytes.NewReader(file)); err == nil {
				t.Fatal("it is installed")
			}
			if e, err := b.Of("b"); err != nil || e.Version != "1.0.0" || e.Trial {
				t.Errorf("entry %+v, %v", e, err)
			}
			if text, err := os.ReadFile(partition); err != nil || strings.Trim(string(text), "o") != "" {
				t.Errorf("the root has been written: %v", err)
			}
		})
	}
}

// An update that ends early, or does not fit, is not booted: its slot has files of two
// releases.
func TestAnUpdateThatEndsEarlyIsNotBooted(t *testing.T) {
	for name, file := range map[string][]byte{
		"cut":       newBundle(t, bundle.Manifest{Version: "1.2.0"}, 8)[:20<<10],
		"too large": newBundle(t, bundle.Manifest{Version: "1.2.0"}, 9),
	} {
		t.Run(name, func(t *testing.T) {
			b, partition := disk(t)
			if _, err := install(b, "b", partition, bytes.NewReader(file)); err == nil {
				t.Fatal("it is installed")
			}
			list, err := b.List()
			if err != nil || len(list) != 1 || list[0].Slot != "a" {
				t.Errorf("entries %+v, %v, want slot a alone", list, err)
			}
		})
	}
}
