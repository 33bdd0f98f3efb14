package problem

//go:generate go test -run ^TestTableOfProblemsIsCurrent$ -update .

import "strings"

// Kind is a label of the metric weir_problems: the set is fixed.
type Kind string

// Kinds, in the order of the reference.
const (
	InvalidObject     Kind = "invalid-object"
	UnsupportedField  Kind = "unsupported-field"
	FrontendConflict  Kind = "frontend-conflict"
	FrontendContested Kind = "frontend-contested"
	ProtectedPort     Kind = "protected-port"
	NoNodeAddress     Kind = "no-node-address"
	NoNodePort        Kind = "no-node-port"
	OverLimit         Kind = "over-limit"
	NoSteeringRoom    Kind = "no-steering-room"
	OtherClass        Kind = "other-class"
	ForwardingMode    Kind = "forwarding-mode"
	PortNameMismatch  Kind = "port-name-mismatch"
	NoSlices          Kind = "no-slices"
	OrphanSlice       Kind = "orphan-slice"
	NoHints           Kind = "no-hints"
	ServiceWarning    Kind = "service-warning"
	EndpointHealth    Kind = "endpoint-health"
	HealthChecks      Kind = "health-checks"
	HealthCheckPort   Kind = "health-check-port"
	HealthCheckShared Kind = "health-check-port-shared"
	Manifest          Kind = "manifest"
	ManifestWarning   Kind = "manifest-warning"
	ManifestNote      Kind = "manifest-note"
	APIServer         Kind = "api-server"
	StateFile         Kind = "state-file"
	LastKnownState    Kind = "last-known-state"
	Node              Kind = "node"
	Drained           Kind = "drained"
	PeerDown          Kind = "peer-down"
	NotAnnounced      Kind = "not-announced"
	AddressClaimed    Kind = "address-claimed"
	InterfaceGone     Kind = "interface-gone"
	InterfaceWarning  Kind = "interface-warning"
	InterfaceNote     Kind = "interface-note"
	WorkerStalled     Kind = "worker-stalled"
	LateUpdate        Kind = "late-update"
	KernelFeature     Kind = "kernel-feature"
	Configuration     Kind = "configuration"
	DenyList          Kind = "deny-list"
	FlowLog           Kind = "flow-log"
	RestartNeeded     Kind = "restart-needed"
	Publication       Kind = "publication"
	RoutingRule       Kind = "routing-rule"
	PacketPathWarning Kind = "packet-path-warning"
	otherKind         Kind = "other"
)

// Description describes a kind.
type Description struct {
	Kind     Kind
	Severity Severity
	// OfServices is true for problems of Services, which `weir explain` shows.
	OfServices bool
	// Event is true where such a problem becomes an Event of the Service.
	Event bool
	Text  string
}

// Kinds describes every kind, in the order of the reference.
var Kinds = []Description{
	{InvalidObject, Error, true, true, "A field of a Service or of its endpoints is malformed, or an endpoint is a frontend of the Service itself."},
	{UnsupportedField, Error, true, true, "A Service has a field that Weir does not honor: the kernel serves the whole Service."},
	{FrontendConflict, Error, true, true, "Another Service holds the address, protocol and port."},
	{FrontendContested, Warning, true, false, "Another Service claims an address, protocol and port of the Service, and does not get it."},
	{ProtectedPort, Error, true, true, "The address is the node's own, and the port is in `protectedPorts` or Weir itself listens there, or it is in `protectedEndpointPorts` for an endpoint. Or an endpoint has an address of `hostVeth.prefixes`."},
	{NoNodeAddress, Error, false, false, "A Service has node ports, and the node has no address for them in `nodePortAddresses`."},
	{NoNodePort, Error, true, true, "A Service of type NodePort or LoadBalancer has a port without a node port, and no load balancer address that Weir serves: clients cannot reach it."},
	{OverLimit, Error, true, true, "A Service exceeds `limits`, or a store is full and older Services have the room: the kernel serves the whole Service, or an address of it is not announced."},
	{NoSteeringRoom, Error, true, false, "The XDP program's map of frontends is full: packets to the frontend go to the kernel."},
	{OtherClass, Note, true, false, "The Service's `spec.loadBalancerClass` is not the configured `loadBalancerClass`: its load balancer addresses are not served."},
	{ForwardingMode, Warning, true, true, "A frontend or endpoint is served in another forwarding mode than requested."},
	{PortNameMismatch, Error, true, true, "No EndpointSlice of the Service has a port of the name of the Service port."},
	{NoSlices, Warning, true, false, "No EndpointSlice of the manifests names the Service: it has no endpoint. An EndpointSlice without endpoints states that this is meant."},
	{OrphanSlice, Warning, false, false, "An EndpointSlice names no Service, or one that does not exist."},
	{NoHints, Warning, true, false, "The Service asks for `spec.trafficDistribution`, and its EndpointSlices have no hints."},
	{ServiceWarning, Warning, true, false, "A part of the Service is ignored: addresses of another family, an unknown annotation `weir.dev/...`, an Endpoints object that is too long, a slice of names. Or a name of an endpoint is not resolved, or leads to a refused address. Or a frontend on the node's own address has a port in `snat.ports`."},
	{EndpointHealth, Warning, true, false, "Ready endpoints fail the health check of the Service, or are ejected because connections to them fail, or are used although they accept none, since too many are ejected."},
	{HealthChecks, Warning, false, false, "The node cannot send probes of health checks, or not as often as Services ask for."},
	{HealthCheckPort, Error, true, true, "Weir cannot listen on the `spec.healthCheckNodePort`, or another Service or Weir itself answers there."},
	{HealthCheckShared, Note, true, false, "Another process, most likely kube-proxy, listens on the `spec.healthCheckNodePort`."},
	{Manifest, Error, true, false, "A file or document is invalid. Its objects stay as last served."},
	{ManifestWarning, Warning, true, false, "A document has an unknown field, or a value that an API server refuses. The object counts."},
	{ManifestNote, Note, false, false, "A document of another kind is ignored, or an object has an unusual value."},
	{APIServer, Error, false, false, "The API server cannot be listed or watched. The last view stays."},
	{StateFile, Error, false, false, "The last known state of the cluster cannot be read or written: a start without API server serves nothing, or an old state."},
	{LastKnownState, Warning, false, false, "The last known state of the cluster is served: since the start the API server has not sent a full view."},
	{Node, Warning, false, false, "The cluster has no Node of this name, or deletes it."},
	{Drained, Warning, false, false, "The operator drains the node or endpoints by `weir drain`."},
	{PeerDown, Error, false, false, "The BGP session with a router is down: it has no routes of this node."},
	{AddressClaimed, Error, false, false, "Another host on the link claims an address that this node announces, or would, by ARP or neighbor discovery."},
	{NotAnnounced, Warning, false, false, "No node on the LAN answers for an address, or it is not announced to routers: as many are as `announce.maxAddresses` allows, or the speaker refuses it."},
	{InterfaceGone, Error, false, false, "A configured interface is missing, not attached, down or without carrier."},
	{InterfaceWarning, Warning, false, false, "An interface is limited: a slower mode, fewer queues."},
	{InterfaceNote, Note, false, false, "Offloads of an interface are switched off while Weir is attached."},
	{WorkerStalled, Error, false, false, "A worker does not finish a round: packets of its queues are not forwarded. See `workers.stallSeconds`."},
	{LateUpdate, Error, false, false, "The publication of a change takes more than a minute. The state before it is served; no probe fails."},
	{KernelFeature, Note, false, false, "The kernel or a driver lacks an optional feature."},
	{Configuration, Error, false, false, "The configuration file has errors: the previous configuration stays in effect."},
	{DenyList, Error, false, false, "A file or ConfigMap of `denyLists` cannot be read or has an error: the last list goes on."},
	{FlowLog, Warning, false, false, "Records of connections come faster than they are read, or cannot be sent to the collector or written to the file of `flowLog`: they are lost and counted."},
	{RestartNeeded, Warning, false, false, "A changed field of the configuration takes effect at the next start."},
	{Publication, Error, true, false, "A change could not be applied to the packet path."},
	{RoutingRule, Warning, false, false, "A routing rule is not followed: of a VRF, by TOS, or with goto. The next rules decide."},
	{PacketPathWarning, Warning, false, false, "The packet path is limited."},
	{otherKind, Warning, false, false, "A problem of no other kind."},
}

var described = func() map[Kind]Description {
	m := make(map[Kind]Description, len(Kinds))
	for _, d := range Kinds {
		m[d.Kind] = d
	}
	return m
}()

// Describe returns the description of k. A kind that is not in Kinds is
// described as "other", so that labels stay bounded.
func (k Kind) Describe() Description {
	if d, ok := described[k]; ok {
		return d
	}
	return described[otherKind]
}

// EventReason is the reason of the Event of a problem of this kind: the kind in
// upper camel case, as FrontendConflict.
func (k Kind) EventReason() string {
	var b strings.Builder
	for word := range strings.SplitSeq(string(k), "-") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
