// Package healthz serves /healthz, /livez and /readyz.
package healthz

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weirlb/weir/cmd/weir/httpserver"
)

// Health is the state of Weir that the probes report.
type Health struct {
	// Healthy is true while the packet path works: every worker runs, and the
	// publication of updates is not stuck. A late update has no part in it.
	Healthy bool
	// Reason is the reason if Healthy is false.
	Reason string
	// LastUpdated is when the last update was published.
	LastUpdated time.Time
	// Pending is for how long the present update has been pending, 0 without one.
	Pending time.Duration
	// Synced is true once the first full view of Services is published.
	Synced bool
	// Draining is true between SIGTERM and the end, and while an operator drains the node.
	Draining bool
	// Absent is why no traffic is taken on an attached interface, "" when it is
	// on all: it has been deleted, and is attached again when it is back.
	Absent string
	// NodeEligible is false when the node is being taken away: then load
	// balancers in front should prefer other nodes (KEP-3836).
	NodeEligible bool
	// NodeReason is the reason if NodeEligible is false.
	NodeReason string
}

// Source has the current Health. The handler calls it for every probe: it must
// return at once.
type Source interface {
	Health() Health
}

// proxyHealth is the body of /healthz and /livez, in kube-proxy's words.
type proxyHealth struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"` // not for /livez
	Reason       string    `json:"reason,omitempty"`
}

type readiness struct {
	Ready    bool   `json:"ready"`
	Synced   bool   `json:"synced"`
	Draining bool   `json:"draining"`
	Reason   string `json:"reason,omitempty"`
}

// Handler answers three questions; 200 is yes and 503 no.
//
//	/healthz  should load balancers in front send traffic to this node?
//	/livez    does Weir work? (or should it be restarted)
//	/readyz   has Weir taken over the traffic of this node?
//
// /healthz and /livez mean what kube-proxy's mean (KEP-3836): a node that is
// going away fails the former and not the latter, and so does a Weir that
// drains, has not seen its Services yet, or lacks a configured interface.
func Handler(src Source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := src.Health()
		eligible := h.NodeEligible && !h.Draining && h.Synced && h.Absent == ""
		answerProxy(w, h, &eligible, h.Healthy && eligible)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		h := src.Health()
		answerProxy(w, h, nil, h.Healthy)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := src.Health()
		ready := h.Healthy && h.Synced && !h.Draining && h.Absent == ""
		answer(w, ready, readiness{Ready: ready, Synced: h.Synced, Draining: h.Draining, Reason: reason(h)})
	})
	return mux
}

func answerProxy(w http.ResponseWriter, h Health, eligible *bool, ok bool) {
	now := time.Now()
	body := proxyHealth{LastUpdated: h.LastUpdated, CurrentTime: now, NodeEligible: eligible}
	if ok {
		// As kube-proxy has it: "recent" while all is well, also when
		// nothing has changed for hours.
		body.LastUpdated = now
	} else {
		body.Reason = reason(h)
	}
	answer(w, ok, body)
}

func reason(h Health) string {
	switch {
	case !h.Healthy:
		return h.Reason
	case h.Draining:
		return "draining"
	case !h.Synced:
		return "waiting for the first full view of Services"
	case h.Absent != "":
		return h.Absent
	case !h.NodeEligible:
		return cmp.Or(h.NodeReason, "the node is going away")
	}
	return ""
}

func answer(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client has closed the connection
}

// maxConnections is the most probes at the same time.
const maxConnections = 256

// Serve serves Handler(src) on l until ctx ends, and returns nil then.
func Serve(ctx context.Context, l net.Listener, src Source, log *slog.Logger) error {
	return httpserver.Serve(ctx, l, Handler(src), httpserver.Options{Limit: httpserver.NewLimit(maxConnections), Once: true, Log: log})
}
