package slot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func newEntries(t *testing.T) Entries {
	t.Helper()
	b := Entries{t.TempDir()}
	must(t, os.MkdirAll(b.folder(), 0o755))
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The loader takes the greatest version: that of the last update, whichever release it is.
func TestAnUpdateIsBootedBeforeTheOtherSlot(t *testing.T) {
	b := newEntries(t)
	must(t, b.Add(Entry{Slot: "a", Version: "2.0.0", Options: "quiet"}))
	must(t, b.Add(Entry{Slot: "b", Version: "1.0.0", Options: "quiet panic=10", Trial: true, Left: Tries}))
	list, err := b.List()
	must(t, err)
	if len(list) != 2 || list[0].Slot != "b" || list[0].Version != "1.0.0" || list[0].Options != "quiet panic=10" {
		t.Fatalf("entries %+v, want slot b first", list)
	}
	if !list[0].Trial || list[0].Left != Tries || list[1].Trial {
		t.Errorf("entries %+v, want slot b on trial, and slot a not", list)
	}
}

// The name that the loader gives to an entry is understood, and a blessing ends the count.
func TestABlessingEndsTheTrial(t *testing.T) {
	b := newEntries(t)
	must(t, b.Add(Entry{Slot: "b", Trial: true, Left: Tries}))
	must(t, os.Rename(filepath.Join(b.folder(), "weir-b+3.conf"), filepath.Join(b.folder(), "weir-b+0-3.conf")))
	e, err := b.Of("b")
	must(t, err)
	if !e.Trial || e.Left != 0 || e.Bootable() {
		t.Errorf("after three boots: %+v", e)
	}
	must(t, b.Bless("b"))
	must(t, b.Bless("b"))
	if e, err = b.Of("b"); err != nil || e.Trial || !e.Bootable() {
		t.Errorf("blessed: %+v, %v", e, err)
	}
}

// A cut before the rename leaves a file that neither the loader nor the next update reads.
func TestAnUnfinishedEntryDoesNotCount(t *testing.T) {
	b := newEntries(t)
	must(t, b.Add(Entry{Slot: "a"}))
	must(t, os.WriteFile(filepath.Join(b.folder(), "weir-b.new"), []byte("title"), 0o600))
	must(t, b.Remove("b"))
	list, err := b.List()
	must(t, err)
	if len(list) != 1 || list[0].Slot != "a" {
		t.Errorf("entries %+v, want slot a alone", list)
	}
	if _, err := b.Of("b"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("slot b has an entry: %v", err)
	}
}
