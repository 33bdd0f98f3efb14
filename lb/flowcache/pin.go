package flowcache

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	bpfpin "github.com/cilium/ebpf/pin"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/statefile"
)

// pinPrefix begins the names of pinned tables; pins of interfaces (lb/steer) begin with a
// number. The number of the network namespace follows, and newSuffix while a table is not yet
// whole.
const (
	pinPrefix = "flowtable-"
	newSuffix = "-new"
)

// pins is where the table of this network namespace is pinned.
type pins struct {
	path string
	lock *statefile.Claim // nil without
}

// openPins takes the place of the table, which another process of the network namespace may
// have: then the error is conntrack.ErrInUse.
func openPins(dir string) (*pins, error) {
	if err := checkBPFFS(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := statefile.Directory(dir); err != nil {
		return nil, err
	}
	ns, err := netns()
	if err != nil {
		return nil, err
	}
	p := &pins{path: filepath.Join(dir, pinPrefix+ns)}
	return p, p.take()
}

// checkBPFFS looks at the nearest ancestor of dir that exists.
func checkBPFFS(dir string) error {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil && uint32(st.Type) != unix.BPF_FS_MAGIC {
			return fmt.Errorf("%s is not in a BPF file system (mount -t bpf bpf /sys/fs/bpf)", dir)
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return err
		}
		dir = parent
	}
}

// take makes this process the owner of the pin.
func (p *pins) take() (err error) {
	name := fnv.New64a()
	_, _ = name.Write([]byte(p.path)) // it may be longer than a name
	p.lock, err = statefile.NewClaim(fmt.Sprintf("weir-flowtable-%x", name.Sum64()))
	if errors.Is(err, statefile.ErrClaimed) {
		err = conntrack.ErrInUse
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return nil
}

func (p *pins) close() error { return p.lock.Close() }

// open opens the map of the table that an earlier process has pinned, nil if there is none.
func (p *pins) open() (*ebpf.Map, error) {
	if err := removePin(p.path + newSuffix); err != nil {
		return nil, err
	}
	m, err := openTable(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return m, err
}

// load maps the table that an earlier process has pinned, if there is one.
func (p *pins) load() (array, error) {
	m, err := p.open()
	if err != nil || m == nil {
		return array{}, err
	}
	return mapTable(m, p.path)
}

// mapTable maps the table that is pinned at path. On an error the map is closed.
func mapTable(m *ebpf.Map, path string) (array, error) {
	a := array{m: m}
	if err := a.mmap(int64(m.MaxEntries()) * cell); err != nil {
		return array{}, err
	}
	if !conntrack.IsTable(a.b) {
		return array{}, errors.Join(fmt.Errorf("%s: the map is %w", path, ErrForeign), a.close())
	}
	return a, nil
}

// openTable opens a pinned map that may be a table.
func openTable(path string) (*ebpf.Map, error) {
	if err := statefile.Pin(path); err != nil {
		return nil, fmt.Errorf("open pinned table: %w", err)
	}
	pinned, err := bpfpin.Load(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned table: %w", err)
	}
	m, ok := pinned.(*ebpf.Map)
	if ok && m.Type() == ebpf.Array && m.KeySize() == 4 && m.ValueSize() == cell && m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		return m, nil
	}
	return nil, errors.Join(fmt.Errorf("%s: the BPF object is %w: move it out of this directory or remove it",
		path, ErrForeign), pinned.Close())
}

// replace pins table m in place of the last, in a single step.
func (p *pins) replace(m *ebpf.Map) error {
	if err := m.Pin(p.path + newSuffix); err != nil {
		return fmt.Errorf("pin the table: %w", err)
	}
	if err := os.Rename(p.path+newSuffix, p.path); err != nil {
		return fmt.Errorf("pin the table: %w", errors.Join(err, removePin(p.path+newSuffix)))
	}
	return nil
}

func (p *pins) remove() error { return removePin(p.path) }

// removePin removes the pin of a table, unless it is foreign.
func removePin(path string) error {
	m, err := openTable(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(path), m.Close())
}

// CleanupStale removes the tables that are pinned in dir of the calling thread's network
// namespace: the remains of a process that was killed. Tables of namespaces without a pinned link
// go too: those of namespaces that are gone, once lb/steer has removed their links. dir goes if
// nothing is left in it. A missing directory is not an error; a foreign object in a table's place
// is, and stays.
func CleanupStale(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	own, ownErr := netns()
	errs := []error{err, ownErr}
	linked := map[string]bool{}
	for _, e := range entries {
		if ns, _, isLink := strings.Cut(e.Name(), "-"); isLink && !e.IsDir() {
			linked[ns] = true
		}
	}
	for _, e := range entries {
		ns, isTable := strings.CutPrefix(strings.TrimSuffix(e.Name(), newSuffix), pinPrefix)
		if isTable && (ns == own || !linked[ns]) {
			errs = append(errs, removePin(filepath.Join(dir, e.Name())))
		}
	}
	_ = os.Remove(dir) // if it is empty
	return errors.Join(errs...)
}

// netns is the number of the calling thread's network namespace.
func netns() (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), &ns); err != nil {
		return "", fmt.Errorf("identify network namespace: %w", err)
	}
	return fmt.Sprint(ns.Ino), nil
}
