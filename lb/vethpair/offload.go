package vethpair

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// FragmentLists is the offload by which a device sends a packet that is a list of packets, as
// generic receive offload makes of those of a tunnel. It must be off at an end whose peer has an
// XDP program: before Linux 7.3, veth takes such a list for the buffers of the packet,
// of which there are none, and the copy into an AF_XDP socket reads what was in the memory
// before. The kernel panicked at that.
const FragmentLists = "tx-scatter-gather-fraglist"

// SetOffloads gives an interface offloads, by the names of `ethtool -k` (the kernel's string
// set). Those that it has already are left alone.
func SetOffloads(name string, want map[string]bool) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("%s: offloads: %w", name, err)
	}
	defer tool.Close()
	if err := tool.Change(name, want); err != nil {
		return fmt.Errorf("%s: set offloads %v: %w", name, want, err)
	}
	return nil
}

// HasOffloads reports whether SetOffloads would leave an interface as it is.
func HasOffloads(name string, want map[string]bool) (bool, error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return false, fmt.Errorf("%s: offloads: %w", name, err)
	}
	defer tool.Close()
	have, err := tool.Features(name)
	if err != nil {
		return false, fmt.Errorf("%s: offloads: %w", name, err)
	}
	for feature, on := range want {
		if have[feature] != on {
			return false, nil
		}
	}
	return true, nil
}
