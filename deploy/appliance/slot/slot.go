// Package slot keeps the boot entries of the appliance's two slots on the EFI system
// partition.
//
// The loader is systemd-boot: it takes the entry with the greatest version, and counts boots
// of an entry on trial in the name of the file (systemd.io/AUTOMATIC_BOOT_ASSESSMENT):
// weir-b+3.conf becomes weir-b+2-1.conf before the first boot, and after three boots without
// a blessing the entry is sorted behind all others. So the fallback needs no code that runs
// in the broken system.
package slot

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Slot is "a" or "b".
type Slot string

// Slots are all slots.
var Slots = []Slot{"a", "b"}

// Tries are the boots that an update has to come up.
const Tries = 3

// Other is the slot that is not s.
func (s Slot) Other() Slot {
	if s == "a" {
		return "b"
	}
	return "a"
}

// Partition is the name of the slot's partition in the partition table.
func (s Slot) Partition() string { return "weir-root-" + string(s) }

// Folder is the slot's folder on the EFI system partition, for kernel and initramfs.
func (s Slot) Folder() string { return filepath.Join("weir", string(s)) }

// Entry is a boot entry.
type Entry struct {
	Slot    Slot
	Version string // of the release
	// Serial orders entries for the loader. It is not the release's version, so that an
	// update to an older release boots too.
	Serial  int
	Options string // of the kernel, beside those of the slot
	Trial   bool   // boots are counted
	Left    int    // boots on trial that are left
	file    string
}

// Bootable reports whether the loader prefers the entry to an exhausted one.
func (e *Entry) Bootable() bool { return !e.Trial || e.Left > 0 }

func (e *Entry) text() string {
	return fmt.Sprintf(`title Weir %s (slot %s)
sort-key weir
version %d
linux /%[4]s/vmlinuz
initrd /%[4]s/initrd
options root=/dev/disk/by-partlabel/%[5]s rootfstype=squashfs ro weir.slot=%[2]s %[6]s
`, e.Version, e.Slot, e.Serial, e.Slot.Folder(), e.Slot.Partition(), e.Options)
}

// Entries is the folder of the EFI system partition's root.
type Entries struct{ Root string }

func (b Entries) folder() string { return filepath.Join(b.Root, "loader", "entries") }

var (
	fileName = regexp.MustCompile(`^weir-([ab])(?:\+(\d+)(?:-\d+)?)?\.conf$`)
	title    = regexp.MustCompile(`(?m)^title Weir (.*) \(slot [ab]\)$`)
	serial   = regexp.MustCompile(`(?m)^version (\d+)$`)
	options  = regexp.MustCompile(`(?m)^options .*? weir\.slot=[ab] ?(.*)$`)
)

// List returns all entries, the greatest serial first. A file that is no entry of a slot is
// left out.
func (b Entries) List() ([]Entry, error) {
	files, err := os.ReadDir(b.folder())
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, f := range files {
		m := fileName.FindStringSubmatch(f.Name())
		if m == nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(b.folder(), f.Name()))
		if err != nil {
			return nil, err
		}
		e := Entry{Slot: Slot(m[1]), Trial: m[2] != "", file: f.Name()}
		e.Left, _ = strconv.Atoi(m[2])
		e.Version, e.Options = first(title, text), first(options, text)
		e.Serial, _ = strconv.Atoi(first(serial, text))
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(b.Serial, a.Serial) })
	return list, nil
}

func first(r *regexp.Regexp, text []byte) string {
	if m := r.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// Of returns the entry of a slot.
func (b Entries) Of(s Slot) (*Entry, error) {
	list, err := b.List()
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Slot == s {
			return &list[i], nil
		}
	}
	return nil, fmt.Errorf("slot %s: %w", s, os.ErrNotExist)
}

// Add writes an entry, with a serial above all others. The slot's kernel and initramfs must
// be on the disk: from the rename on, the loader boots them.
func (b Entries) Add(e Entry) error {
	list, err := b.List()
	if err != nil {
		return err
	}
	for _, other := range list {
		e.Serial = max(e.Serial, other.Serial+1)
	}
	name := fmt.Sprintf("weir-%s.conf", e.Slot)
	if e.Trial {
		name = fmt.Sprintf("weir-%s+%d.conf", e.Slot, e.Left)
	}
	// The loader reads names that end in .conf alone.
	temporary := filepath.Join(b.folder(), fmt.Sprintf("weir-%s.new", e.Slot))
	if err := os.WriteFile(temporary, []byte(e.text()), 0o600); err != nil {
		return err
	}
	if err := b.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(b.folder(), name)); err != nil {
		return err
	}
	return b.Sync()
}

// Remove removes the entries of a slot, so that the loader boots the other.
func (b Entries) Remove(s Slot) error {
	list, err := b.List()
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Slot == s {
			err = errors.Join(err, os.Remove(filepath.Join(b.folder(), e.file)))
		}
	}
	return errors.Join(err, b.Sync())
}

// Bless ends the trial of a slot.
func (b Entries) Bless(s Slot) error {
	e, err := b.Of(s)
	if err != nil || !e.Trial {
		return err
	}
	err = os.Rename(filepath.Join(b.folder(), e.file), filepath.Join(b.folder(), fmt.Sprintf("weir-%s.conf", s)))
	return errors.Join(err, b.Sync())
}

// Sync writes all of the partition to the disk: FAT has no journal, and renames are ordered
// by this alone.
func (b Entries) Sync() error {
	d, err := os.Open(b.Root)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}
