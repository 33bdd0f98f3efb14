// Package topology decides which endpoints of a Service this node may use.
//
// It is a pure function of the Service's policy, the endpoints and the node:
// no clock, no I/O, standard library only. The rules are those of kube-proxy
// 1.36 (KEP-1669, KEP-2086, KEP-2433, KEP-3015, KEP-4444), which 1.37 has
// not changed, plus the older topologyKeys (KEP-536) and Weir's own tiers.
package topology

import "net/netip"

// Well-known node labels.
const (
	LabelHostname = "kubernetes.io/hostname"
	LabelZone     = "topology.kubernetes.io/zone"
	LabelRegion   = "topology.kubernetes.io/region"
)

// Endpoint is an address and port that may serve, with location and state. Conditions are
// resolved: nil has become the default (ready and serving true, terminating false).
type Endpoint struct {
	AddrPort    netip.AddrPort
	Ready       bool
	Serving     bool
	Terminating bool
	NodeName    string            // "" when unknown
	Zone        string            // "" when unknown
	HintZones   []string          // hints.forZones
	HintNodes   []string          // hints.forNodes
	Labels      map[string]string // labels of the endpoint's node; shared, never written
	// Inferred is true when NodeName was inferred from the address.
	Inferred bool
	// OfNode is true when the address is that of a Node.
	OfNode bool
	// Weight is the endpoint's part of new flows relative to others of the tier; 0 is 1. It
	// does not affect the choice of the tier.
	Weight uint32
}

// State is ready, terminating, terminated or not-ready.
func (e *Endpoint) State() string {
	switch {
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "terminating"
	case e.Terminating:
		return "terminated"
	}
	return "not-ready"
}

// Node is the node on which Weir runs.
type Node struct {
	Name   string
	Labels map[string]string
}

// Distribution is Weir's own traffic distribution, for endpoints without
// hints (annotation weir.dev/traffic-distribution).
type Distribution uint8

// Distributions.
const (
	DistributionNone Distribution = iota
	PreferSameNode
	PreferSameZone
	PreferSameRegion
)

// Policy has the fields of a Service that determine the choice of endpoints.
type Policy struct {
	InternalLocal bool // internalTrafficPolicy: Local
	ExternalLocal bool // externalTrafficPolicy: Local
	// External is true when the Service is reachable from outside: a node
	// port, a load balancer ingress IP or externalIPs.
	External        bool
	TopologyKeys    []string
	Distribution    Distribution
	MinReadyPercent int // 0: off
}

// Tier names which endpoints were chosen, in the words of `weir explain`.
type Tier string

// Tiers. A topology key's tier is "topology-key:" + key.
const (
	TierAll         Tier = "all"
	TierSameNode    Tier = "same-node"
	TierSameZone    Tier = "same-zone"
	TierSameRegion  Tier = "same-region"
	TierTerminating Tier = "terminating"
	TierNone        Tier = "none"
)

// Chosen has the endpoints that a traffic policy may use.
type Chosen struct {
	Tier Tier
	// Endpoints are indices into the slice given to Select, ascending.
	Endpoints []int
	// Shares, when not nil, is the share of new flows of each of Endpoints
	// (sum 1); nil means equal shares.
	Shares []float64
}

// Result is the choice for a Service port and address family.
type Result struct {
	Cluster *Chosen // nil where Cluster policy is never used
	Local   *Chosen // nil where Local policy is never used
	// HasAnyEndpoints is true when any ready or serving endpoint exists
	// anywhere: an empty Local policy then drops, else it refuses.
	HasAnyEndpoints bool
	// AnyReady is true when any ready endpoint exists anywhere.
	AnyReady bool
	// Reasons says, per endpoint given, why it is used or not by the
	// Cluster (or, when that is nil, the Local) policy. It is filled only
	// by Explain.
	Reasons []string
	// LocalReasons is the same for the Local policy, nil when that is not
	// used.
	LocalReasons []string
}
