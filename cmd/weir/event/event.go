// Package event is the list of the last changes that an operator asks about: another tier in
// use, an endpoint that came or went, an interface that is absent.
//
// A Ring keeps the last 1,000 events in bounded memory. An event that repeats within
// ten minutes is counted in place of being kept again, and a flood of events of a kind is
// counted as a whole. No packet makes an event. The events end with the process.
package event

import "time"

// Kind is the kind of an event. The set is fixed.
type Kind string

// Kinds of events.
const (
	Start           Kind = "start"
	Drain           Kind = "drain"
	Reload          Kind = "reload"
	Objects         Kind = "objects"
	AddressTaken    Kind = "address-taken"
	AddressGivenUp  Kind = "address-given-up"
	TwoOwners       Kind = "two-owners"
	ServiceAdded    Kind = "service-added"
	ServiceRemoved  Kind = "service-removed"
	TierChanged     Kind = "tier-changed"
	EndpointAdded   Kind = "endpoint-added"
	EndpointRemoved Kind = "endpoint-removed"
	EndpointChanged Kind = "endpoint-changed"
	SourceLost      Kind = "source-lost"
	SourceBack      Kind = "source-back"
	InterfaceAbsent Kind = "interface-absent"
	InterfaceBack   Kind = "interface-back"
	WorkerStalled   Kind = "worker-stalled"
	WorkerBack      Kind = "worker-back"
	FlowTableFull   Kind = "flow-table-full"
	SNATPortsInUse  Kind = "snat-ports-exhausted"
	ProblemBegan    Kind = "problem-began"
	ProblemEnded    Kind = "problem-ended"
)

// Kinds are all kinds with their meaning, in the order of the reference.
var Kinds = []struct {
	Kind Kind
	Text string
}{
	{Start, "Traffic is taken since then."},
	{Drain, "A step of a drain."},
	{Reload, "The configuration was read again."},
	{Objects, "Objects of the API server for the announcement were read again."},
	{AddressTaken, "This node answers ARP and neighbor discovery for an address."},
	{AddressGivenUp, "It does so no more."},
	{TwoOwners, "Another host was heard to claim an address of this node."},
	{ServiceAdded, "A Service got frontends."},
	{ServiceRemoved, "A Service lost all frontends."},
	{TierChanged, "New flows of a Service port go to endpoints of another tier."},
	{EndpointAdded, "A Service port has a new endpoint."},
	{EndpointRemoved, "A Service port has an endpoint no longer."},
	{EndpointChanged, "An endpoint became ready, not-ready, terminating or terminated, or its health changed."},
	{SourceLost, "The source of Services does not answer, or has errors."},
	{SourceBack, "The source of Services answers again, or an error is mended."},
	{InterfaceAbsent, "A configured interface is not attached."},
	{InterfaceBack, "It is attached again."},
	{WorkerStalled, "A worker does not finish a round."},
	{WorkerBack, "It goes on."},
	{FlowTableFull, "New connections were refused: the flow table is full."},
	{SNATPortsInUse, "New connections were refused: all SNAT ports are in use."},
	{ProblemBegan, "Another problem of `weir status` began."},
	{ProblemEnded, "It ended."},
}

// Event is a change, or several equal changes.
type Event struct {
	// Number orders events by their last occurrence. An event that repeats gets a new number.
	Number uint64 `json:"number"`
	Kind   Kind   `json:"kind"`
	// Severity is error, warning or note.
	Severity Severity `json:"severity"`
	// Service is namespace/name, for events of Services.
	Service string `json:"service,omitempty"`
	// Object is the subject of other events: "Interface eth0", "Worker 1".
	Object string `json:"object,omitempty"`
	// Text is a sentence without a full stop, of the last occurrence.
	Text string `json:"text"`
	// Count is how often the event occurred from First to Last.
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Severity is how much an event matters.
type Severity string

// Severities, as of problems.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// Filter selects events. The zero value selects all.
type Filter struct {
	Kind    Kind      // "": any
	Service string    // namespace/name; "": any
	Since   time.Time // of the last occurrence; zero: any
	After   uint64    // events with a higher Number
	Limit   int       // the last so many; 0: all
}

func (f *Filter) matches(e *Event) bool {
	return e.Number > f.After && (f.Kind == "" || f.Kind == e.Kind) &&
		(f.Service == "" || f.Service == e.Service) && !e.Last.Before(f.Since)
}

// Known reports whether there are events of the kind.
func Known(k Kind) bool {
	for _, d := range Kinds {
		if d.Kind == k {
			return true
		}
	}
	return false
}
