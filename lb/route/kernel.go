package route

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// kernelState is the result of reading the kernel's tables.
type kernelState struct {
	links     map[int]*link
	addresses []address
	routes    []kernelRoute
	rules     ruleSet
}

// link is an interface of the host.
type link struct {
	index, master int
	name, kind    string
	mtu           int
	mac           [6]byte
	up, loopback  bool
	running       bool // up, with a carrier
	noARP         bool
}

// address is an address of the host.
type address struct {
	index  int
	prefix netip.Prefix
	// peer is the network on the other side where that differs.
	peer  netip.Prefix
	scope int
	flags int
}

func (a *address) has(flag int) bool { return a.flags&flag != 0 }

// kernelRoute is a route of a routing table.
type kernelRoute struct {
	table  int
	kind   uint8 // RTN_*
	dst    netip.Prefix
	metric uint32
	// preference of a router's advertisement (RFC 4191), as the kernel
	// numbers it: 0 medium, 1 high, 3 low.
	preference uint8
	tos        uint8
	sourced    bool // matches only some sources (IPv6 subtrees)
	prefsrc    netip.Addr
	mtu        uint32
	hops       []hop
}

// hop is a next hop of a route.
type hop struct {
	index   int
	gateway netip.Addr // invalid: on the link
	weight  int
	flags   uint32 // RTNH_F_*
	encap   bool
}

func (h *hop) dead() bool     { return h.flags&unix.RTNH_F_DEAD != 0 }
func (h *hop) linkDown() bool { return h.flags&unix.RTNH_F_LINKDOWN != 0 }

// carrier is what the notifications of a link say of its carrier.
type carrier struct {
	lost bool // at some time it had none
	has  bool // at the last
}

// running reports whether an interface with these flags is up and has a carrier.
func running(flags uint32) bool {
	const both = unix.IFF_UP | unix.IFF_RUNNING
	return flags&both == both
}
