// Package route gives workers the next hop of a packet: it keeps the kernel's
// routes, addresses, links and neighbors in a form that a worker can read
// without a lock, an allocation or a system call.
//
// Three structures are published, each with a single writer, the goroutine in
// [Watcher.Run]:
//
//   - [Table], an immutable longest prefix match over the main and local
//     routing tables and those that routing rules name, behind one atomic
//     pointer. Its epoch changes whenever an answer may have changed.
//   - [Adjacency], a fixed array of next hops (port, MACs, MTU, state) whose
//     words are replaced in place: a neighbor's new MAC reaches established
//     flows without touching them. Its stamp changes when routes that led there
//     change and when the next hop is given up, so that an answer cached in a flow is
//     valid as long as the stamp stored with it is the adjacency's.
//   - the addresses of the host, for NodePort frontends.
//
// The kernel is the only source: it holds the routes, resolves the neighbors
// and is asked to keep those in use fresh, since it does not see the packets
// that Weir sends. Notifications are hints, never the truth: after one the
// tables are read again, and after lost ones (ENOBUFS) or an interrupted dump
// all of them.
//
//	kernel.go     the kernel's state; kernelrule.go: its routing rules
//	rules.go      which of them are followed; policy.go: the look-up by them
//	netlink.go    that state, read; neighbor.go: neighbors, read and asked for
//	subscribe.go  notifications
//	table.go      the routes; build.go, source.go and reverse.go make them
//	adjacency.go  a next hop; affected.go: those that a change of routes concerns
//	ring.go       requests of workers
//	nexthops.go   the next hops and their neighbors: allocate.go, probe.go, carrier.go
//	watcher.go    all of that in order
//	addresses.go  the host's addresses; list.go: answers to readers
//	static.go     a watcher without a kernel
//
// Routing rules (RFC 1812 calls it policy routing) see a packet as the kernel does that forwards it
// without a firewall mark: to an endpoint with the client's address, to a client with the
// frontend's, by protocol, ports and the interface by which it came.
//
// Not supported, with a warning where it would matter: rules of VRFs, by TOS, or with goto, routes
// for a TOS, and source-specific IPv6 routes. A route through an interface that Weir is not attached to
// (among them VLAN devices, bridges, tunnels on top of an attached interface),
// and a route with an encapsulation, leads through the host veth: the kernel
// forwards it. A bond's routes lead out of those of its members that Weir is
// attached to.
package route

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/vishvananda/netns"
)

// Interface is an interface that Weir is attached to.
type Interface struct {
	// Index is the kernel's interface index.
	Index int
	// Port is the number under which workers know the interface.
	Port int
}

// HostVeth describes the path of workers to the kernel's stack: a veth pair with an AF_XDP
// end.
type HostVeth struct {
	// Port is the number under which workers know the host veth.
	Port int
	// Index is the interface index of the kernel's end. Routes through it
	// lead back to Weir and are not followed.
	Index int
	// MAC is that of Weir's end, the source of frames to the kernel; PeerMAC
	// is that of the kernel's end, their destination.
	MAC, PeerMAC [6]byte
	// ReturnPathMAC is the source, in place of MAC, of frames to the next hops
	// Local4 and Local6: packets whose answers the kernel is to bring back.
	ReturnPathMAC [6]byte
	// MTU of the pair.
	MTU int
	// Gateway4 and Gateway6 are the addresses of the kernel's end: the next
	// hop of every path through the host veth.
	Gateway4, Gateway6 netip.Addr
	// Local4 and Local6 are the SNAT sources for endpoints on this node: the
	// answer returns by the route to the host veth.
	Local4, Local6 netip.Addr
	// Forward4 and Forward6 are the SNAT sources for endpoints that may lie
	// beyond this node: the kernel masquerades them where they leave it.
	Forward4, Forward6 netip.Addr
}

// Config has the parameters of a Watcher.
type Config struct {
	// Interfaces that Weir is attached to.
	Interfaces []Interface
	// HostVeth is nil if there is none: destinations behind it are then unreachable.
	HostVeth *HostVeth
	// MaxAdjacencies is the number of next hops at most, 64 bytes each;
	// default DefaultMaxAdjacencies.
	MaxAdjacencies int
	// Adjacencies is the memory of the next hops, MaxAdjacencies+1 and zero, if the owner has
	// its own. It must outlive the Watcher.
	Adjacencies []Adjacency
	// Workers is the number of workers that may call Resolve; default 1.
	Workers int
	// IdleAfter is how long a next hop stays when no worker uses it; default
	// 5 minutes, and a tenth of it for a next hop that cannot be resolved.
	IdleAfter time.Duration
	// ReceiveBuffer is the size of the notification socket's buffer in bytes;
	// default 8 MiB.
	ReceiveBuffer int
	// Namespace is the network namespace to watch. The zero value and
	// netns.None() mean that of the thread that calls New.
	Namespace netns.NsHandle
	// Logger gets warnings; default slog.Default().
	Logger *slog.Logger
}

// DefaultMaxAdjacencies is Config.MaxAdjacencies where it is not given.
const DefaultMaxAdjacencies = 4096

const (
	defaultIdleAfter     = 5 * time.Minute
	defaultReceiveBuffer = 8 << 20
)

func (c *Config) setDefaults() {
	if c.MaxAdjacencies <= 0 {
		c.MaxAdjacencies = DefaultMaxAdjacencies
	}
	if c.Workers <= 0 {
		c.Workers = 1
	}
	if c.IdleAfter <= 0 {
		c.IdleAfter = defaultIdleAfter
	}
	if c.ReceiveBuffer <= 0 {
		c.ReceiveBuffer = defaultReceiveBuffer
	}
	if c.Namespace == 0 {
		c.Namespace = netns.None()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}
