package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ConnectionQuery asks for a part of the connections.
type ConnectionQuery struct {
	Match *FlowMatcher
	Limit int    // most connections in the answer; 0: all
	After uint32 // ConnectionList.Next of the answer before
}

// ConnectionList is the answer to /v1/connections.
type ConnectionList struct {
	Total       uint64 `json:"total"` // in the table, whether or not they match
	Connections []Flow `json:"connections"`
	// Next is the parameter after of the request for those that follow; absent: there are
	// none.
	Next uint32 `json:"next,omitempty"`
}

// ConnectionCount is the answer to /v1/connections/count.
type ConnectionCount struct {
	Matched uint64 `json:"matched"`
	// Groups have the most connections first.
	Groups []ConnectionGroup `json:"groups"`
	// Others are the connections of groups that are not listed.
	Others uint64 `json:"others"`
	// Error is by how much a count may be too low: more than 65,536 groups are not kept
	// apart, and small groups are given up then (Misra and Gries, 1982).
	Error uint64 `json:"error"`
}

// ConnectionGroup is a group of connections.
type ConnectionGroup struct {
	Key   string `json:"key"`
	Count uint64 `json:"count"`
}

// Killed is the answer to /v1/connections/kill.
type Killed struct {
	Killed uint64 `json:"killed"`
}

// CountKeys are the values of by in /v1/connections/count. A client prefix is a /24 of IPv4
// or a /64 of IPv6.
var CountKeys = []string{"service", "frontend", "endpoint", "client", "client-prefix", "state", "protocol", "mode"}

// ConnectionSource answers about connections. The methods look at every connection, in parts,
// and hold nothing meanwhile.
type ConnectionSource interface {
	// Connections has the fields of a ConnectionList.
	Connections(ctx context.Context, q ConnectionQuery) (Stream, error)
	CountConnections(ctx context.Context, match *FlowMatcher, by string, limit int) (*ConnectionCount, error)
	// KillConnections removes the connections that match from the flow table.
	KillConnections(ctx context.Context, match *FlowMatcher) (*Killed, error)
}

// filterParams are the parameters of a FlowFilter.
var filterParams = []param{
	{name: "client", usage: "address, address:port or CIDR"},
	{name: "frontend", usage: "address, address:port or CIDR"},
	{name: "endpoint", usage: "address, address:port or CIDR"},
	{name: "service", usage: "namespace/name"},
	{name: "state", usage: "a state such as established, or a part of the name"},
	{name: "protocol", usage: "TCP, UDP or SCTP"},
	{name: "minAge", usage: "a duration such as 90s: made at least so long ago"},
	{name: "maxAge", usage: "a duration: made at most so long ago"},
	{name: "minIdle", usage: "a duration: without a packet for at least so long"},
}

// connectionRoutes are those about connections.
func connectionRoutes(src Source, stall time.Duration, walks *places) []route {
	return []route{{
		method: "GET", path: "/v1/connections", summary: "Connections that match, in the order of the table.", answer: ConnectionList{},
		params: slices.Concat(filterParams, []param{
			{name: "limit", kind: "integer", usage: fmt.Sprintf("how many; absent: %d; 0: all", DefaultFlowLimit)},
			{name: "after", kind: "integer", usage: "next of the answer before"},
		}),
		handle: matching(func(w http.ResponseWriter, r *http.Request, m *FlowMatcher) {
			q := ConnectionQuery{Match: m}
			after, err := numberFrom0(r, "after", 0)
			if err == nil {
				q.Limit, err = numberFrom0(r, "limit", DefaultFlowLimit)
			}
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			q.After = uint32(after)
			leave := walks.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
			s, err := src.Connections(r.Context(), q)
			stream(w, r, stall, s, err)
		}),
	}, {
		method: "GET", path: "/v1/connections/count", summary: "How many connections match, by group.", answer: ConnectionCount{},
		params: slices.Concat(filterParams, []param{
			{name: "by", usage: "what connections of a group have in common", enum: CountKeys, required: true},
			{name: "limit", kind: "integer", usage: "how many groups; absent: 20, at most 1000"},
		}),
		handle: matching(func(w http.ResponseWriter, r *http.Request, m *FlowMatcher) {
			limit, err := number(r, "limit", 20, 1000)
			by := r.FormValue("by")
			if err == nil && !slices.Contains(CountKeys, by) {
				err = fmt.Errorf("by: expected %s, got %q", strings.Join(CountKeys, ", "), by)
			}
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			leave := walks.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
			c, err := src.CountConnections(r.Context(), m, by, limit)
			reply(w, c, err)
		}),
	}, {
		method: "POST", path: "/v1/connections/kill", summary: "Remove connections that match from the flow table; a filter is required.",
		params: filterParams, answer: Killed{}, full: true,
		handle: matching(func(w http.ResponseWriter, r *http.Request, m *FlowMatcher) {
			if m.Any() {
				refuse(w, http.StatusBadRequest, fmt.Errorf("a filter is required: without one every connection would be removed"))
				return
			}
			leave := walks.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
			k, err := src.KillConnections(r.Context(), m)
			reply(w, k, err)
		}),
	}}
}

// matching gives the handler the filter of the request.
func matching(handle func(http.ResponseWriter, *http.Request, *FlowMatcher)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := filterOf(r)
		if err == nil {
			var m *FlowMatcher
			if m, err = f.Matcher(); err == nil {
				handle(w, r, m)
				return
			}
		}
		refuse(w, http.StatusBadRequest, err)
	}
}
