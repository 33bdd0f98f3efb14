package table

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack"
)

// Kind is how a frontend is reached.
type Kind uint8

// Kinds of frontends.
const (
	NodePort     Kind = iota // a node port on an address of the node
	LoadBalancer             // a load balancer ingress IP
	ExternalIP               // an address of spec.externalIPs
	ClusterIP                // a cluster IP
)

// String is the kind as status and metrics show it.
func (k Kind) String() string {
	return nameOf(k, "NodePort", "LoadBalancer", "ExternalIP", "ClusterIP")
}

// OnEmpty is the answer to a new flow when the pool has no endpoint.
type OnEmpty uint8

// Answers of an empty pool.
const (
	Reject OnEmpty = iota // TCP RST, ICMP port unreachable: no endpoint anywhere
	Drop                  // silence: endpoints exist, but none that Local policy may use
)

// String is the answer as status and metrics show it.
func (o OnEmpty) String() string { return nameOf(o, "Reject", "Drop") }

// Algorithm is how a pool chooses the endpoint of a new flow.
type Algorithm uint8

// Algorithms.
const (
	Maglev    Algorithm = iota // by the tuple's hash; the same on every node
	Random                     // by the worker's random numbers
	LeastConn                  // the endpoint with the fewest flows for the weight
)

// String is the algorithm as status shows it.
func (a Algorithm) String() string { return nameOf(a, "Maglev", "Random", "LeastConn") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%d", v)
}

// Endpoint is a member of a pool.
type Endpoint struct {
	AddrPort netip.AddrPort
	// Weight is the endpoint's part of new flows, relative to the other weights of the
	// pool; 0 means 1. An endpoint whose part is less than a Maglev slot (1/1021 in a
	// small pool) may get none.
	Weight uint32
	Local  bool // runs on this node
}

// Pool is a set of endpoints and the method of choosing from it. All endpoints are of the
// frontends' address family. An endpoint given
// twice counts once, with the larger weight.
type Pool struct {
	Endpoints []Endpoint
	Algorithm Algorithm
	// AffinitySeconds is the ClientIP affinity timeout, 0 for none. With
	// affinity the endpoint follows from the client's address alone, unless the caller
	// knows the client's earlier endpoint; see [PoolEntry.Select].
	AffinitySeconds int
	// SlowStart is how long, in ticks, the part of an endpoint that comes to a
	// Service with others grows until it is full.
	SlowStart uint32
	OnEmpty   OnEmpty
	Tier      string // which endpoints these are, for status; see topology.Tier
	// AnyReady is true while some node has a ready endpoint of the Service port, for the
	// announcement alone.
	AnyReady bool
}

// Frontend is an address, port and protocol that clients use.
type Frontend struct {
	AddrPort netip.AddrPort
	Proto    uint8 // IP protocol number: 6 TCP, 17 UDP
	Kind     Kind
	Pool     int // index into Service.Pools
	// Port is the Service port that the frontend belongs to: session affinity
	// and the presence of endpoints are those of a port and protocol, for all frontends
	// together. 0: that of AddrPort.
	Port uint16
	// LastPort is the last port of a range that begins with the port of AddrPort: packets go to
	// the same port of the endpoint. 0: a single port.
	LastPort uint16
	// Mode is how new flows are forwarded; 0 is conntrack.ModeNAT.
	Mode conntrack.Mode
	// ClusterScope marks a frontend for traffic from inside the cluster,
	// to which externalTrafficPolicy does not apply.
	ClusterScope bool
}

// Service has the frontends and pools of a Service. The Table copies what it
// keeps: the slices may be used again after Prepare.
type Service struct {
	Name string // namespace/name, the identity
	// Created is when the Service was made, in Unix seconds, 0 for unknown. Of two that
	// claim a frontend the older has it, those of unknown age
	// after all others, and of the same age the first by name: so it is on
	// every node, whatever the order of events there. An ExternalIP yields to every other
	// kind: each author of a Service can write such a claim, also before the address is
	// given to somebody.
	Created int64
	// PolicyChanged is true if the Service has another policy than that for which it was given
	// its addresses. It is for the announcement alone, as Labels are.
	PolicyChanged bool
	Labels        map[string]string
	Frontends     []Frontend
	Pools         []Pool
	Policy        *Policy // nil: none
	// Listed are endpoints that are in the Service's slices but may be in
	// none of the pools (not ready, terminating, or not for this node): their flows go
	// on, so they do not count as gone. Endpoints of pools need not be named again.
	Listed []ListedEndpoint
}

// ListedEndpoint is an endpoint that exists, whether or not it gets new flows.
type ListedEndpoint struct {
	AddrPort netip.AddrPort
	Proto    uint8
	Local    bool // runs on this node
	// Port is the Service port that lists it, as in Frontend. 0: every port of the
	// protocol that the Service has a frontend for.
	Port uint16
}

// ErrFrontendTaken is wrapped by the error of a Service whose frontend another Service holds.
var ErrFrontendTaken = errors.New("frontend is taken")

// ErrTooManyEndpoints is wrapped by the error of a Service for whose endpoints no number
// is left.
var ErrTooManyEndpoints = errors.New("too many endpoints")

// ServiceError is an error of a Service of a change. The others apply.
type ServiceError struct {
	Service string
	// Kept is true when the Service as a whole stays as it was last
	// published; otherwise it applies except for what Err names.
	Kept bool
	Err  error
}

// Error names the Service and the error.
func (e *ServiceError) Error() string { return fmt.Sprintf("service %s: %v", e.Service, e.Err) }

// Unwrap is the error without the Service's name.
func (e *ServiceError) Unwrap() error { return e.Err }

// ConflictError names the holder of a frontend that another Service claims with less right.
// The claim stands: the Service gets the frontend when no other has a better claim.
type ConflictError struct {
	AddrPort netip.AddrPort
	LastPort uint16 // of a range of ports; 0: a single port
	Proto    uint8
	Service  string // claims it
	Holder   string // has it
	// Part is a range of Holder that has some of the ports, and not all: it has these alone. "": the
	// frontend is the same.
	Part string
}

// Error names the frontend and both Services.
func (e *ConflictError) Error() string {
	if e.Part != "" {
		return fmt.Sprintf("%s proto %d: ports in common with %s: %v by %s", AddressText(e.AddrPort, e.LastPort), e.Proto, e.Part, ErrFrontendTaken, e.Holder)
	}
	return fmt.Sprintf("%s proto %d: %v by %s", AddressText(e.AddrPort, e.LastPort), e.Proto, ErrFrontendTaken, e.Holder)
}

// Is makes errors.Is(err, ErrFrontendTaken) true.
func (e *ConflictError) Is(target error) bool { return target == ErrFrontendTaken }

// service is a Service as published, immutable.
type service struct {
	name          string
	created       int64
	id            uint32
	frontends     []*FrontendEntry // all that it claims; those it holds are in the trie
	index         map[Key]int32    // of frontends, if there are more than maxSearched
	pools         []*PoolEntry     // those of the frontends, each once
	policy        *Policy
	endpointIDs   []uint32       // of the endpoints, ascending
	quicEndpoints *quicEndpoints // nil unless it follows QUIC connection IDs
}

// maxSearched is how many frontends are searched without an index.
const maxSearched = 16

// add adds a frontend that the Service does not have. The Service must not be published.
func (s *service) add(f *FrontendEntry) {
	s.frontends = append(s.frontends, f)
	switch n := len(s.frontends); {
	case n <= maxSearched:
		return
	case n == maxSearched+1:
		s.index = make(map[Key]int32, cap(s.frontends))
		for i, f := range s.frontends {
			s.index[f.Key] = int32(i)
		}
	default:
		s.index[f.Key] = int32(n - 1)
	}
}

// frontend is the Service's frontend with the key, or nil. It looks at index
// hint first: a Service's frontends seldom change places. s may be nil.
func (s *service) frontend(k *Key, hint int) *FrontendEntry {
	if s == nil {
		return nil
	}
	if hint < len(s.frontends) && s.frontends[hint].Key == *k {
		return s.frontends[hint]
	}
	if s.index != nil {
		if i, ok := s.index[*k]; ok {
			return s.frontends[i]
		}
		return nil
	}
	for _, f := range s.frontends {
		if f.Key == *k {
			return f
		}
	}
	return nil
}

// before reports whether s has the better claim to a frontend that both claim.
func (s *service) before(o *service, k *Key) bool {
	external := s.frontend(k, 0).Kind == ExternalIP
	if external != (o.frontend(k, 0).Kind == ExternalIP) {
		return !external
	}
	if s.created != o.created {
		return o.created == 0 || s.created != 0 && s.created < o.created
	}
	return s.name < o.name
}

func (s *service) equal(o *service) bool {
	return s.created == o.created && slices.Equal(s.frontends, o.frontends) && slices.Equal(s.endpointIDs, o.endpointIDs)
}

// serviceIDs gives Services their numbers, from 1. A number rests before it is given
// again, so that flows of a Service that is gone are not soon counted as another's. While
// connections have it, it is not given again: they go by the removal policy of their Service.
type serviceIDs struct {
	inUse   func(uint32) bool
	names   []string // by number; "" is free or pending
	free    []uint32 // longest free first
	pending []uint32 // taken by a change that is not published
}

// quarantineLen is how many numbers are free before the first is given again.
const quarantineLen = 1024

// reuseBudget is how many numbers are looked at before a new one is made.
const reuseBudget = 16

func (s *serviceIDs) allocate() uint32 {
	n, ok := s.reuse()
	if !ok {
		n = uint32(max(len(s.names), 1))
		s.names = append(s.names, make([]string, int(n)+1-len(s.names))...)
	}
	s.pending = append(s.pending, n)
	return n
}

// reuse returns the number that is free for longest and that no connection has, if enough are free.
func (s *serviceIDs) reuse() (n uint32, ok bool) {
	for range min(reuseBudget, len(s.free)-quarantineLen) {
		if n, s.free = s.free[0], s.free[1:]; !s.inUse(n) {
			return n, true
		}
		s.free = append(s.free, n)
	}
	return 0, false
}

func (s *serviceIDs) assign(n uint32, name string) { s.names[n] = name }

func (s *serviceIDs) release(n uint32) {
	s.names[n] = ""
	s.free = append(s.free, n)
}

// endChange ends a change: numbers that were taken but not named are free again.
// It is called before the next change.
func (s *serviceIDs) endChange() {
	for _, n := range s.pending {
		if s.names[n] == "" {
			s.free = append(s.free, n)
		}
	}
	s.pending = s.pending[:0]
}

// ServiceName is the name of the Service with a number, "" when there is none.
func (t *Table) ServiceName(n uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(n) >= len(t.serviceIDs.names) {
		return ""
	}
	return t.serviceIDs.names[n]
}

// ServiceNames are the names of the Services by number, "" where there is none.
func (t *Table) ServiceNames() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.serviceIDs.names)
}

// ServiceNumber is the number of a published Service.
func (t *Table) ServiceNumber(name string) (n uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil {
		return 0, false
	}
	return s.id, true
}

// LastServiceNumber is the largest number that a Service has, also in a change that is
// prepared.
func (t *Table) LastServiceNumber() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return uint32(max(len(t.serviceIDs.names), 1) - 1)
}

// checkAddrPort is the address with an IPv4-mapped address as IPv4, or an error.
func checkAddrPort(ap netip.AddrPort) (netip.AddrPort, error) {
	addr := ap.Addr().Unmap()
	switch {
	case !addr.IsValid():
		return ap, errors.New("no address")
	case addr.Zone() != "":
		return ap, fmt.Errorf("%v: an address with a zone", ap)
	case ap.Port() == 0:
		return ap, fmt.Errorf("%v: port 0", ap)
	}
	return netip.AddrPortFrom(addr, ap.Port()), nil
}
