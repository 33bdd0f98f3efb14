package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// MaxRanges is how many ranges of ports an address and protocol may have: MAX_RANGES.
	MaxRanges = len(steerFrontendRanges{}.Range)
	// MaxRanged is how many addresses and protocols may have ranges.
	MaxRanged = 1024
)

// rangeKey is a range of ports, for ownKeys.
type rangeKey struct {
	steerFrontendKey // with port 0
	first, last      uint16
}

func makeRangeKey(addr netip.AddrPort, last uint16, proto uint8) (rangeKey, error) {
	k, err := frontendKey(addr, proto)
	if err == nil && last <= addr.Port() {
		err = fmt.Errorf("frontend %s: %d is not behind the first port", addr, last)
	}
	k.Port = 0
	return rangeKey{k, addr.Port(), last}, err
}

// in is the place of the range in a list, -1 if it has none.
func (k *rangeKey) in(list *steerFrontendRanges) int {
	return slices.IndexFunc(list.Range[:], func(r steerFrontendRange) bool { return r.First == k.first && r.Last == k.last })
}

// changeRanges changes the ranges of an address and protocol; without a range the entry goes.
func (m *kernelMaps) changeRanges(k steerFrontendKey, change func(*steerFrontendRanges) error) error {
	m.rangesMu.Lock()
	defer m.rangesMu.Unlock()
	var list steerFrontendRanges
	if err := m.steer.Ranges.Lookup(k, &list); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if err := change(&list); err != nil {
		return err
	}
	if list == (steerFrontendRanges{}) {
		if err := m.steer.Ranges.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		return nil
	}
	err := m.steer.Ranges.Put(k, list)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: %d addresses with ranges of ports is the limit", ErrFull, m.steer.Ranges.MaxEntries())
	}
	return err
}

// pruneRanges removes the ranges of the earlier process from an adopted map.
func (m *kernelMaps) pruneRanges(put map[any]bool) error {
	var (
		k    steerFrontendKey
		list steerFrontendRanges
		keys []steerFrontendKey
	)
	entries := m.steer.Ranges.Iterate()
	for entries.Next(&k, &list) {
		keys = append(keys, k)
	}
	errs := []error{entries.Err()}
	for _, k := range keys {
		errs = append(errs, m.changeRanges(k, func(list *steerFrontendRanges) error {
			for i, r := range list.Range {
				if !put[rangeKey{k, r.First, r.Last}] {
					list.Range[i] = steerFrontendRange{}
				}
			}
			return nil
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ranges of ports of the last process: %w", err)
	}
	return nil
}
