package route

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// Kind says how a path leaves, or why there is none.
type Kind uint8

// Kinds of path. Only Attached and Host carry packets.
const (
	// NoRoute: the kernel has no route either (ICMP network unreachable).
	NoRoute Kind = iota
	// Attached: straight out of an attached interface.
	Attached
	// Host: through the host veth, to this host or through the kernel.
	Host
	// Blackhole: dropped without a word.
	Blackhole
	// Unreachable: a route of that type (ICMP host unreachable).
	Unreachable
	// Prohibit: a route of that type (ICMP administratively prohibited).
	Prohibit
	// NotUnicast: a broadcast or multicast destination.
	NotUnicast
	// NoHostVeth: the path leads through the kernel, and there is no host veth.
	NoHostVeth
)

var kindNames = [...]string{
	"no-route", "attached", "host", "blackhole", "unreachable", "prohibit", "not-unicast", "no-host-veth",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Path is a path to a destination.
type Path struct {
	// Kind is Attached or Host, or the reason why there is no path.
	Kind Kind
	// Local says that the destination is an address of this host.
	Local bool
	// Port is the lb port number to transmit on.
	Port int
	// Interface is the kernel's interface index that the route names. For a
	// path through the host veth this is where the kernel sends the packet on.
	Interface int
	// MTU is the largest IP packet in bytes that the path takes.
	MTU uint32
	// NextHop is whose MAC the frame gets; for a destination on the link the
	// destination itself.
	NextHop netip.Addr
	// Source is the SNAT source for this path; invalid if the egress interface has no
	// usable address of the family.
	Source netip.Addr
	// LocalSource is the SNAT source when the endpoint is known to run on this
	// node: for a path through the host veth a source that is not masqueraded, otherwise
	// the same as Source.
	LocalSource netip.Addr
}

// entry has the paths of a prefix. It is immutable once in a table.
type entry struct {
	kind Kind
	// local: an address of this host, also when there is no host veth.
	local bool
	paths []Path
	// cumWeight[i] is the largest hash that takes paths[i]; nil with a single path.
	cumWeight []uint32
	// reverse is the reverse path to sources under the prefix, see Reverse.
	reverse reverse
}

func (e *entry) equal(o *entry) bool {
	if e == o {
		return true
	}
	if e.kind != o.kind || e.local != o.local || len(e.paths) != len(o.paths) || !e.reverse.equal(&o.reverse) {
		return false
	}
	for i := range e.paths {
		if e.paths[i] != o.paths[i] {
			return false
		}
		if e.cumWeight != nil && e.cumWeight[i] != o.cumWeight[i] {
			return false
		}
	}
	return true
}

// Table is an immutable snapshot of the routes. Safe for any number of readers.
type Table struct {
	epoch uint32
	// local has precedence over main: the local table if it is separate
	// (IPv6, and IPv4 when there are routing rules). Else IPv4's local routes
	// are in main: the kernel merges the two.
	local, main *bart.Table[*entry]
	// policy4 and policy6 are the routing rules of a family with the tables that they name; nil:
	// the default rules, local and then main.
	policy4, policy6 policy
}

// Epoch identifies the contents of the table. It is never 0, and differs from the previous
// epoch if any answer of Lookup may be different.
func (t *Table) Epoch() uint32 { return t.epoch }

// Size is the number of prefixes.
func (t *Table) Size() int { return t.local.Size() + t.main.Size() }

func (t *Table) find(addr netip.Addr) *entry {
	if e, ok := t.local.Lookup(addr); ok {
		return e
	}
	if e, ok := t.main.Lookup(addr); ok {
		return e
	}
	return nil
}

// path is the path of an entry to addr that hash chooses.
func (e *entry) path(addr netip.Addr, hash uint32) (p Path, ok bool) {
	if len(e.paths) == 0 {
		return Path{Kind: e.kind}, false
	}
	i := 0
	for i < len(e.cumWeight)-1 && hash > e.cumWeight[i] {
		i++
	}
	p = e.paths[i]
	if !p.NextHop.IsValid() {
		p.NextHop = addr
	}
	return p, true
}

// NumPaths is how many paths there are for a packet.
func (t *Table) NumPaths(p *Packet) int {
	if e, _ := t.findFor(p); e != nil {
		return len(e.paths)
	}
	return 0
}

// Local reports whether addr is an address of this host.
func (t *Table) Local(addr netip.Addr) bool {
	e := t.find(addr)
	return e != nil && e.local
}
