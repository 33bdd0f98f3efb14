package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Drains are the drains that an operator has asked for. They
// outlive a restart and a crash, and end with a stop.
type Drains struct {
	// Self is true while the health endpoints fail for weir drain self.
	Self      bool       `json:"self"`
	SelfSince *time.Time `json:"selfSince,omitempty"`
	// Connections are those of the node that a drain waits for: answered and not over.
	Connections int `json:"connections"`
	// LingerSeconds is the time for which packets may still come after the node has withdrawn
	// the announced addresses.
	LingerSeconds float64 `json:"lingerSeconds,omitempty"`
	// Endpoints are those that get no new connections while others are ready.
	Endpoints []DrainedEndpoint `json:"endpoints"`
}

// DrainedEndpoint is an endpoint that weir drain endpoint named.
type DrainedEndpoint struct {
	Endpoint string    `json:"endpoint"` // address:port, or an address for all ports
	Since    time.Time `json:"since"`
}

// DrainSource drains endpoints and the node.
type DrainSource interface {
	Drains(ctx context.Context) (*Drains, error)
	// DrainEndpoints drains endpoints, all or none of them.
	DrainEndpoints(ctx context.Context, endpoints []string, undo bool) (*Drains, error)
	// DrainSelf lets the health endpoints fail, while new connections are still taken.
	DrainSelf(ctx context.Context, undo bool) (*Drains, error)
}

// drainRoutes are those that drain.
func drainRoutes(src Source) []route {
	undo := param{name: "undo", kind: "boolean", usage: "end the drain"}
	return []route{{
		method: "GET", path: "/v1/drains", summary: "The drains that an operator has asked for.", answer: Drains{},
		handle: func(w http.ResponseWriter, r *http.Request) {
			s, err := src.Drains(r.Context())
			reply(w, s, err)
		},
	}, {
		method: "POST", path: "/v1/drains/endpoints", summary: "Give endpoints no new connections while others are ready.",
		answer: Drains{}, full: true,
		params: []param{{name: "endpoints", usage: "ADDRESS or ADDRESS:PORT, separated by commas", required: true}, undo},
		handle: undoing(func(w http.ResponseWriter, r *http.Request, undo bool) {
			list := strings.FieldsFunc(r.FormValue("endpoints"), func(c rune) bool { return c == ',' })
			if len(list) == 0 {
				refuse(w, http.StatusBadRequest, fmt.Errorf("endpoints: at least one is required"))
				return
			}
			s, err := src.DrainEndpoints(r.Context(), list, undo)
			reply(w, s, err)
		}),
	}, {
		method: "POST", path: "/v1/drains/self", summary: "Let the health endpoints fail, while new connections are still taken.",
		answer: Drains{}, full: true, params: []param{undo},
		handle: undoing(func(w http.ResponseWriter, r *http.Request, undo bool) {
			s, err := src.DrainSelf(r.Context(), undo)
			reply(w, s, err)
		}),
	}}
}

// undoing gives the handler the parameter undo.
func undoing(handle func(http.ResponseWriter, *http.Request, bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		undo, err := false, error(nil)
		if s := r.FormValue("undo"); s != "" {
			if undo, err = strconv.ParseBool(s); err != nil {
				refuse(w, http.StatusBadRequest, fmt.Errorf("undo: must be true or false, is %q", s))
				return
			}
		}
		handle(w, r, undo)
	}
}

// Drains asks for the drains that an operator has asked for.
func (c *Client) Drains(ctx context.Context) (*Drains, error) {
	return get[Drains](ctx, c.daemon, "/v1/drains", nil)
}

// DrainEndpoints drains endpoints, or ends that.
func (c *Client) DrainEndpoints(ctx context.Context, endpoints []string, undo bool) (*Drains, error) {
	v := url.Values{"endpoints": {strings.Join(endpoints, ",")}, "undo": {strconv.FormatBool(undo)}}
	return send[Drains](ctx, c.daemon, http.MethodPost, "/v1/drains/endpoints", v)
}

// DrainSelf drains the node, or ends that.
func (c *Client) DrainSelf(ctx context.Context, undo bool) (*Drains, error) {
	return send[Drains](ctx, c.daemon, http.MethodPost, "/v1/drains/self", url.Values{"undo": {strconv.FormatBool(undo)}})
}
