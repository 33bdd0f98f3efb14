package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ServiceState is a Service with its counters since this process serves it.
type ServiceState struct {
	Service string `json:"service"` // namespace/name
	// Ports are the Service ports, each with the tiers in use.
	Ports []ServicePort `json:"ports"`
	// Open and HalfOpen are connections now: both sides, or only the client, have been heard.
	Open     uint32 `json:"open"`
	HalfOpen uint32 `json:"halfOpen"`
	// NewConnections counts flows that were made.
	NewConnections uint64 `json:"newConnections"`
	// FailedHandshakes counts TCP and SCTP connections that ended before the handshake was
	// complete: reset, timed out, or evicted.
	FailedHandshakes uint64 `json:"failedHandshakes"`
	// Retransmissions are segments that came again.
	Retransmissions Retransmissions `json:"retransmissions"`
	// Packets and Bytes, from the Ethernet header on, are estimates from a sample of a packet
	// in at most 512. Packets that the kernel forwards by the flow table are not among them.
	Packets Traffic `json:"packets"`
	Bytes   Traffic `json:"bytes"`
	// Handshakes are the times from the first SYN to the SYN-ACK, of the modes in which
	// answers pass Weir: of at most 8 new connections of a batch.
	Handshakes Histogram `json:"handshakes"`
	// Health counts the endpoints of all ports that checks know: passing, failing, ejected.
	Health map[string]int `json:"health,omitempty"`
	// Drops are dropped packets by reason: those with a frontend or flow of the Service, and
	// only reasons that occurred.
	Drops map[string]uint64 `json:"drops"`
	// MaxConnections and NewConnectionsPerSecond are the limits of the Service, 0 for none.
	MaxConnections          uint32 `json:"maxConnections,omitempty"`
	NewConnectionsPerSecond uint32 `json:"newConnectionsPerSecond,omitempty"`
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort,omitempty"`
	// Endpoints is how many endpoints the Service lists, Ready how many of them are ready.
	Endpoints int `json:"endpoints"`
	Ready     int `json:"ready"`
	// EndpointsByTier counts the ready endpoints by the nearest tier that they belong to,
	// seen from this node: same-node, same-zone, same-region or all.
	EndpointsByTier map[string]int `json:"endpointsByTier"`
	// Tiers are the tiers in use, per address family and scope of the frontends.
	Tiers []TierInUse `json:"tiers"`
}

// TierInUse is the tier whose endpoints get new flows.
type TierInUse struct {
	Family string `json:"family"` // IPv4, IPv6
	// Scope is external, or internal for frontends to which externalTrafficPolicy does not
	// apply.
	Scope string `json:"scope"`
	Tier  string `json:"tier"`
	// Endpoints is how many endpoints get new flows.
	Endpoints int       `json:"endpoints"`
	Since     time.Time `json:"since"`
	// Previous is the tier before, "" since the start.
	Previous string `json:"previous,omitempty"`
}

// Retransmissions counts TCP segments that a client or endpoint sent again, with the same
// sequence number. Data is not among them: Weir does not follow its sequence numbers.
type Retransmissions struct {
	// SYNs came again from clients: the endpoint, or the path to it, did not answer.
	SYNs uint64 `json:"syn"`
	// SYNACKs came again from endpoints: the client's ACK did not arrive.
	SYNACKs uint64 `json:"synAck"`
	// FINs came again from either side.
	FINs uint64 `json:"fin"`
}

// Sum is the number of all.
func (r *Retransmissions) Sum() uint64 { return r.SYNs + r.SYNACKs + r.FINs }

// Traffic is a count per direction.
type Traffic struct {
	FromClients   uint64 `json:"fromClients"`
	FromEndpoints uint64 `json:"fromEndpoints"`
}

// Histogram counts times by bucket. The count of a bucket is that of the bucket alone.
type Histogram struct {
	Count      uint64   `json:"count"`
	SumSeconds float64  `json:"sumSeconds"`
	Buckets    []Bucket `json:"buckets"`
}

// Bucket is a bucket of a Histogram.
type Bucket struct {
	// UpToSeconds is the largest time in the bucket; absent in the last, which has no bound.
	UpToSeconds float64 `json:"upToSeconds,omitempty"`
	Count       uint64  `json:"count"`
}

// ServiceList is the answer to /v1/services.
type ServiceList struct {
	// Time is when the answer began, for rates.
	Time     time.Time      `json:"time"`
	Services []ServiceState `json:"services"` // by name
}

// EndpointState is an endpoint of a Service port, whether or not it gets new flows here.
type EndpointState struct {
	Service  string `json:"service"` // namespace/name
	Port     string `json:"port"`    // name of the Service port, or its number
	Protocol string `json:"protocol"`
	Address  string `json:"address"` // address:port
	Node     string `json:"node,omitempty"`
	Zone     string `json:"zone,omitempty"`
	State    string `json:"state"` // ready, not-ready, terminating, terminated
	// Cluster and Local say whether the endpoint gets new flows by each traffic policy.
	Cluster bool `json:"cluster"`
	Local   bool `json:"local"`
	// Used is true where new flows of clients from outside get to the endpoint, by Policy: Cluster
	// or Local. Of a Service that has no address outside they are those of clients inside. It is
	// false where no frontend of the Service is served.
	Used   bool   `json:"used"`
	Policy string `json:"policy"`
	Reason string `json:"reason"` // for Used
	// Drained is true of an endpoint that weir drain endpoint named: it counts as terminating.
	Drained bool `json:"drained,omitempty"`
	// Connections are those of this node to the endpoint, and Open those that are open.
	Connections uint32 `json:"connections"`
	Open        uint32 `json:"open"`
	// Attempts are how attempts to connect to the endpoint have fared.
	Attempts Attempts `json:"attempts"`
	// Health is what this node has found out about the endpoint.
	Health EndpointHealth `json:"health"`
}

// EndpointHealth is what checks of a node say of an endpoint.
type EndpointHealth struct {
	// State is passing or failing by the health check of the Service, ejected by the passive check, failing
	// also if Kept, or unchecked.
	State string `json:"state"`
	// Kept is true of an endpoint that is failing by the passive check, and used all the same: too many
	// others are ejected.
	Kept bool `json:"kept,omitempty"`
	// Since is absent of an endpoint that is not checked.
	Since *time.Time `json:"since,omitempty"`
	// Reason is why the check fails, or the endpoint is ejected.
	Reason string `json:"reason,omitempty"`
	// LatencySeconds is how long the last probe that passed has taken.
	LatencySeconds float64 `json:"latencySeconds,omitempty"`
	// FailedConnections are attempts that were refused or not answered.
	FailedConnections uint64 `json:"failedConnections"`
}

// States of EndpointHealth, the worst first.
const (
	HealthEjected   = "ejected"
	HealthFailing   = "failing"
	HealthPassing   = "passing"
	HealthUnchecked = "unchecked"
)

// Worse reports whether the state is worse than another.
func (h *EndpointHealth) Worse(than string) bool {
	order := []string{HealthEjected, HealthFailing, HealthPassing, HealthUnchecked}
	return slices.Index(order, h.State) < slices.Index(order, than)
}

// Unhealthy says how many endpoints fail their check and how many are ejected, "" if none.
func (s *ServiceState) Unhealthy() string {
	var out []string
	for _, state := range []string{HealthFailing, HealthEjected} {
		if n := s.Health[state]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(out, ", ")
}

// Attempts counts TCP handshakes, UDP flows and SCTP associations to an endpoint, since this
// process knows it.
type Attempts struct {
	// Answered have got a SYN-ACK or a first datagram; where answers do not pass Weir the client's
	// ACK counts.
	Answered uint64 `json:"answered"`
	// Refused have got a RST, or an ICMP error of the endpoint.
	Refused uint64 `json:"refused"`
	// Unanswered are those whose SYN the client sent again after a second, and those to which no
	// route or next hop led.
	Unanswered uint64 `json:"unanswered"`
	// FailedInARow is how many have failed since the last answer.
	FailedInARow uint32 `json:"failedInARow"`
	// LastFailure is absent without a failure.
	LastFailure *time.Time `json:"lastFailure,omitempty"`
}

// EndpointList is the answer to /v1/endpoints.
type EndpointList struct {
	Endpoints []EndpointState `json:"endpoints"` // by Service and port
}

// serviceRoutes are those about Services and endpoints with their counters.
func serviceRoutes(src Source, t times) []route {
	one := []param{{name: "service", usage: "namespace/name; absent: all Services"}}
	return []route{{
		method: "GET", path: "/v1/services", summary: "Services with tiers in use and counters.", params: one,
		answer: ServiceList{}, handle: perService("the list of Services", t, src.ServiceStates),
	}, {
		method: "GET", path: "/v1/endpoints", summary: "Endpoints with state, reason and connections.", params: one,
		answer: EndpointList{}, handle: perService("the list of endpoints", t, src.EndpointStates),
	}}
}

// perService answers about a Service, or about all of them, two requests at a time.
func perService(kind string, t times, ask func(service string) (Stream, error)) http.HandlerFunc {
	all := newPlaces(kind, 2, t.wait)
	return func(w http.ResponseWriter, r *http.Request) {
		service := r.FormValue("service")
		if service == "" {
			leave := all.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
		}
		s, err := ask(service)
		stream(w, r, t.stall, s, err)
	}
}
