package topology

import "slices"

// Health is what a node knows of an endpoint beside the conditions of its slice.
type Health struct {
	Refused bool // no packet may go there, in no state
	Drained bool // by the operator
	Failing bool // the health check of the Service fails
	Ejected bool // handshakes fail, and a connection of the node's own does, too
}

// Readiness returns the endpoints of a Service port and family as a node uses them: conditions and
// health combined. All choices follow from the result, and no choice looks at Health.
//
//	conditions              Drained      Failing or Ejected   Refused
//	ready                   terminating  not ready            not ready
//	terminating, serving    as it is     terminated           not ready
//	terminated, not ready   as it is     as it is             not ready
//
// If no endpoint is ready or serving by that, Failing does not count: a check may be wrong, and an ejection
// follows from connections. If there is none still, Ejected does not count either. If closed is set, Failing
// always counts, and Ejected does not if there is none. eps is not changed.
func Readiness(eps []Endpoint, health func(*Endpoint) Health, closed bool) []Endpoint {
	var list []Health // nil: all zero
	for i := range eps {
		h := health(&eps[i])
		if list == nil && h != (Health{}) {
			list = make([]Health, len(eps))
		}
		if list != nil {
			list[i] = h
		}
	}
	if list == nil {
		return eps
	}
	out := slices.Clone(eps)
	ignore := []Health{{}, {Failing: true}, {Failing: true, Ejected: true}}
	if closed {
		ignore = []Health{{}, {Ejected: true}}
	}
	for _, ignored := range ignore {
		copy(out, eps)
		for i := range out {
			h := list[i]
			out[i].apply(h.Refused, h.Drained, h.Failing && !ignored.Failing || h.Ejected && !ignored.Ejected)
		}
		if slices.ContainsFunc(out, func(e Endpoint) bool { return e.Ready || e.fallback() }) {
			break
		}
	}
	return out
}

// apply changes the conditions of an endpoint to those that its health leaves.
func (e *Endpoint) apply(refused, drained, fails bool) {
	switch {
	case refused:
		e.Ready, e.Serving, e.Terminating = false, false, false
	case fails && (e.Ready || e.Terminating):
		e.Ready, e.Serving = false, false
	case drained && e.Ready:
		e.Ready, e.Serving, e.Terminating = false, true, true
	}
}
