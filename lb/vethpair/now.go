package vethpair

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Now is the pair as the kernel has it, found by the indices of its ends: names may change. The
// error names an end that is gone from the calling thread's network namespace.
func (p Pair) Now() (now Pair, err error) {
	for i, l := range p {
		if now[i], err = netlink.LinkByIndex(l.Attrs().Index); err != nil {
			return Pair{}, fmt.Errorf("the veth pair of Weir's own has lost %s: %w", l.Attrs().Name, err)
		}
	}
	return now, nil
}

// Differences lists by which a pair differs from a pair after SetUp with an MTU, or with a
// smaller MTU.
func (p Pair) Differences(mtu int) (list []string) {
	for _, l := range p {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_UP == 0 {
			list = append(list, a.Name+" is down")
		}
		if a.MTU < mtu {
			list = append(list, fmt.Sprintf("%s has an MTU of %d, less than %d", a.Name, a.MTU, mtu))
		}
	}
	return list
}

// Dropped is the number of packets that the first end has lost towards the second.
func (p Pair) Dropped() uint64 {
	if s := p[0].Attrs().Statistics; s != nil {
		return s.TxDropped
	}
	return 0
}
