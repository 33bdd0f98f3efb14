// Package api is the interface of a running Weir to its operator: HTTP and JSON
// over a UNIX socket, and a client.
//
// openapi.json describes requests and answers; the daemon serves it at /v1/openapi.json.
// An answer of several parts is written part by part, and holds no lock meanwhile. 429 is
// the answer while as many costly answers of the kind are given as may be at a time: see places.
// A fault in the middle of an answer breaks the connection. Fields are only ever added.
package api

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// Status is the state of a running Weir at a moment. Counters count since the start of
// the process. The same value feeds `weir status` and the metrics.
type Status struct {
	Version       string    `json:"version"`
	Node          string    `json:"node"`
	PID           int       `json:"pid"`
	StartTime     time.Time `json:"startTime"`
	UptimeSeconds float64   `json:"uptimeSeconds"`
	// Start is the duration of each phase of the start.
	Start []Phase `json:"start,omitempty"`

	// Snapshot is the number of the published snapshot of frontends and
	// endpoints, and LastUpdated when it was published.
	Snapshot    uint64    `json:"snapshot"`
	LastUpdated time.Time `json:"lastUpdated"`
	// Synced is true once the source has told everything it knew at start;
	// before that no traffic is taken.
	Synced bool `json:"synced"`
	// Draining is true between SIGTERM and the end, and while weir drain self holds.
	Draining bool   `json:"draining,omitempty"`
	Drain    *Drain `json:"drain,omitempty"` // nil unless Draining

	// Healthy is the answer of /livez, and Unhealthy the reason if not.
	Healthy   bool   `json:"healthy"`
	Unhealthy string `json:"unhealthy,omitempty"`

	Discovery Discovery `json:"discovery"`

	// NodePorts are the addresses on which node ports are served.
	NodePorts []NodePortAddress `json:"nodePorts"`

	Services  int `json:"services"`  // served by Weir
	Frontends int `json:"frontends"` // address, protocol and port
	Endpoints int `json:"endpoints"` // that Services list, counted per Service port
	// FrontendsLimit and EndpointsLimit are how many there is room for.
	FrontendsLimit int `json:"frontendsLimit"`
	EndpointsLimit int `json:"endpointsLimit"`
	// FrontendsHash is equal on nodes that serve the same frontends, node ports
	// apart, for the same Services.
	FrontendsHash uint32 `json:"frontendsHash"`

	Interfaces []Interface `json:"interfaces"`
	// Absent are the interfaces of the configuration that were attached and
	// are not there now, or cannot be attached again.
	Absent  []AbsentInterface `json:"absent,omitempty"`
	Workers []Worker          `json:"workers"`
	Flows   Flows             `json:"flows"`

	// Drops is the sum over workers, by reason: every reason, so that a reason which has
	// not occurred is 0 and not absent.
	Drops map[string]uint64 `json:"drops"`
	// DenyLists are the deny lists, in the order of the configuration.
	DenyLists []DenyList `json:"denyLists,omitempty"`
	// FlowLog is the record of connections, nil where there is none.
	FlowLog *FlowLog `json:"flowLog,omitempty"`
	// Steering are the counters of the XDP program: packets that it sent to
	// Weir, passed to the kernel, and so on, by name.
	Steering map[string]uint64 `json:"steering,omitempty"`

	Neighbors []Neighbor `json:"neighbors"`
	// Privileges are those that the process has left since the start.
	Privileges *privilege.Status `json:"privileges,omitempty"`
	// StateFiles are the files that a start trusts.
	StateFiles []StateFile `json:"stateFiles,omitempty"`
	// Announce is the announcement of addresses to routers, nil where it is off.
	Announce *Announce `json:"announce,omitempty"`
	// Kernel says which optional kernel features were found.
	Kernel []Feature `json:"kernel,omitempty"`
	// Warnings are notices to the operator about the packet path: offloads
	// switched off, an unpinned link, a receive queue without a worker. They
	// are in Problems too.
	Warnings []string `json:"warnings,omitempty"`

	// Problems are everything that is not done as it was asked for, the worst
	// first: at most 1,000. ProblemsLeftOut are those beyond, and
	// ProblemCounts counts all by kind.
	Problems        []problem.Problem    `json:"problems"`
	ProblemsLeftOut int                  `json:"problemsLeftOut,omitempty"`
	ProblemCounts   map[problem.Kind]int `json:"problemCounts,omitempty"`
}

// DenyList is what a deny list does.
type DenyList struct {
	Name     string `json:"name"`
	Prefixes int    `json:"prefixes"`
	// Packets are those that were dropped, EndedFlows the flows of clients that came on the list.
	Packets    uint64 `json:"packets"`
	EndedFlows uint64 `json:"endedFlows"`
}

// Drain is how far a drain has come.
type Drain struct {
	// Accepting is true while new connections are still taken.
	Accepting bool `json:"accepting"`
	// Connections are those that are waited for: answered and not over.
	Connections int `json:"connections"`
	// SecondsLeft is the time until the remaining connections are cut.
	SecondsLeft float64 `json:"secondsLeft"`
	// Operator is true of weir drain self, which has no end.
	Operator bool `json:"operator,omitempty"`
}

// String is "draining: N connections left, M s to go".
func (d *Drain) String() string {
	noun := "connections"
	if d.Connections == 1 {
		noun = "connection"
	}
	if d.Operator {
		return fmt.Sprintf("drained by the operator: health checks fail, new connections are still taken; %d %s", d.Connections, noun)
	}
	s := fmt.Sprintf("draining: %d %s left, %.0f s to go", d.Connections, noun, d.SecondsLeft)
	if d.Accepting {
		s += ", new ones are still taken"
	}
	return s
}

// Discovery is the state of the source of Services.
type Discovery struct {
	Source   string `json:"source"` // "manifests /etc/weir/manifests"
	Services int    `json:"services"`
	// Errors are the Problems about objects of the source, as text.
	Errors []string `json:"errors"`
	// Slices are the EndpointSlices of Services, and FQDNSlices those of
	// them that are skipped because their addresses are names; Mirrored are
	// the Services served from a legacy Endpoints object; RefusedEndpoints
	// are addresses that must not be sent to.
	Slices           int `json:"slices"`
	FQDNSlices       int `json:"fqdnSlices"`
	Mirrored         int `json:"mirrored"`
	RefusedEndpoints int `json:"refusedEndpoints"`
	// NamedEndpoints are the endpoints by name, each once for every slice and port number of it.
	NamedEndpoints int `json:"namedEndpoints"`
	// ServicesRemoved counts the Services that the source has withdrawn since
	// the start.
	ServicesRemoved uint64 `json:"servicesRemoved"`
	// LeftToKernel are the Services that Weir does not serve, each with the
	// field that it does not honor. They are in Problems too.
	LeftToKernel []string `json:"leftToKernel,omitempty"`
	// LastKnown is set while the last known state is served, to the time of that state: the
	// API server has not sent its own since the start.
	LastKnown *time.Time `json:"lastKnown,omitempty"`
	// GoodAt is when the served state was last known to be that of the API server: the earliest
	// LastContact. Nil for other sources, and before anything is known.
	GoodAt *time.Time `json:"goodAt,omitempty"`
	// Resources are those watched of an API server.
	Resources []Resource `json:"resources,omitempty"`
	// WatchErrors counts, by resource, the requests to list or watch that the API server
	// refused, that did not reach it, or whose answer was cut short or could not be decoded.
	WatchErrors map[string]uint64 `json:"watchErrors,omitempty"`
	// NodeNotEligible is why load balancers in front should not send
	// traffic to this node, "" when they should.
	NodeNotEligible string `json:"nodeNotEligible,omitempty"`
}

// NodePortAddress is an address on which node ports are served, with the reason.
type NodePortAddress struct {
	Address netip.Addr `json:"address"`
	Reason  string     `json:"reason"`
}

// Resource is a kind of object that is watched of an API server.
type Resource struct {
	Name string `json:"name"` // services, endpointslices, nodes, endpoints
	// Connected is false from a request that failed, was refused or was cut short to the next
	// list that is completed, or event that is decoded.
	Connected bool `json:"connected"`
	// LastContact is when a list was last completed, or an event or bookmark decoded; zero: never.
	LastContact time.Time `json:"lastContact,omitzero"`
}

// Interface is an attached interface, or the host veth.
type Interface struct {
	Name    string `json:"name"`
	IfIndex int    `json:"ifindex"`
	// Mode is the mode that the kernel granted: zerocopy, native, generic.
	Mode   string `json:"mode"`
	Driver string `json:"driver"`
	// Hook is where packets are taken, xdp or tcx, and HookReason why there.
	Hook       string `json:"hook,omitempty"`
	HookReason string `json:"hookReason,omitempty"`
	// Repeated is absent if the kernel forwards no packets by the flow table.
	Repeated *Repeated `json:"repeated,omitempty"`
	// Lost are packets that were redirected and that the kernel has lost since the start.
	Lost Lost `json:"lost"`
	// Queues are the receive queues that the device has, BoundQueues those
	// that a worker serves; packets of others go to the kernel.
	Queues      int `json:"queues"`
	BoundQueues int `json:"boundQueues"`
	// TxChecksum says how partial checksums are completed at transmission: metadata (by the
	// kernel or the device, asked by TX metadata) or software.
	TxChecksum string `json:"txChecksum"`
	// MultiBuffer is true when packets larger than a frame are taken.
	MultiBuffer bool `json:"multiBuffer"`
	// Pinned is true when the program stays attached if Weir dies.
	Pinned bool `json:"pinned"`
	// HostVeth is true for the port to endpoints behind the kernel.
	HostVeth bool `json:"hostVeth,omitempty"`
	// Interface is the bond or VLAN interface that this is a port of, Device the
	// device whose queues carry it, VLAN the tag; Inactive is a member that the
	// bond does not use now.
	Interface string   `json:"interface,omitempty"`
	Device    string   `json:"device,omitempty"`
	VLAN      int      `json:"vlan,omitempty"`
	Inactive  bool     `json:"inactive,omitempty"`
	MTU       int      `json:"mtu,omitempty"`
	Sockets   []Socket `json:"sockets,omitempty"`
}

// Repeated counts the packets of an interface that the kernel has forwarded by the flow
// table.
type Repeated struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Steered are the other packets for Weir: those that reached the packet loop.
	Steered uint64 `json:"steered"`
}

// Lost counts packets that the kernel has lost behind a redirect: a queue was full, or a device
// down or too small. They are among the packets of Repeated and Steered.
type Lost struct {
	// Pair are those that arrived on the interface, lost in the veth pair of hook tcx.
	Pair uint64 `json:"pair"`
	// Transmit are those that were to leave by the interface, of any sender: the kernel's
	// tx_dropped.
	Transmit uint64 `json:"transmit"`
}

// Share is the share of Weir's packets that the kernel has forwarded.
func (r *Repeated) Share() float64 {
	return float64(r.Packets) / float64(max(1, r.Packets+r.Steered))
}

// AbsentInterface is an interface of the configuration that takes no traffic.
type AbsentInterface struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Attached says which interface takes no traffic yet, nil when all do.
func (s *Status) Attached() error {
	for _, i := range s.Interfaces {
		if i.Mode == "" {
			return fmt.Errorf("%s is not attached", i.Name)
		}
	}
	for _, a := range s.Absent {
		return fmt.Errorf("%s is not attached: %s", a.Name, a.Reason)
	}
	return nil
}

// Socket is an AF_XDP socket with the kernel's counters
// (XDP_STATISTICS, linux/if_xdp.h).
type Socket struct {
	Queue            int    `json:"queue"`
	Worker           int    `json:"worker"`
	RxDropped        uint64 `json:"rxDropped"`        // for other reasons than a full ring
	RxRingFull       uint64 `json:"rxRingFull"`       // the worker was late
	RxFillRingEmpty  uint64 `json:"rxFillRingEmpty"`  // no free frame was left
	RxInvalidDescs   uint64 `json:"rxInvalidDescs"`   // 0, or there is a bug
	TxInvalidDescs   uint64 `json:"txInvalidDescs"`   // 0, or there is a bug
	TxRingEmptyDescs uint64 `json:"txRingEmptyDescs"` // woken with nothing to send
	// Mode is the mode that the kernel granted this queue: zerocopy, native, generic.
	Mode string `json:"mode"`
	// Umem is the number of the socket's umem, from 0: each mode has a umem.
	Umem int `json:"umem"`
	// Rejected are descriptors and ring indices from the kernel that cannot
	// be: 0, or there is a bug in the kernel or the driver.
	Rejected uint64 `json:"rejected"`
}

// Flows is the state of the flow table.
type Flows struct {
	Current     uint64 `json:"current"`
	Max         uint64 `json:"max"`
	MemoryBytes uint64 `json:"memoryBytes"`
	Created     uint64 `json:"created"`
	Expired     uint64 `json:"expired"`
	Evicted     uint64 `json:"evicted"` // half-open flows that made room
	NoPort      uint64 `json:"noPort"`  // new flows refused: SNAT ports exhausted
	// Displaced are flows that had not ended and whose SNAT port another flow got.
	Displaced uint64 `json:"displaced"`
	// DisplacedBy is Displaced by class: silent, silent-stream, one-sided, idle, answered,
	// half-open and doubted, as in "When a store is full" of lb/PROTOCOLS.md.
	DisplacedBy map[string]uint64 `json:"displacedBy"`
	Full        uint64            `json:"full"` // new flows refused: table full
	SNATPorts   SNATPorts         `json:"snatPorts"`
	Adopted     uint64            `json:"adopted"` // flows taken over from the last process
	// ByState is the number of flows per protocol and state, such as
	// tcp-established.
	ByState map[string]uint64 `json:"byState,omitempty"`
}

// SNATPorts are the ports of an address of the node that connections to an endpoint get.
type SNATPorts struct {
	Ports string `json:"ports"` // such as 61000-65535,1024-29999
	Count int    `json:"count"` // without those that the node uses
	// Reason is why snat.ports: auto gives no more.
	Reason string `json:"reason,omitempty"`
}

// Neighbor is a next hop in use.
type Neighbor struct {
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"`
	MAC       string     `json:"mac"`   // "" until resolved
	State     string     `json:"state"` // unresolved, resolving, valid, failed
}

// Feature is a kernel feature that Weir can do without.
type Feature struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Instead is Weir's substitute if the feature is missing.
	Instead string `json:"instead,omitempty"`
}

// Flow is a connection.
type Flow struct {
	Protocol string         `json:"protocol"` // TCP, UDP
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	// SNAT is the client's address as the endpoint sees it.
	SNAT        netip.AddrPort `json:"snat"`
	Endpoint    netip.AddrPort `json:"endpoint"`
	Service     string         `json:"service,omitempty"` // namespace/name
	Mode        string         `json:"mode"`
	State       string         `json:"state"`
	AgeSeconds  float64        `json:"ageSeconds"`
	IdleSeconds float64        `json:"idleSeconds"`
}

// FlowList is the answer to /v1/flows.
type FlowList struct {
	Total     uint64 `json:"total"`     // flows in the table
	Truncated bool   `json:"truncated"` // there are more than were asked for
	Flows     []Flow `json:"flows"`
}

// Frontend is an address, protocol and port that Weir serves.
type Frontend struct {
	Service  string `json:"service"` // namespace/name
	PortName string `json:"portName,omitempty"`
	Address  string `json:"address"` // address:port, or address:first-last for a range of ports
	Protocol string `json:"protocol"`
	// Kind is NodePort, LoadBalancer, ExternalIP or ClusterIP.
	Kind string `json:"kind"`
	// Mode is how new flows are forwarded: nat, dnat, l2dsr, ipip, gue.
	Mode string `json:"mode"`
	// Tier is the tier of the endpoints, in the words of `weir explain`.
	Tier string `json:"tier"`
	// OnEmpty is the action for a new connection without an endpoint:
	// reject or drop.
	OnEmpty   string             `json:"onEmpty"`
	Endpoints []FrontendEndpoint `json:"endpoints"`
}

// FrontendEndpoint is an endpoint of a frontend.
type FrontendEndpoint struct {
	Address string `json:"address"` // address:port
	Local   bool   `json:"local"`
	// Mode is how new flows are forwarded, as far as the client does not
	// matter: nat, dnat, l2dsr, ipip or gue.
	Mode  string  `json:"mode"`
	Share float64 `json:"share"` // of new flows, 0 to 1
	Flows uint64  `json:"flows"`
}

// FrontendList is the answer to /v1/frontends.
type FrontendList struct {
	Frontends []Frontend `json:"frontends"`
}
