package device

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface, as far as it matters for attaching to it.
type Link struct {
	Index int
	Name  string
	Kind  string // rtnetlink's name of it: "bond", "vlan"; "device" for hardware
	MAC   net.HardwareAddr
	MTU   int
	Up    bool // switched on, and not known to be without a carrier

	Enabled bool // switched on

	Parent int // the interface below this interface, 0: none
	Master int // the bond, bridge or team that it is a member of, 0: none

	VLAN     uint16 // of a VLAN interface: the number, from 1
	Protocol uint16 // and the tag's EtherType
	Bond     string // of a bond: the mode
	Active   bool   // of a bond's member: the bond uses it now
}

// Links lists the interfaces of the calling thread's network namespace.
func Links() ([]Link, error) {
	list, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links := make([]Link, 0, len(list))
	for _, l := range list {
		links = append(links, newLink(l))
	}
	return links, nil
}

func newLink(l netlink.Link) Link {
	a := l.Attrs()
	n := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), MAC: slices.Clone(a.HardwareAddr), MTU: a.MTU,
		Up:      a.RawFlags&unix.IFF_UP != 0 && a.OperState != netlink.OperDown && a.OperState != netlink.OperLowerLayerDown,
		Enabled: a.RawFlags&unix.IFF_UP != 0,
		Parent:  a.ParentIndex, Master: a.MasterIndex,
	}
	switch l := l.(type) {
	case *netlink.Veth:
		n.Parent = 0 // the peer's number, perhaps in another namespace
	case *netlink.Vlan:
		n.VLAN, n.Protocol = uint16(l.VlanId), uint16(l.VlanProtocol)
		if n.Protocol == 0 {
			n.Protocol = unix.ETH_P_8021Q
		}
	case *netlink.Bond:
		n.Bond = l.Mode.String()
	}
	if m, ok := a.Slave.(*netlink.BondSlave); ok {
		n.Active = m.State == netlink.BondStateActive && m.MiiStatus == netlink.BondLinkUp
	}
	return n
}

// Override is a link that a test declares: its fields replace the kernel's data of the
// interface of that name, or add to it, while that exists.
type Override struct {
	Name     string
	Kind     string
	Parent   string
	Master   string
	VLAN     uint16
	Protocol uint16
	Bond     string
	Active   bool
}

// Apply puts overrides, in JSON, over links: kernels without bonding or VLAN
// interfaces are thus shown some.
func Apply(links []Link, overrides []byte) error {
	var list []Override
	if err := json.Unmarshal(overrides, &list); err != nil {
		return fmt.Errorf("declared links: %w", err)
	}
	index := func(name string) int {
		for i := range links {
			if links[i].Name == name {
				return links[i].Index
			}
		}
		return 0
	}
	for _, o := range list {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Name == o.Name })
		if i < 0 {
			continue // it is gone
		}
		l := &links[i]
		l.Kind, l.VLAN, l.Protocol, l.Bond, l.Active = o.Kind, o.VLAN, o.Protocol, o.Bond, o.Active
		l.Parent, l.Master = index(o.Parent), index(o.Master)
	}
	return nil
}
