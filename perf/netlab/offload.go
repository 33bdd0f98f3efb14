package netlab

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// MaxMerged is the kernel's limit of a packet that generic receive offload merges, in
// bytes.
const MaxMerged = 65536

// Offloads says which of an interface's features are on, by the names that
// `ethtool -k` of the kernel's string set has.
func (n *Namespace) Offloads(ifname string) (map[string]bool, error) {
	var on map[string]bool
	err := n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		on, err = e.Features(ifname)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("offloads of %s/%s: %w", n.name, ifname, err)
	}
	return on, nil
}

// LimitMerging limits the IPv4 packets that generic receive offload makes, in bytes. With 1
// it merges nothing, and the NAPI of the interface stays at work, which a veth has only
// while it may merge.
func (n *Namespace) LimitMerging(ifname string, bytes int) error {
	l, err := n.link(ifname)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetGROIPv4MaxSize(l, bytes); err != nil {
		return fmt.Errorf("limit merging at %s/%s: %w", n.name, ifname, err)
	}
	return nil
}
