// Package discovery collects the Services to balance, each with the merged endpoints of all
// slices, from any source.
//
// A source (a cluster, a directory of manifests) gives Kubernetes objects to a
// Store, in any order, and takes Updates out of it: one Update for a burst,
// with the Services that really changed. The objects are read as kube-proxy 1.36, the
// slice controllers and the API documents have it; where Weir goes beyond them an
// annotation weir.dev/... asks for it.
//
// The endpoints that may serve are not chosen here: package topology does that, from
// Service.Policy, the endpoints of a Port in a family, and the node.
package discovery

import (
	"net/netip"
	"strings"

	"github.com/weirlb/weir/topology"
)

// ServiceName identifies a Service.
type ServiceName struct{ Namespace, Name string }

// String is namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Port is a Service port with endpoints, both families together; a
// consumer splits them by the family of the frontend's address.
type Port struct {
	Name      string
	Protocol  string // TCP, UDP, SCTP
	Port      uint16
	NodePort  uint16              // 0: none
	Endpoints []topology.Endpoint // sorted by address, then port; each once
	// Unresolved is true if a slice has endpoints by name, and nothing resolves them (NoNames).
	Unresolved bool
}

// Service is a Service as the data path needs it: immutable once handed
// out; a change makes a new value.
type Service struct {
	Name ServiceName
	// Labels are those of a Service with LoadBalancerIPs or ExternalIPs, which may be announced by them.
	Labels          map[string]string
	Ports           []Port
	ClusterIPs      []netip.Addr
	LoadBalancerIPs []netip.Addr // ingress IPs with ipMode absent or VIP
	ExternalIPs     []netip.Addr
	// OfNodes are the LoadBalancerIPs and ExternalIPs that are addresses of Nodes.
	OfNodes []netip.Addr
	// Unserved are the entries of the load balancer's status that Weir does not serve.
	Unserved []UnservedIngress
	// Families are those of the Service, by ipFamilies or by the cluster IPs; 0: unknown.
	// The Service has nothing of another family.
	Families Families
	Policy   topology.Policy
	// AffinitySeconds is the ClientIP session affinity timeout, 0 for none.
	AffinitySeconds     int
	SourceRanges        []netip.Prefix // loadBalancerSourceRanges
	HealthCheckNodePort uint16
	LoadBalancerClass   string
	// Created is metadata.creationTimestamp in Unix seconds, 0 where the object
	// does not have it. Of two Services that claim the same frontend the older has it, on
	// every node.
	Created int64
	// PolicyChanged is true if externalTrafficPolicy is another than that for which the
	// addresses were given, as ConditionTerms says: others who share them have not agreed.
	PolicyChanged          bool
	Options                ServiceOptions // options of the packet path, by annotations
	Headless, ExternalName bool
	// Unsupported names the first field that Weir does not honour; such a
	// Service is left to the kernel as a whole.
	Unsupported string
	// Unused is true if no frontend of this node needs the endpoints (Options.Use): there are
	// none here.
	Unused bool
	// Refused is why the Service is left to the kernel as a whole: it exceeds Options.Limits, or
	// the stores have no room for it beside older ones. "" if it is served. There are no
	// endpoints then.
	Refused string
	// Errors are the errors of the Service, in the API's wording.
	Errors []string
	// Warnings are notices to the operator although nothing is malformed: an Endpoints
	// object that was cut short, an FQDN slice.
	Warnings []string
	// Faults keep the well-formed Service from being served as it asks.
	Faults []Fault
	// Mirrored is true when the endpoints come from a legacy Endpoints
	// object.
	Mirrored bool
}

// UnservedIngress is an entry of the load balancer's status that Weir does not serve.
type UnservedIngress struct{ Address, Reason string }

// Node is the node on which Weir runs.
type Node struct {
	topology.Node
	// Addresses are the node's own addresses as kube-proxy takes them of the
	// Node object (nodeutil.GetNodeHostIPs): at most one per family, the
	// first InternalIP before the first ExternalIP, the node's main family
	// first. Nil: the Node or its addresses are not known.
	Addresses []netip.Addr
}

// Update is a coalesced change. Sources hand out changes; a
// consumer that falls behind gets them coalesced.
type Update struct {
	// Put are the Services that are new or changed, Deleted those gone.
	Put     []*Service
	Deleted []ServiceName
	// Node is this node when its labels or addresses changed (or at first),
	// else nil.
	Node *Node
	// Synced is true once the source has told everything it knew at start.
	Synced bool
}

func (n ServiceName) compare(m ServiceName) int {
	if c := strings.Compare(n.Namespace, m.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, m.Name)
}
