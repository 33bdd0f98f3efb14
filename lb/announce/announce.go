// Package announce is the rule by which a node announces the addresses of frontends to
// routers. It does no I/O and reads no clock.
//
// An address is announced exactly while this node serves it: a router that has the route sends
// packets, and the node must not lose them. Whatever ends that has an effect at once; whatever
// begins it must last for Settings.Settle.
package announce

import (
	"net/netip"
	"time"
)

// Reason is why an address is not announced. Of several that hold it is the first.
type Reason uint8

// Reasons, in their order. Those that time alone does not end come first.
const (
	Announced     Reason = iota // none: it is announced
	NotAllowed                  // of no advertisement
	Stopping                    // the process ends
	Draining                    // the operator drains the node
	NotSynced                   // the first full view of Services is not there
	Unhealthy                   // the packet path does not work
	NotEligible                 // load balancers are not to send to this node
	NotProgrammed               // packets to a frontend of it do not reach the packet path
	NotServed                   // a new connection would get no endpoint
	Settling                    // all is well, but not for long enough
	TooMany                     // of the owner or in total, by Settings.MaxAddresses and others
)

var reasons = [...]string{
	"announced", "not-allowed", "stopping", "draining", "not-synced", "unhealthy", "not-eligible",
	"not-programmed", "not-served", "settling", "too-many",
}

// String is the reason as status and metrics show it.
func (r Reason) String() string { return reasons[r] }

// Reasons are all reasons but Announced, as String has them.
func Reasons() []string { return reasons[1:] }

// Node is the state of the node as a whole. Texts are "" where there is nothing to say.
type Node struct {
	Stopping, Draining bool
	NotSynced          bool
	Unhealthy          string
	NotEligible        string
	// Publishing is true before a publication: nothing is announced that is not yet.
	Publishing bool
}

// Frontend is a frontend of an address.
type Frontend struct {
	Service string
	// Namespace is that of the Service: its authors are others than those of other namespaces.
	Namespace string
	// Labels are those of the Service.
	Labels map[string]string
	// Created is when the Service was made, in Unix seconds, 0 for unknown.
	Created int64
	// Changed is true if the Service has another policy than that for which it was given the
	// address: those who share it have not agreed.
	Changed bool
	// External is true for an address that the Service has by spec.externalIPs, which nobody
	// has given to it.
	External bool
	// Programmed is true while the packet path gets its packets.
	Programmed bool
	// Endpoints are those that a new connection may get on this node.
	Endpoints int
	// Elsewhere is true without Endpoints where other nodes have some: those may be
	// announced, and this node would lose the packets (externalTrafficPolicy: Local).
	Elsewhere bool
}

// Settings are those of the operator.
type Settings struct {
	// Allow are the prefixes whose addresses may be announced. An author of a Service must not
	// be able to attract other traffic.
	Allow []netip.Prefix
	// MaxAddresses bounds the addresses that are announced, MaxPerNamespace and MaxPerService
	// those whose owner is a Service, or of a namespace. 0 is no bound.
	MaxAddresses, MaxPerNamespace, MaxPerService int
	// Settle is how long everything must be well before an address is announced. It is doubled
	// for each time in flapWindow that the address was withdrawn by its own state or that of the
	// packet path, beyond flapsAllowed, up to maxSettle.
	Settle time.Duration
	// EmptyFor is how long an announced address stays announced without any endpoint on any
	// node: other nodes are no better, and clients are answered.
	EmptyFor time.Duration
	// Aggregate4 and Aggregate6 are the lengths of the prefixes of routes, 0 for that of an
	// address. A shorter prefix is announced while any address in it is.
	Aggregate4, Aggregate6 int
	Attributes             Attributes
	// Advertisements are beside Allow, Aggregate4, Aggregate6 and Attributes. An address that
	// several allow has a route by each.
	Advertisements []Advertisement
}

// Advertisement is how the addresses of prefixes are announced. The fields are as in Settings.
type Advertisement struct {
	Allow []netip.Prefix
	// Selects reports whether an advertisement is for a Service with these labels, nil: for all. An
	// address is announced by it if it is for all Services of the owner's namespace that have it: no
	// other namespace can have it withdrawn.
	Selects                func(labels map[string]string) bool
	Aggregate4, Aggregate6 int
	Attributes             Attributes
	// Peers are the names of those that are told, as Peer has them; nil: all. None of this node's
	// is an empty list, which announces nothing.
	Peers []string
	// Link is true for addresses that are announced on links alone, and not to routers.
	Link bool
	// Interfaces are those of Link; nil: all.
	Interfaces []string
}

// Attributes are those of routes.
type Attributes struct {
	Communities      []uint32    // RFC 1997
	LargeCommunities [][3]uint32 // RFC 8092
	MED              *uint32     // nil: none
	LocalPref        *uint32     // of iBGP; nil: the speaker's default
	Prepend          uint8       // how often the own number precedes the path once more
}

// Route is a route to announce.
type Route struct {
	Prefix netip.Prefix
	Attributes
	// Peers are by name those that are told other Communities, LargeCommunities and LocalPref. Other
	// attributes are the same for all.
	Peers map[string]Attributes
	// Limited is true if Peers alone are told.
	Limited bool
}

// Speaker announces routes.
type Speaker interface {
	// Set makes want the announced routes. It sends withdrawals first, and returns after they
	// are on their way. The error is about routes that could not be set; all others are.
	Set(want []Route) error
	// Peers are the routers, in the order of the configuration.
	Peers() []Peer
	// Adopted are the prefixes that were announced before this process began, and still are.
	// They stay until the first Set.
	Adopted() []netip.Prefix
	// Close ends all sessions; the routers withdraw.
	Close() error
	// Keeps reports whether routers keep the routes after Leave until the next process announces,
	// and only for some time.
	Keeps() bool
	// Leave is Close before the next process, for a Speaker that Keeps.
	Leave() error
}

// Peer is a router that routes are announced to.
type Peer struct {
	Name string // address, or interface of an unnumbered session
	ASN  uint32
	// Established is true while routes are exchanged, State the state of the session.
	Established bool
	State       string
	Since       time.Time // of State; zero: since the start
	// BFD is the state of BFD (RFC 5880): down, init or up; "" where the peer has none.
	BFD string
	// Routes are those that the peer was sent.
	Routes int
	// Ends counts sessions that have ended.
	Ends uint64
	// Reason is why the session is down, "" if that is not known.
	Reason string
}
