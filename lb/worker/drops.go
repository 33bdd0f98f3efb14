package worker

// dropTexts explain each reason to operators.
var dropTexts = [dropReasons]string{
	DropNotIP:               "Neither IPv4 nor IPv6.",
	DropTruncated:           "Shorter than the lengths in its headers.",
	DropBadIPHeader:         "A malformed IPv4 or IPv6 header, or a wrong IPv4 header checksum.",
	DropUnsupportedProtocol: "A transport protocol that Weir does not support.",
	DropBadTransport:        "A malformed TCP, UDP or SCTP header.",
	DropBadChecksum:         "A wrong TCP checksum on a segment that would end or move a connection.",
	DropMartian:             "A source or destination address that no router may forward (RFC 1812 section 5.3.7).",
	DropReversePath:         "A source whose route does not lead back by the interface of the packet: see forwarding.reversePathFilter.",
	DropExtension:           "A malformed IPv6 extension header.",
	DropSourceRoute:         "A source route, or a routing header that is not at its end.",
	DropBadFragment:         "A malformed fragment.",
	DropTinyFragment:        "A first fragment without the whole transport header (RFC 1858, RFC 8200).",
	DropICMPMalformed:       "A malformed ICMP message, or a wrong ICMP checksum.",
	DropICMPNoFlow:          "An ICMP error about no flow of this node.",
	DropEchoLimit:           "A ping beyond the rate at which pings are answered.",
	DropFragmentOverlap:     "A fragment that overlaps another one (RFC 5722).",
	DropOrphanFragment:      "A fragment of a datagram whose first fragment was refused, or whose ports would have to change in SCTP.",
	DropFragmentExpired:     "A fragment whose first fragment did not come in time.",
	DropFragmentLimit:       "No room for another datagram in fragments.",
	DropTTL:                 "TTL or hop limit used up. Answered with ICMP where that is due.",
	DropNoEndpoint:          "A frontend without any endpoint. Answered with a RST or ICMP, within limits: see weir explain.",
	DropNoLocalEndpoint:     "A frontend with externalTrafficPolicy: Local and no endpoint on this node.",
	DropSourceRange:         "A client outside of spec.loadBalancerSourceRanges.",
	DropDenied:              "A client on a list of denyLists, as far as the steering program has not dropped the packet.",
	DropPrefixRate:          "A new connection beyond flood.newConnectionsPerPrefix of the client's prefix.",
	DropConnectionLimit:     "A new connection beyond weir.dev/max-connections.",
	DropConnectionRate:      "A new connection beyond weir.dev/new-connections-per-second.",
	DropEndpointRemoved:     "A packet of a flow whose endpoint was removed, where on-endpoint-removal says reset or drop.",
	DropNoConntrackEntry:    "A packet without an entry in the flow table: in the middle of a TCP connection after conntrack.takeoverSeconds or during announce.resetAfterSeconds, to an SNAT address that is Weir's alone, or a new connection to an SNAT port.",
	DropSNATPorts:           "No SNAT port left towards the endpoint: give Weir addresses of its own (snat.addresses).",
	DropTableFull:           "No room in the flow table: raise conntrack.maxFlows.",
	DropNoRoute:             "The kernel has no route to the destination.",
	DropNeighbor:            "The next hop did not answer (ARP, neighbor discovery). Answered with ICMP.",
	DropTooBig:              "Larger than the MTU of the outgoing link or route. Answered with ICMP where that is due.",
	DropNeighborQueueFull:   "Too many packets wait for the resolution of next hops.",
	DropTxFull:              "A transmit ring is full: the interface is slower than what comes in.",
	DropHandoffFull:         "The ring to the worker of the egress queue is full.",
	DropPuntLoop:            "A packet from the host veth that is not Weir's: it would be punted to where it came from.",
	DropReplyLimit:          "Would have been answered with RST, ABORT or ICMP, beyond the limit of such packets.",
	DropUnsupported:         "A combination that Weir does not forward, such as several buffers where a single buffer is needed.",
	DropNotAdjacent:         "l2dsr to an endpoint that is not on an attached network.",
	DropMultihomed:          "An SCTP association with several addresses.",
	DropDraining:            "Weir drains: a new connection after drain.notReadySeconds.",
	DropRefused:             "A refusal of an endpoint (RST, ICMP), kept from the client: the SYN that it sends again goes to another endpoint.",
}

// Text explains the reason to operators.
func (d Drop) Text() string {
	if d < dropReasons {
		return dropTexts[d]
	}
	return ""
}

// Drops are all reasons, in order.
func Drops() []Drop {
	out := make([]Drop, dropReasons)
	for i := range out {
		out[i] = Drop(i)
	}
	return out
}

// Drop is the reason under which a dropped packet is counted.
type Drop uint8

// Drop reasons. Their names (see String) are the label values of the metrics
// and the keys of `weir status`.
const (
	DropNotIP Drop = iota
	DropTruncated
	DropBadIPHeader
	DropUnsupportedProtocol
	DropBadTransport
	DropBadChecksum
	DropMartian
	DropReversePath
	DropExtension
	DropSourceRoute
	DropBadFragment
	DropTinyFragment
	DropICMPMalformed
	DropICMPNoFlow
	DropEchoLimit
	DropFragmentOverlap
	DropOrphanFragment
	DropFragmentExpired
	DropFragmentLimit
	DropTTL
	DropNoEndpoint
	DropNoLocalEndpoint
	DropSourceRange
	DropDenied
	DropPrefixRate
	DropConnectionLimit
	DropConnectionRate
	DropEndpointRemoved
	DropNoConntrackEntry
	DropSNATPorts
	DropTableFull
	DropNoRoute
	DropNeighbor
	DropTooBig
	DropNeighborQueueFull
	DropTxFull
	DropHandoffFull
	DropPuntLoop
	DropReplyLimit
	DropUnsupported
	DropNotAdjacent
	DropMultihomed
	DropDraining
	DropRefused
	dropReasons
)

var dropNames = [dropReasons]string{
	DropNotIP:               "not-ip",
	DropTruncated:           "truncated",
	DropBadIPHeader:         "bad-ip-header",
	DropUnsupportedProtocol: "unsupported-protocol",
	DropBadTransport:        "bad-transport-header",
	DropBadChecksum:         "bad-checksum",
	DropMartian:             "martian",
	DropReversePath:         "reverse-path",
	DropExtension:           "bad-extension-header",
	DropSourceRoute:         "source-routed",
	DropBadFragment:         "bad-fragment",
	DropTinyFragment:        "tiny-fragment",
	DropICMPMalformed:       "icmp-malformed",
	DropICMPNoFlow:          "icmp-no-flow",
	DropEchoLimit:           "echo-rate-limited",
	DropFragmentOverlap:     "fragment-overlap",
	DropOrphanFragment:      "orphan-fragment",
	DropFragmentExpired:     "fragment-expired",
	DropFragmentLimit:       "fragment-limit",
	DropTTL:                 "ttl-exceeded",
	DropNoEndpoint:          "no-endpoint",
	DropNoLocalEndpoint:     "no-local-endpoint",
	DropSourceRange:         "source-range",
	DropDenied:              "denied",
	DropPrefixRate:          "prefix-rate",
	DropConnectionLimit:     "connection-limit",
	DropConnectionRate:      "connection-rate",
	DropEndpointRemoved:     "endpoint-removed",
	DropNoConntrackEntry:    "no-conntrack-entry",
	DropSNATPorts:           "snat-ports-exhausted",
	DropTableFull:           "flow-table-full",
	DropNoRoute:             "no-route",
	DropNeighbor:            "neighbor-unresolved",
	DropTooBig:              "larger-than-mtu",
	DropNeighborQueueFull:   "neighbor-queue-full",
	DropTxFull:              "transmit-ring-full",
	DropHandoffFull:         "handoff-ring-full",
	DropPuntLoop:            "punt-loop",
	DropReplyLimit:          "reply-rate-limited",
	DropUnsupported:         "unsupported",
	DropNotAdjacent:         "not-l2-adjacent",
	DropMultihomed:          "sctp-multihomed",
	DropDraining:            "draining",
	DropRefused:             "refused-by-endpoint",
}

// String is the reason's name.
func (d Drop) String() string {
	if d < dropReasons {
		return dropNames[d]
	}
	return "unknown"
}

// DropReasons are the names of all reasons, in order.
func DropReasons() []string { return dropNames[:] }
