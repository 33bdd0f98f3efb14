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
	"sync"

	"github.com/cilium/ebpf"

	"github.com/weirlb/weir/conntrack/statefile"
)

// The maps of the steering program are pinned beside the links, so that the next process
// serves by the program that is attached already, before the kernel has verified its own.
// Until Settle they have what the last process put there: established connections go on by
// it. Maps of another shape are not adopted, and neither are those of another layout.

// mapsLayout is the number of the meaning of the maps. Increase it when a program could
// misread what an earlier release has put there.
const mapsLayout = 1

// mapsPrefix begins the name of the directory of a network namespace's maps; newSuffix ends it
// while not all are there.
const (
	mapsPrefix = "maps-"
	newSuffix  = "-new"
)

// adopted is what a Program knows of the maps of an earlier process.
type adopted struct {
	maps bool // the maps are those of an earlier process

	mu  sync.Mutex
	put map[any]bool // guarded by mu: keys that this process has put, nil when it is all
}

// note notes a key that is this process's own.
func (a *adopted) note(key any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.put != nil {
		a.put[key] = true
	}
}

// Adopted reports whether the maps are those of an earlier process: its program, if it is
// still attached, serves the sockets of this one.
func (p *Program) Adopted() bool { return p.adopted.maps }

// mapsDir is the directory of the maps of the calling thread's network namespace.
func (p *Program) mapsDir() (string, error) {
	ns, err := netnsInode()
	if err != nil {
		return "", err
	}
	return filepath.Join(p.config.PinDir, fmt.Sprint(mapsPrefix, ns, "-", mapsLayout)), nil
}

// mayPin reports whether there is a directory for pins, or may be, that no other user writes:
// maps of another user would bring packets to sockets of that user.
func (p *Program) mayPin() bool {
	dir := p.config.PinDir
	return dir != "" && checkBPFFS(dir) == nil && statefile.Directory(dir) == nil
}

// adopt opens the pinned maps of an earlier process; nil if not all are there.
func (p *Program) adopt(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	if !p.mayPin() {
		return nil
	}
	dir, err := p.mapsDir()
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

// takeMaps learns what the maps of an earlier process say of its queues, and counts anew.
func (p *Program) takeMaps() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]steerCounters, cpus)
	for slot := range p.queues {
		err := errors.Join(
			p.maps.HeldQueues.Lookup(uint32(slot), &p.queues[slot]),
			p.maps.PacketCounters.Put(uint32(slot), zero))
		if err != nil {
			return fmt.Errorf("maps of the last process: %w", err)
		}
	}
	return nil
}

// pinName is the name of a map's pin. BPF file systems allow no dots.
func pinName(name string) string { return strings.ReplaceAll(name, ".", "_") }

func closeMaps(list map[string]*ebpf.Map) {
	for _, m := range list {
		_ = m.Close()
	}
}

// Settle removes from adopted maps what this process has not put there, and pins the maps for
// the next process. It is called when all that is to be served is there, and attached.
func (p *Program) Settle() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.adopted.maps {
		return p.pinMaps()
	}
	p.adopted.mu.Lock()
	put := p.adopted.put
	p.adopted.put = nil
	p.adopted.mu.Unlock()
	if put == nil {
		return nil
	}
	errs := []error{
		prune[steerFrontendKey](p.maps.Frontends, put),
		prune[steerVlanKey](p.maps.Vlans, put),
		prune[uint32](p.maps.Interfaces, put),
		pruneAs(p.maps.Snat, put, func(k steerAddressKey) any { return snatKey{k} }),
		pruneAs(p.maps.Vips, put, func(k steerAddressKey) any { return vipKey{k} }),
	}
	for slot := range MaxSlots {
		if slot != guardSlot && p.queues[slot] != p.own[slot] {
			p.queues[slot] = p.own[slot]
			errs = append(errs, p.setHeldQueues(slot))
		}
	}
	return errors.Join(errs...)
}

// snatKey and vipKey tell keys of maps apart that have the same type.
type (
	snatKey struct{ steerAddressKey }
	vipKey  struct{ steerAddressKey }
)

func prune[K comparable](m *ebpf.Map, keep map[any]bool) error {
	return pruneAs(m, keep, func(k K) any { return k })
}

// pruneAs deletes the entries of a map that are not in keep.
func pruneAs[K comparable](m *ebpf.Map, keep map[any]bool, as func(K) any) error {
	var (
		key    K
		value  []byte
		remove []K
	)
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		if !keep[as(key)] {
			remove = append(remove, key)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("entries of the last process in %s: %w", m, err)
	}
	for i := range remove {
		if err := m.Delete(remove[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("entries of the last process in %s: %w", m, err)
		}
	}
	return nil
}

// pinMaps pins the maps in place of those of an earlier process. Where it fails, the next
// process makes its own. The caller holds mu.
func (p *Program) pinMaps() error {
	if !p.mayPin() {
		return nil
	}
	dir, err := p.mapsDir()
	if err != nil {
		return err
	}
	if err := errors.Join(p.removeMaps(), removeMapsOfGone(p.config.PinDir)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir+newSuffix, 0o700); err != nil {
		return fmt.Errorf("pin maps: %w", err)
	}
	shared := p.sharedMaps()
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		if err := shared[name].Pin(filepath.Join(dir+newSuffix, pinName(name))); err != nil {
			return errors.Join(fmt.Errorf("pin map %s: %w", name, err), p.removeMaps())
		}
	}
	if err := os.Rename(dir+newSuffix, dir); err != nil {
		return errors.Join(fmt.Errorf("pin maps: %w", err), p.removeMaps())
	}
	return nil
}

// removeMaps removes the pinned maps of the calling thread's network namespace, of every
// layout.
func (p *Program) removeMaps() error {
	if p.config.PinDir == "" {
		return nil
	}
	ns, err := netnsInode()
	if err != nil {
		return err
	}
	return removeMapPins(p.config.PinDir, fmt.Sprint(mapsPrefix, ns, "-"))
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
