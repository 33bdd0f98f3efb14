package steer

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// kernelMaps are the maps that the programs share, of an earlier process or new.
type kernelMaps struct {
	config   Config
	steer    steerMaps
	data     *ebpf.Map // until
	until    *ebpf.Variable
	denies   bool       // the kernel knows maps of deny lists
	rangesMu sync.Mutex // of changes of an entry of ranges
	adopted  bool       // they are those of an earlier process
	own      ownKeys
}

// openMaps adopts the maps that pins has, or makes them.
func openMaps(cfg Config, pins mapPins) (*kernelMaps, error) {
	m := &kernelMaps{config: cfg, denies: knowsInnerMaps()}
	spec, err := m.spec()
	if err != nil {
		return nil, err
	}
	var all struct {
		steerMaps
		steerVariables
		Data *ebpf.Map `ebpf:".bss"`
	}
	last := pins.open(spec)
	defer closeMaps(last)
	err = spec.LoadAndAssign(&all, &ebpf.CollectionOptions{MapReplacements: last})
	if last != nil && err != nil { // of another shape
		last = nil
		err = spec.LoadAndAssign(&all, nil)
	}
	if err != nil {
		return nil, err
	}
	m.steer, m.data, m.until = all.steerMaps, all.Data, all.Until
	if last != nil {
		m.adopted, m.own.put = true, map[any]bool{}
	}
	return m, nil
}

// spec is the spec of the steering program, with the sizes of the maps.
func (m *kernelMaps) spec() (*ebpf.CollectionSpec, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	spec.Maps[steerMapFrontends].MaxEntries = uint32(m.config.MaxFrontends)
	spec.Maps[steerMapRanges].MaxEntries = MaxRanged
	spec.Maps[steerMapSnat].MaxEntries = uint32(m.config.MaxSNAT)
	spec.Maps[steerMapVips].MaxEntries = uint32(m.config.MaxFrontends)
	m.setDenySpec(spec.Maps[steerMapDenySets])
	return spec, nil
}

// byName are the maps by their names in the programs.
func (m *kernelMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		steerMapFragmented: m.steer.Fragmented, steerMapFrontends: m.steer.Frontends,
		steerMapInterfaces: m.steer.Interfaces, steerMapPacketCounters: m.steer.PacketCounters,
		steerMapRanges: m.steer.Ranges, steerMapAnyRange: m.steer.AnyRange,
		steerMapSnat: m.steer.Snat, steerMapSockets: m.steer.Sockets,
		steerMapVips: m.steer.Vips, steerMapVlans: m.steer.Vlans,
		steerMapHeldQueues: m.steer.HeldQueues, steerMapDenySets: m.steer.DenySets, ".bss": m.data,
	}
}

func (m *kernelMaps) close() error { return errors.Join(m.data.Close(), m.steer.Close()) }

func closeMaps(list map[string]*ebpf.Map) {
	for _, m := range list {
		_ = m.Close()
	}
}

// prune removes from adopted maps the entries of the earlier process, the first time that it is
// called; then it reports true.
func (m *kernelMaps) prune() (first bool, err error) {
	put := m.own.end()
	if put == nil {
		return false, nil
	}
	return true, errors.Join(
		prune[steerFrontendKey](m.steer.Frontends, put),
		m.pruneRanges(put),
		prune[steerVlanKey](m.steer.Vlans, put),
		prune[uint32](m.steer.Interfaces, put),
		pruneAs(m.steer.Snat, put, func(k steerAddressKey) any { return snatKey{k} }),
		pruneAs(m.steer.Vips, put, func(k steerAddressKey) any { return vipKey{k} }),
	)
}

// ownKeys are the keys of adopted maps that this process has put.
type ownKeys struct {
	mu  sync.Mutex
	put map[any]bool // guarded by mu: nil when all keys are this process's
}

// note notes a key that is this process's own.
func (o *ownKeys) note(key any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.put != nil {
		o.put[key] = true
	}
}

// lacks reports whether a key of an adopted map is not this process's own.
func (o *ownKeys) lacks(key any) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.put != nil && !o.put[key]
}

// end returns the keys, and nil from then on.
func (o *ownKeys) end() map[any]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	put := o.put
	o.put = nil
	return put
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

func loadErrorHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root)"
	}
	return ""
}
