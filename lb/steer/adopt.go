package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/weirlb/weir/conntrack/statefile"
)

// The maps of the steering program are pinned beside the links, so that the next process
// serves by the program that is attached already, before the kernel has verified its own.
// Until Settle they have what the last process put there: established connections go on by
// it. Maps of another shape are not adopted, and neither are those of another layout.

// mapsLayout is the number of the meaning of the maps. Increase it when a program could
// misread what an earlier release has put there.
const mapsLayout = 2

// mapsPrefix begins the name of the directory of a network namespace's maps; newSuffix ends it
// while not all are there.
const (
	mapsPrefix = "maps-"
	newSuffix  = "-new"
)

// mapPins are the pinned maps of the calling thread's network namespace. dir is the directory
// of pins, "" for none.
type mapPins struct{ dir string }

// namespace is the directory of the maps of the calling thread's network namespace.
func (p mapPins) namespace() (string, error) {
	ns, err := netnsInode()
	if err != nil {
		return "", err
	}
	return filepath.Join(p.dir, fmt.Sprint(mapsPrefix, ns, "-", mapsLayout)), nil
}

// allowed reports whether there is a directory for pins, or may be, that no other user writes:
// maps of another user would bring packets to sockets of that user.
func (p mapPins) allowed() bool {
	return p.dir != "" && checkBPFFS(p.dir) == nil && statefile.Directory(p.dir) == nil
}

// open opens the pinned maps of an earlier process; nil if not all are there.
func (p mapPins) open(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	if !p.allowed() {
		return nil
	}
	dir, err := p.namespace()
	if err != nil || statefile.Directory(dir) != nil {
		return nil
	}
	found := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		path := filepath.Join(dir, pinName(name))
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err == nil && statefile.Pin(path) != nil {
			_, err = m.Close(), statefile.ErrUntrusted
		}
		if err != nil {
			closeMaps(found)
			return nil
		}
		found[name] = m
	}
	return found
}

// pinName is the name of a map's pin. BPF file systems allow no dots.
func pinName(name string) string { return strings.ReplaceAll(name, ".", "_") }

// pin pins the maps, by name, in place of those of an earlier process. Where it fails, the next
// process makes its own.
func (p mapPins) pin(shared map[string]*ebpf.Map) error {
	if !p.allowed() {
		return nil
	}
	dir, err := p.namespace()
	if err != nil {
		return err
	}
	if err := errors.Join(p.remove(), removeMapsOfGone(p.dir)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir+newSuffix, 0o700); err != nil {
		return fmt.Errorf("pin maps: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		if err := shared[name].Pin(filepath.Join(dir+newSuffix, pinName(name))); err != nil {
			return errors.Join(fmt.Errorf("pin map %s: %w", name, err), p.remove())
		}
	}
	if err := os.Rename(dir+newSuffix, dir); err != nil {
		return errors.Join(fmt.Errorf("pin maps: %w", err), p.remove())
	}
	return nil
}

// remove removes the pinned maps of the calling thread's network namespace, of every
// layout.
func (p mapPins) remove() error {
	if p.dir == "" {
		return nil
	}
	ns, err := netnsInode()
	if err != nil {
		return err
	}
	return removeMapPins(p.dir, fmt.Sprint(mapsPrefix, ns, "-"))
}

// removeMapPins removes the directories of maps whose names begin with prefix.
func removeMapPins(pinDir, prefix string) error {
	entries, err := os.ReadDir(pinDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			errs = append(errs, os.RemoveAll(filepath.Join(pinDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeMapsOfGone removes the maps of network namespaces without a pinned link: those of
// namespaces that are gone. Links are pinned before maps, and unpinned after them.
func removeMapsOfGone(pinDir string) error {
	entries, err := os.ReadDir(pinDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	linked := map[string]bool{}
	for _, e := range entries {
		if ns, _, _ := strings.Cut(e.Name(), "-"); !e.IsDir() {
			linked[ns] = true
		}
	}
	for _, e := range entries {
		rest, isMaps := strings.CutPrefix(e.Name(), mapsPrefix)
		if ns, _, _ := strings.Cut(rest, "-"); e.IsDir() && isMaps && !linked[ns] {
			errs = append(errs, os.RemoveAll(filepath.Join(pinDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
