package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Port is a device, with or without a tag, that carries packets of an interface.
type Port struct {
	Interface int // the interface's index, which routes name
	Device    int // the index of the device whose queues are to be bound
	VLAN      uint16
	Protocol  uint16 // of the tag; 0 without VLAN
	Member    bool   // the device is a member of a bond
	Active    bool   // packets may be sent by it now
}

// Resolve returns the ports by which an interface is attached: a device by itself, a bond
// by the members, a VLAN interface by those of the parent and a tag. Everything else that
// lies on other interfaces is refused, and the error names the interface to attach instead.
// If only some members of a bond can be attached, it returns these too.
func Resolve(name string, links []Link) ([]Port, error) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("interface %s: no such interface", name)
	}
	l := &links[i]
	if len(l.MAC) != 6 {
		return nil, fmt.Errorf("interface %s: not an Ethernet interface", name)
	}
	if m := byIndex(links, l.Master); m != nil && (m.Kind == "bond" || m.Kind == "team") {
		return nil, fmt.Errorf("interface %s: it is a member of %s %s: attach that instead", name, m.Kind, m.Name)
	}
	ports, err := portsBelow(l, links)
	for i := range ports {
		ports[i].Interface = l.Index
		ports[i].Active = ports[i].Active && l.Up
	}
	if err != nil {
		err = fmt.Errorf("interface %s: %w", name, err)
	}
	return ports, err
}

// portsBelow finds the devices that carry a link's packets.
func portsBelow(l *Link, links []Link) ([]Port, error) {
	switch l.Kind {
	case "device", "veth", "netdevsim":
		return []Port{{Device: l.Index, Active: l.Up}}, nil
	case "bond":
		return bondPorts(l, links)
	case "vlan":
		return vlanPorts(l, links)
	}
	return nil, unsupportedError(l, links)
}

// bondModes are the modes whose members each send and receive frames with the
// bond's own address. The others would need Weir to do the bond's work.
var bondModes = []string{"balance-rr", "active-backup", "balance-xor", "802.3ad"}

func bondPorts(bond *Link, links []Link) ([]Port, error) {
	if !slices.Contains(bondModes, bond.Bond) {
		return nil, fmt.Errorf("bond mode %s: Weir can send for bonds of mode %s: change it, or attach an interface outside of the bond",
			bond.Bond, strings.Join(bondModes, ", "))
	}
	var ports []Port
	var errs []error
	for i := range links {
		m := &links[i]
		if m.Master != bond.Index {
			continue
		}
		if m.Kind != "device" && m.Kind != "veth" && m.Kind != "netdevsim" {
			errs = append(errs, fmt.Errorf("its member %s is a %s: only devices can carry a bond that is attached", m.Name, m.Kind))
			continue
		}
		ports = append(ports, Port{Device: m.Index, Member: true, Active: m.Up && m.Active})
	}
	if len(ports) == 0 && errs == nil {
		return nil, errors.New("a bond without members: give it one first")
	}
	slices.SortFunc(ports, func(a, b Port) int { return a.Device - b.Device })
	return ports, errors.Join(errs...)
}

func vlanPorts(vlan *Link, links []Link) ([]Port, error) {
	parent := byIndex(links, vlan.Parent)
	switch {
	case parent == nil:
		return nil, errors.New("its parent is in another network namespace: run Weir there and attach it there")
	case parent.Kind == "vlan":
		return nil, fmt.Errorf("a VLAN in VLAN %s: Weir puts on one tag: attach a VLAN interface upon the device", parent.Name)
	case vlan.VLAN == 0 || vlan.VLAN > 4094:
		return nil, fmt.Errorf("VLAN %d: there are 1 to 4094", vlan.VLAN)
	}
	ports, err := portsBelow(parent, links)
	if err != nil {
		err = fmt.Errorf("it lies upon %s: %w", parent.Name, err)
	}
	protocol := vlan.Protocol
	if protocol == 0 {
		protocol = unix.ETH_P_8021Q
	}
	for i := range ports {
		ports[i].VLAN, ports[i].Protocol = vlan.VLAN, protocol
	}
	return ports, err
}

// unsupportedError says why a kind of interface cannot be attached, and names the interface
// to attach instead.
func unsupportedError(l *Link, links []Link) error {
	switch l.Kind {
	case "bridge":
		return fmt.Errorf("a bridge has no receive queues: attach the port by which clients' packets arrive%s, and move the bridge's addresses to it",
			joinNames(enslavedTo(l, links)))
	case "team":
		return fmt.Errorf("a team is not followed: make it a bond and attach that, or take one of its ports%s out of it and attach that", joinNames(enslavedTo(l, links)))
	case "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec":
		if parent := byIndex(links, l.Parent); parent != nil {
			return fmt.Errorf("a %s has no receive queues: attach %s, upon which it lies, and give that the addresses", l.Kind, parent.Name)
		}
		return fmt.Errorf("a %s has no receive queues: attach the device upon which it lies, and give that the addresses", l.Kind)
	case "vxlan", "geneve", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "bareudp", "wireguard", "xfrm":
		return fmt.Errorf("a tunnel (%s) has no receive queues: attach the device that carries it; endpoints beyond the tunnel are reached without attaching it", l.Kind)
	case "dummy", "ifb", "nlmon", "vrf", "loopback":
		return fmt.Errorf("no client's packet arrives by a %s: attach the device by which they do", l.Kind)
	case "tun", "tuntap":
		return errors.New("behind a tun or tap there is a program and no network: attach the device by which clients' packets arrive")
	}
	return fmt.Errorf("interfaces of kind %s cannot be attached: attach the device by which clients' packets arrive", l.Kind)
}

func enslavedTo(master *Link, links []Link) (names []string) {
	for i := range links {
		if links[i].Master == master.Index {
			names = append(names, links[i].Name)
		}
	}
	return names
}

func joinNames(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func byIndex(links []Link, index int) *Link {
	for i := range links {
		if index != 0 && links[i].Index == index {
			return &links[i]
		}
	}
	return nil
}
