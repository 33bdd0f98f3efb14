package api

import (
	"net/netip"
	"time"
)

// Announce is the announcement of addresses to routers.
type Announce struct {
	Speaker string         `json:"speaker"` // bgp, kernel or off
	Peers   []AnnouncePeer `json:"peers"`
	// Addresses are those of load balancer IPs and external IPs with a frontend on this node.
	Addresses []AnnouncedAddress `json:"addresses"`
	// MaxAddresses is how many may be announced (announce.maxAddresses).
	MaxAddresses int `json:"maxAddresses"`
	// Routes are the prefixes that are announced.
	Routes []string `json:"routes"`
	// Held is how often an address that was served again has been held back for longer than
	// announce.settleSeconds: it was withdrawn more than 3 times in 5 minutes.
	Held uint64 `json:"held"`
	// L2 are the interfaces on which addresses are announced by ARP and neighbor discovery.
	L2 []AnnounceLink `json:"l2,omitempty"`
	// Objects are BGPPeers and BGPAdvertisements; absent where none are read.
	Objects *AnnounceObjects `json:"objects,omitempty"`
}

// AnnounceObjects is what the objects of announce.objects and announce.objectNamespaces are for this
// node.
type AnnounceObjects struct {
	Peers          int `json:"peers"`          // BGPPeers with a session
	Advertisements int `json:"advertisements"` // BGPAdvertisements in use
	// L2Advertisements are those in use.
	L2Advertisements int `json:"l2Advertisements"`
	// Faults are objects that are out of service, or in use in part.
	Faults []string `json:"faults,omitempty"`
	// APIServer is where those of the API server are from: listed, waiting or last-known; absent
	// where none are read.
	APIServer string `json:"apiServer,omitempty"`
	// Refused is why the objects of before stay in use.
	Refused string `json:"refused,omitempty"`
}

// Values of AnnounceObjects.APIServer.
const (
	ObjectsListed    = "listed"     // as the API server has told
	ObjectsWaiting   = "waiting"    // it has not told all yet
	ObjectsLastKnown = "last-known" // the same, and those of an earlier process are in use
)

// AnnouncePeer is a router.
type AnnouncePeer struct {
	Peer string `json:"peer"` // address, or interface of an unnumbered session
	ASN  uint32 `json:"asn"`
	// State is the state of the session (RFC 4271), Since when it began.
	State       string     `json:"state"`
	Established bool       `json:"established"`
	Since       *time.Time `json:"since,omitempty"`
	// BFD is the state of BFD (RFC 5880) with a router that has it: down, init or up.
	BFD    string `json:"bfd,omitempty"`
	Routes int    `json:"routes"` // that the router was sent
	// Ends counts sessions that have ended since the start.
	Ends   uint64 `json:"ends"`
	Reason string `json:"reason,omitempty"` // of the last end
}

// AnnouncedAddress is an address that may be announced.
type AnnouncedAddress struct {
	Address   netip.Addr `json:"address"`
	Announced bool       `json:"announced"`
	// Reason is the first reason why it is not announced, and Detail says more.
	Reason   string    `json:"reason,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	Since    time.Time `json:"since"`
	Services []string  `json:"services,omitempty"`
	// Choice is equal on nodes that choose the same endpoint for the same connection to the
	// address: a hash of the programmed frontends, with forwarding mode, endpoints and weights.
	Choice string `json:"choice,omitempty"`
	// ChoosesByNode is true if nodes with the same Choice may choose differently: a Service has
	// another algorithm than maglev.
	ChoosesByNode bool `json:"choosesByNode,omitempty"`
	// L2 is the announcement on links; absent where announce.l2 has no interface.
	L2 *AnnouncedL2 `json:"l2,omitempty"`
}

// AnnouncedL2 is the announcement of an address on a link.
type AnnouncedL2 struct {
	// State is owner, standby or ineligible.
	State string `json:"state"`
	// Owner is the node that answers; absent if that is not known.
	Owner     string    `json:"owner,omitempty"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason,omitempty"` // why this node is not the owner
	Interface string    `json:"interface,omitempty"`
	// Rival is the MAC address of the host that last claimed the address of this owner, or one that
	// no node owns, at RivalHeard.
	Rival      string     `json:"rival,omitempty"`
	RivalHeard *time.Time `json:"rivalHeard,omitempty"`
}

// AnnounceLink is an interface on which addresses are announced.
type AnnounceLink struct {
	Interface string `json:"interface"`
	Carrier   bool   `json:"carrier"`
	// Key is false where nodes have no common key, and every host on the link can take part.
	Key bool `json:"key"`
	// Fault is why the interface cannot be used.
	Fault string `json:"fault,omitempty"`
	// Nodes are the others on the link.
	Nodes []string `json:"nodes"`
	// Taken, GivenUp and Claimed count changes of addresses: taken by this node, given up by it,
	// and claimed by another host while it was the owner.
	Taken   uint64 `json:"taken"`
	GivenUp uint64 `json:"givenUp"`
	Claimed uint64 `json:"claimed"`
	// Unjoined are hosts on the link that said they are nodes and could not be joined, with the
	// reason: they may have another key.
	Unjoined map[string]string `json:"unjoined,omitempty"`
}
