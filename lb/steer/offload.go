package steer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/safchain/ethtool"
)

// Offload is a setting of a NIC that changes packets before XDP sees them in a
// way that a load balancer cannot undo.
type Offload struct {
	Feature string // as the kernel names it
	Ethtool string // as `ethtool -K` names it
	Why     string
	// GenericOnly: it does harm only where the program runs in generic mode,
	// which comes after it.
	GenericOnly bool
	// TCX: it does harm to hook TCX too, which takes what GRO merges as it is.
	TCX bool
}

// Offloads lists the offloads that must be off on an interface that Weir is attached to. On
// a veth the settings of the peer's transmit side count instead: its tag
// insertion (txvlan), and for generic mode its tso and gso: generic XDP sees the packets of
// the peer's stack before segmentation, 64 KB at a time. Native
// XDP on a veth switches segmentation offload off at the peer by itself.
var Offloads = []Offload{
	{Feature: "rx-lro", Ethtool: "lro", Why: "merges packets of a connection into ones larger than the MTU", TCX: true},
	{Feature: "rx-gro-hw", Ethtool: "rx-gro-hw", Why: "merges packets of a connection into ones larger than the MTU"},
	{Feature: "rx-vlan-hw-parse", Ethtool: "rxvlan", Why: "takes the VLAN tag off, so that a tagged packet looks untagged"},
	{Feature: "rx-gro", Ethtool: "gro", Why: "merges packets of a connection before generic XDP sees them", GenericOnly: true},
}

// Conflict is an offload that is on and must be off.
type Conflict struct {
	Offload
	Fixed bool // the driver does not let it be switched off
}

// Command is the command that resolves the conflict.
func (c Conflict) Command(iface string) string {
	return fmt.Sprintf("ethtool -K %s %s off", iface, c.Ethtool)
}

// OffloadConflicts lists the offloads that are on and must be off before the program
// is attached to a hook of an interface, to XDP in mode (Auto counts as Native: ask again for
// Generic if that was granted). The interface is in the calling thread's network namespace.
func OffloadConflicts(iface string, hook Hook, mode Mode) ([]Conflict, error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", iface, err)
	}
	defer tool.Close()
	state, err := tool.FeaturesWithState(iface)
	if err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", iface, err)
	}
	return conflictsOf(state, hook, mode), nil
}

// conflictsOf is OffloadConflicts of an interface with these features.
func conflictsOf(state map[string]ethtool.FeatureState, hook Hook, mode Mode) (list []Conflict) {
	for _, o := range Offloads {
		harms := o.TCX
		if hook == XDP {
			harms = mode == Generic || !o.GenericOnly
		}
		if s := state[o.Feature]; s.Active && harms {
			list = append(list, Conflict{Offload: o, Fixed: s.NeverChanged || !s.Available})
		}
	}
	return list
}

// DisableOffloads switches the offloads of conflicts off, and returns the old settings, for
// RestoreOffloads. If an offload stays on, the error says so, and the others are restored.
func DisableOffloads(iface string, conflicts []Conflict) (restore map[string]bool, err error) {
	if len(conflicts) == 0 {
		return nil, nil
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("switch offloads of %s off: %w", iface, err)
	}
	defer tool.Close()
	want := make(map[string]bool, len(conflicts))
	restore = make(map[string]bool, len(conflicts))
	for _, c := range conflicts {
		want[c.Feature], restore[c.Feature] = false, true
	}
	// The kernel may refuse a part without an error: the state counts.
	changeErr := tool.Change(iface, want)
	state, err := tool.Features(iface)
	if err != nil {
		return restore, fmt.Errorf("offloads of %s: %w", iface, err)
	}
	var errs []error
	for _, c := range conflicts {
		if state[c.Feature] {
			errs = append(errs, fmt.Errorf("offload %s of %s cannot be switched off: it %s", c.Ethtool, iface, c.Why))
			delete(restore, c.Feature)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, changeErr, RestoreOffloads(iface, restore))...)
	}
	return restore, nil
}

// RestoreOffloads reverts DisableOffloads.
func RestoreOffloads(iface string, restore map[string]bool) error {
	if len(restore) == 0 {
		return nil
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("put offloads of %s back: %w", iface, err)
	}
	defer tool.Close()
	if err := tool.Change(iface, restore); err != nil {
		return fmt.Errorf("put offloads %v of %s back: %w", slices.Sorted(maps.Keys(restore)), iface, err)
	}
	return nil
}
