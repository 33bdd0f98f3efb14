package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Interface is a network interface to attach to, or some that a selector finds: an entry
// has exactly one of name, cidr and defaultRoute. The selectors cidr and defaultRoute are
// for nodes with different names of interfaces. They are resolved at the start; addresses
// and routes that change later attach no other interface before the next start. A process
// that starts again by itself, after a stall, keeps its own. They leave
// out loopback and dummy interfaces, such as kube-ipvs0, and those of Weir. An entry that
// finds no interface is an error. Two entries may find the same interface if their mode,
// txChecksum and hook are the same.
type Interface struct {
	// Name is the name of a NIC, a bond, a VLAN interface or a veth.
	Name string `json:"name,omitempty"`
	// CIDR is a prefix such as 192.0.2.0/24: each interface with an address within it. Give
	// the narrow prefix of the node's own network, never the pod network: interfaces of pods
	// vanish with them, and an attached interface that vanishes fails the health checks of
	// the node. Left out are a veth whose addresses within the prefix are all host addresses
	// (/32, /128), as many network plugins give to the node's end of a pod; and, where
	// another interface is found, those of kinds that cannot be attached, such as bridges
	// and tunnels, and those that are administratively down. Link-local addresses match no
	// prefix.
	CIDR string `json:"cidr,omitempty"`
	// DefaultRoute is true for the interfaces of the default routes of IPv4 and IPv6 in
	// the main routing table, of any metric.
	DefaultRoute bool `json:"defaultRoute,omitempty"`
	// Mode is auto, zerocopy, native or generic. With auto Weir uses the best
	// mode that the driver supports, and reports it. With another mode the start
	// fails if the driver does not support it.
	Mode string `json:"mode"`
	// TxChecksum selects how partial checksums of outgoing packets are
	// completed: metadata leaves it to the kernel or the NIC (TX metadata),
	// software to Weir, which then reads the whole packet. Packets from pods and
	// from listeners of the node have partial checksums. auto is metadata if that
	// is known to work: on veth, and with zero copy if the driver reports it. In
	// copy mode some drivers (virtio_net before Linux 6.18) ignore metadata and
	// send wrong checksums. With metadata the start fails if it is not supported.
	TxChecksum string `json:"txChecksum"`
	// Hook selects where Weir takes the packets of the interface: xdp, or tcx,
	// which needs flowCache.mode auto and Linux 6.6. With tcx the interface has no
	// XDP program: it keeps its offloads, and the kernel forwards packets of
	// established flows in pieces of up to 64 KB. Packets of other flows reach Weir
	// by a veth pair, at a higher cost than with xdp. tcx excludes the modes
	// zerocopy and generic. auto is tcx for veth, netkit, tun and virtio_net where
	// it can be had, and else xdp; weir status gives the reason.
	Hook string `json:"hook"`
}

// Selection is an entry of interfaces that is not a name, with the interfaces that it stands
// for.
type Selection struct {
	Path  string // of the entry, as in interfaces[1]
	By    string // "cidr 192.0.2.0/24" or "defaultRoute"
	Names []string
}

// Attached are the interfaces to attach to, each by its name and once. Before CheckHost
// they are the entries with a name.
func (c *Configuration) Attached() []Interface {
	if c.resolved {
		return c.attached
	}
	return slices.DeleteFunc(slices.Clone(c.Interfaces), func(f Interface) bool { return f.Name == "" })
}

// AttachedNames are their names.
func (c *Configuration) AttachedNames() (names []string) {
	for _, in := range c.Attached() {
		names = append(names, in.Name)
	}
	return names
}

// Selections are the entries that CheckHost has resolved.
func (c *Configuration) Selections() []Selection { return c.selections }

func validateInterfaces(c *Configuration, r *report) {
	if len(c.Interfaces) == 0 {
		r.addf("interfaces", "must name at least one (or --interface)")
	}
	seen := map[Interface]bool{}
	for i, f := range c.Interfaces {
		path := fmt.Sprintf("interfaces[%d]", i)
		f.validateSelector(r, path)
		selector := Interface{Name: f.Name, CIDR: f.CIDR, DefaultRoute: f.DefaultRoute}
		if seen[selector] && selector != (Interface{}) {
			r.addf(path+"."+f.selectors()[0], "%s is listed twice", f.selector())
		}
		seen[selector] = true
		if !slices.Contains(AttachModes, f.Mode) {
			r.addf(path+".mode", "must be %s, is %q", either(AttachModes), f.Mode)
		}
		if !slices.Contains(txChecksums, f.TxChecksum) {
			r.addf(path+".txChecksum", "must be %s, is %q", either(txChecksums), f.TxChecksum)
		}
	}
}

func (f *Interface) validateSelector(r *report, path string) {
	switch given := f.selectors(); {
	case len(given) == 0:
		r.addf(path+".name", "must be given (or cidr, or defaultRoute: true)")
	case len(given) > 1:
		r.addf(path, "has %s: give exactly one of name, cidr and defaultRoute", strings.Join(given, " and "))
	case f.CIDR != "":
		if p, ok := checkPrefix(r, path+".cidr", f.CIDR); ok && p.Addr().IsLinkLocalUnicast() {
			r.addf(path+".cidr", "%s is link-local: such addresses are on any interface and tell nothing of its network: give the prefix of the network", p)
		}
	case f.Name == "":
	case len(f.Name) > maxInterfaceName || f.Name == "." || f.Name == ".." || strings.ContainsAny(f.Name, "/: \t\n\r\v\f\x00"):
		r.addf(path+".name", "%q cannot be the name of an interface", f.Name)
	case f.Name == "lo":
		r.addf(path+".name", "lo cannot be attached: XDP does not see the node's own traffic there as clients do")
	}
}

// selectors are the fields that say which interfaces are meant, as far as they are given.
func (f *Interface) selectors() (given []string) {
	if f.Name != "" {
		given = append(given, "name")
	}
	if f.CIDR != "" {
		given = append(given, "cidr")
	}
	if f.DefaultRoute {
		given = append(given, "defaultRoute")
	}
	return given
}

// selector says which interfaces are meant.
func (f *Interface) selector() string {
	switch {
	case f.DefaultRoute:
		return "defaultRoute"
	case f.CIDR != "":
		return "cidr " + f.CIDR
	}
	return f.Name
}

// resolveInterfaces finds the interfaces of all entries. Entries with an error, which are
// reported, have none.
func resolveInterfaces(c *Configuration, r *report, h Host) {
	c.attached, c.selections, c.resolved = nil, nil, true
	links, err := h.Interfaces()
	if err != nil {
		r.addf("interfaces", "list the machine's interfaces: %v", err)
		return
	}
	var routed []string
	if slices.ContainsFunc(c.Interfaces, func(f Interface) bool { return f.DefaultRoute }) {
		if routed, err = h.DefaultRoutes(); err != nil {
			r.addf("interfaces", "list the machine's default routes: %v", err)
			return
		}
	}
	from := map[string]int{} // name to entry
	for i := range c.Interfaces {
		f := &c.Interfaces[i]
		names := f.resolve(r, fmt.Sprintf("interfaces[%d]", i), links, routed)
		for _, name := range names {
			one := Interface{Name: name, Mode: f.Mode, TxChecksum: f.TxChecksum, Hook: f.Hook}
			at := slices.IndexFunc(c.attached, func(a Interface) bool { return a.Name == name })
			switch {
			case at < 0:
				from[name] = i
				c.attached = append(c.attached, one)
			case c.attached[at] != one:
				r.addf(fmt.Sprintf("interfaces[%d]", i), "%s is %s, which is also of interfaces[%d] (%s), with another mode, txChecksum or hook",
					f.selector(), name, from[name], c.Interfaces[from[name]].selector())
			}
		}
		if f.Name == "" && len(names) > 0 {
			c.selections = append(c.selections, Selection{fmt.Sprintf("interfaces[%d]", i), f.selector(), names})
		}
	}
}

// resolve returns the names of the interfaces that the entry stands for. routed are those
// of default routes.
func (f *Interface) resolve(r *report, path string, links []HostInterface, routed []string) (names []string) {
	if len(f.selectors()) != 1 {
		return nil // reported by Validate
	}
	if f.Name != "" {
		if !slices.ContainsFunc(links, func(l HostInterface) bool { return l.Name == f.Name }) {
			r.addf(path+".name", "interface %s: no such interface (there are: %s)", f.Name, namesOf(links))
			return nil
		}
		return []string{f.Name}
	}
	within, err := netip.ParsePrefix(f.CIDR)
	if err != nil && !f.DefaultRoute {
		return nil // reported by Validate
	}
	var found []HostInterface
	for _, l := range links {
		if !l.left() && (f.DefaultRoute && slices.Contains(routed, l.Name) || f.CIDR != "" && l.within(within)) {
			found = append(found, l)
		}
	}
	switch {
	case len(found) > 0:
	case f.DefaultRoute:
		r.addf(path+".defaultRoute", "no default route of IPv4 or IPv6 leads to an interface that can be attached (there are: %s)", described(links, HostInterface.left))
	default:
		left := func(l HostInterface) bool { return l.left() || l.hostEnd(within) }
		r.addf(path+".cidr", "no interface that can be attached has an address within %s (there are: %s)", f.CIDR, described(links, left))
	}
	if f.CIDR != "" { // by a default route clients arrive: what it leads to must be attached
		found = preferred(found, func(l HostInterface) bool { return slices.Contains(attachable, l.Kind) })
		found = preferred(found, func(l HostInterface) bool { return l.Up })
	}
	for i := range found {
		names = append(names, found[i].Name)
	}
	return names
}

// attachable are the kinds of interfaces for which device.Resolve finds ports.
var attachable = []string{"device", "veth", "netdevsim", "bond", "vlan"}

// preferred are the interfaces that are good, or all if none is.
func preferred(list []HostInterface, good func(HostInterface) bool) []HostInterface {
	bad := func(l HostInterface) bool { return !good(l) }
	if some := slices.DeleteFunc(slices.Clone(list), bad); len(some) > 0 {
		return some
	}
	return list
}

// left reports whether a selector leaves the interface out: it holds addresses that belong
// to no network, or is an end of a pair of Weir's.
func (l HostInterface) left() bool {
	return l.Loopback || l.Kind == "dummy" || l.Kind == "veth" && strings.HasPrefix(l.Name, "weir-")
}

// within reports whether the interface has an address within the prefix.
func (l HostInterface) within(p netip.Prefix) bool {
	return len(l.addresses(p)) > 0 && !l.hostEnd(p)
}

// addresses are those within the prefix, without link-local ones.
func (l HostInterface) addresses(within netip.Prefix) (list []netip.Prefix) {
	for _, a := range l.Addresses {
		if within.Contains(a.Addr()) && !a.Addr().IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	return list
}

// hostEnd reports whether the interface is a veth with nothing but host addresses within the
// prefix: the node's end of a pod, with the address of the pod's gateway.
func (l HostInterface) hostEnd(within netip.Prefix) bool {
	list := l.addresses(within)
	return l.Kind == "veth" && len(list) > 0 && !slices.ContainsFunc(list, func(a netip.Prefix) bool { return !a.IsSingleIP() })
}

func namesOf(links []HostInterface) string {
	names := make([]string, len(links))
	for i := range links {
		names[i] = links[i].Name
	}
	return strings.Join(names, ", ")
}

// described lists interfaces with their addresses. A node may have hundreds, most of them
// of pods and without an address.
func described(links []HostInterface, left func(HostInterface) bool) string {
	const most = 16
	shown := slices.Clone(links)
	slices.SortStableFunc(shown, func(a, b HostInterface) int { return min(1, len(b.Addresses)) - min(1, len(a.Addresses)) })
	var texts []string
	for i := range shown[:min(most, len(shown))] {
		l := &shown[i]
		text := l.Name
		for _, p := range l.Addresses {
			text += " " + p.String()
		}
		if left(*l) {
			text += " (left out)"
		}
		texts = append(texts, text)
	}
	if n := len(shown) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("%d more", n))
	}
	return strings.Join(texts, ", ")
}
