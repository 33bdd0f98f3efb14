package api

import (
	_ "embed" // the OpenAPI document
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

//go:generate go test -run ^TestOpenAPIIsCurrent$ -update .

// route is a request that the API answers. The OpenAPI document has an operation for
// each, and a test compares the answers with it.
type route struct {
	method, path string
	summary      string
	params       []param
	// answer is a value of the type of the answer.
	answer any
	// produces is the content type of the answer; "": JSON.
	produces string
	// full is true of requests for full access: see Access.
	full   bool
	handle http.HandlerFunc
}

// param is a query parameter.
type param struct {
	name, usage string
	// kind is the type in JSON Schema; "": string.
	kind string
	// enum are the possible values, nil for any.
	enum     []string
	required bool
}

// times bound answers.
type times struct {
	stall time.Duration // after which a stuck reader is given up
	wait  time.Duration // for a place
}

// routes are all requests, by group.
func routes(src Source, t times) []route {
	// Three walks at half speed leave the workers caches and, on all but the smallest machines, CPUs.
	walks := newPlaces("a walk over the flow table", 3, t.wait)
	return slices.Concat(
		nodeRoutes(src),
		verifyRoutes(src, walks, t.wait),
		explainRoutes(src, t),
		addressRoutes(src),
		serviceRoutes(src, t),
		flowRoutes(src, walks, t.wait),
		packetRoutes(src, t.stall),
		eventRoutes(src),
		traceRoutes(src, t.wait),
		connectionRoutes(src, t.stall, walks),
		controlRoutes(src, t.wait),
		drainRoutes(src),
	)
}

//go:embed openapi.json
var openAPI []byte

// nodeRoutes are those about the node as a whole.
func nodeRoutes(src Source) []route {
	return []route{{
		method: "GET", path: "/v1/openapi.json", summary: "This document.", answer: map[string]any{},
		handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(openAPI) // the client went away
		},
	}, {
		method: "GET", path: "/v1/status", summary: "The state of the node.", answer: Status{},
		handle: func(w http.ResponseWriter, r *http.Request) {
			s, err := src.Status(r.Context())
			reply(w, s, err)
		},
	}, {
		method: "POST", path: "/v1/stop", summary: "Begin to end the daemon for good.", answer: struct{}{}, full: true,
		handle: func(w http.ResponseWriter, r *http.Request) {
			reply(w, struct{}{}, src.Stop(r.Context()))
		},
	}}
}

// explainRoutes are those about Services and frontends as they are programmed.
func explainRoutes(src Source, t times) []route {
	return []route{{
		method: "GET", path: "/v1/explain", summary: "The output of weir explain -o json.", answer: Explanation{},
		params: []param{
			{name: "service", usage: "namespace/name; absent: all Services"},
			{name: "whatIf", usage: "a change to imagine, as weir explain --what-if takes it"},
		},
		handle: explainHandler(src, t),
	}, {
		method: "GET", path: "/v1/frontends", summary: "The frontends with their endpoints.", answer: FrontendList{},
		handle: frontendsHandler(src, t),
	}}
}

// flowRoutes are those about flows.
func flowRoutes(src Source, walks *places, wait time.Duration) []route {
	return []route{{
		method: "GET", path: "/v1/flows", summary: "Flows, in the order of the table.", answer: FlowList{},
		params: slices.Concat(filterParams, []param{
			{name: "limit", kind: "integer", usage: fmt.Sprintf("how many; absent: %d, at most %d", DefaultFlowLimit, MaxFlowLimit)},
		}),
		handle: flowsHandler(src, walks, wait),
	}}
}

func explainHandler(src Source, t times) http.HandlerFunc {
	all := newPlaces("the explanation of all Services", 2, t.wait)
	return func(w http.ResponseWriter, r *http.Request) {
		q := ExplainQuery{r.FormValue("service"), r.FormValue("whatIf")}
		if q.Service == "" {
			leave := all.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
		}
		s, err := src.Explain(r.Context(), q)
		stream(w, r, t.stall, s, err)
	}
}

func frontendsHandler(src Source, t times) http.HandlerFunc {
	p := newPlaces("the list of frontends", 2, t.wait)
	return func(w http.ResponseWriter, r *http.Request) {
		leave := p.admit(w, r)
		if leave == nil {
			return
		}
		defer leave()
		s, err := src.Frontends(r.Context())
		stream(w, r, t.stall, s, err)
	}
}

func flowsHandler(src Source, walks *places, wait time.Duration) http.HandlerFunc {
	large := newPlaces(fmt.Sprintf("more than %d flows", DefaultFlowLimit), 1, wait) // memory
	return matching(func(w http.ResponseWriter, r *http.Request, m *FlowMatcher) {
		limit, err := number(r, "limit", DefaultFlowLimit, MaxFlowLimit)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		through := []*places{walks, large}
		if limit <= DefaultFlowLimit {
			through = through[:1]
		}
		for _, p := range through {
			leave := p.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
		}
		s, err := src.Flows(r.Context(), limit, m)
		reply(w, s, err)
	})
}

// number is a positive parameter of a request, absent if there is none, at most largest.
func number(r *http.Request, name string, absent, largest int) (int, error) {
	s := r.FormValue(name)
	if s == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s: expected a positive number, got %q", name, s)
	}
	return min(n, largest), nil
}

// numberFrom0 is a parameter of a request that is not negative, absent if there is none.
func numberFrom0(r *http.Request, name string, absent int) (int, error) {
	s := r.FormValue(name)
	if s == "" {
		return absent, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: expected a number, got %q", name, s)
	}
	return int(n), nil
}
