package demo

import (
	"fmt"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// condition is the state of an endpoint in the slices.
type condition uint8

const (
	absent      condition = iota // in no slice
	ready                        // ready and serving
	terminating                  // not ready, but serving while it terminates
)

// backend is a server behind Weir; there are three.
type backend struct {
	name string // of the pod and of the server
	node string
	zone string
	// network and host number of the address in the lab
	network, host uint8
}

// Endpoints in the order of the tables' columns.
var backends = []backend{
	{name: "web-edge", node: "edge-1", zone: "zone-a", network: 40, host: 2},
	{name: "web-zone-a", node: "node-a", zone: "zone-a", network: 20, host: 11},
	{name: "web-zone-b", node: "node-b", zone: "zone-b", network: 30, host: 12},
}

// phase is a state of the endpoints and the expected outcome.
type phase struct {
	letter rune
	title  string
	state  [3]condition // of backends, in their order
	tier   string       // that Weir must choose
	serve  [3]bool      // backends that must get new connections
}

var phases = []phase{
	{letter: 'a', title: "all endpoints ready, with zone hints", state: [3]condition{ready, ready, ready},
		tier: "same-zone", serve: [3]bool{true, true, false}},
	{letter: 'b', title: "the endpoints of this zone are lost", state: [3]condition{absent, absent, ready},
		tier: "all", serve: [3]bool{false, false, true}},
	{letter: 'c', title: "only terminating endpoints are left, still serving", state: [3]condition{absent, absent, terminating},
		tier: "terminating", serve: [3]bool{false, false, true}},
	{letter: 'd', title: "no endpoint is left: new connections are refused at once", tier: "none"},
	{letter: 'e', title: "all endpoints are back", state: [3]condition{ready, ready, ready},
		tier: "same-zone", serve: [3]bool{true, true, false}},
}

// served reports whether any endpoint gets new connections.
func (p phase) served() bool { return p.serve != [3]bool{} }

// row is the outcome of a kind of traffic in a phase.
type row struct {
	stream *stream
	// changing holds the requests that began while the manifests changed
	// and Weir had not yet confirmed it, steady the others.
	changing, steady *workload.Record
}

// result is the outcome of a phase.
type result struct {
	rows      []row
	downloads []int64 // bytes that each download had moved at the end
	broken    []error // of downloads, nil while unbroken
}

// faults lists the violated expectations.
func (r *result) faults(p phase) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("(%c) ", p.letter)+fmt.Sprintf(format, args...))
	}
	for _, row := range r.rows {
		name := row.stream.name
		all := &workload.Record{}
		all.Merge(row.changing)
		all.Merge(row.steady)
		switch {
		case row.steady.Requests() == 0:
			add("%s: no requests", name)
		case p.served() || row.stream.keepAlive:
			// Weir's promise: no request fails. While endpoints return from "none",
			// refusals are the right answer.
			if n := row.steady.Failed(); n > 0 {
				add("%s: %v", name, row.steady.Err())
			}
			if n := row.changing.Failed() - row.changing.Failures()[workload.KindRefused]; n > 0 ||
				p.letter != 'e' && row.changing.Failed() > 0 {
				add("%s, while the endpoints changed: %v", name, row.changing.Err())
			}
		default:
			if answered := row.steady.Requests() - row.steady.Failed(); answered > 0 {
				add("%s: %d requests were answered by %v", name, answered, row.steady.Servers())
			}
			if n := all.Failed() - all.Failures()[workload.KindRefused]; n > 0 {
				add("%s: %d requests failed otherwise than refused: %v", name, n, all.Err())
			}
		}
		if !row.stream.keepAlive {
			out = append(out, r.strangers(p, row)...)
		}
	}
	for i, err := range r.broken {
		if err != nil {
			add("long download %d broke: %v", i+1, err)
		}
	}
	return out
}

// strangers lists backends that got new connections and must not, or must
// and did not.
func (r *result) strangers(p phase, row row) []string {
	var out []string
	got := row.steady.Servers()
	for i, b := range backends {
		if (got[b.name] > 0) != p.serve[i] {
			out = append(out, fmt.Sprintf("(%c) %s: %s took %d new connections", p.letter, row.stream.name, b.name, got[b.name]))
		}
	}
	return out
}
