package steer

import (
	"fmt"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/xsk"
)

// Queues describes the receive queues of an interface.
type Queues struct {
	// Rx is the number that the interface uses now. Each needs an AF_XDP socket, or the
	// queue's packets go to the kernel.
	Rx int
	// Bound are the queues that AF_XDP sockets hold already, of whatever
	// process. Empty where the kernel does not say (before 6.15).
	Bound []int
	// Source is where Rx comes from: "netdev", "ethtool" or "rtnetlink". The last is the
	// number allocated, which may be more than are in use.
	Source string
}

// RxQueues asks for the receive queues of an interface of the calling thread's
// network namespace, from the best source that answers.
func RxQueues(ifindex int) (Queues, error) {
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return Queues{}, fmt.Errorf("receive queues of interface %d: %w", ifindex, err)
	}
	// The netdev family lists the queues of an interface only while it is up.
	if list, err := xsk.DeviceQueues(ifindex); err == nil && len(list) > 0 {
		q := Queues{Rx: len(list), Source: "netdev"}
		for _, rx := range list {
			if rx.Bound {
				q.Bound = append(q.Bound, rx.ID)
			}
		}
		return q, nil
	}
	if n := rxChannels(dev.Attrs().Name); n > 0 {
		return Queues{Rx: n, Source: "ethtool"}, nil
	}
	if n := dev.Attrs().NumRxQueues; n > 0 {
		return Queues{Rx: n, Source: "rtnetlink"}, nil
	}
	return Queues{}, fmt.Errorf("receive queues of %s: the kernel does not say", dev.Attrs().Name)
}

// rxChannels returns 0 for drivers without channels.
func rxChannels(name string) int {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return 0
	}
	defer tool.Close()
	c, err := tool.GetChannels(name)
	if err != nil {
		return 0
	}
	return int(c.RxCount + c.CombinedCount)
}

// DriverOf is the name of the driver of an interface of the calling thread's network
// namespace, "" if the kernel does not say.
func DriverOf(name string) string {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return ""
	}
	defer tool.Close()
	driver, err := tool.DriverName(name)
	if err != nil {
		return ""
	}
	return driver
}
