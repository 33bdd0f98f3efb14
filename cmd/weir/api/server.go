package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/httpserver"
)

// How many flows /v1/flows gives: when not told, and at most. A list of a
// million would cost the daemon half a gigabyte.
const (
	DefaultFlowLimit = 1000
	MaxFlowLimit     = 100_000
)

// maxConnections is the most connections of the admin socket at the same time.
const maxConnections = 256

// Source provides the answers of a daemon. Methods are called concurrently,
// must not block a worker, and must return when ctx ends.
type Source interface {
	Status(ctx context.Context) (*Status, error)
	// Explain has the fields of `weir explain -o json`.
	Explain(ctx context.Context, q ExplainQuery) (Stream, error)
	// Flows lists at most limit flows that match.
	Flows(ctx context.Context, limit int, match *FlowMatcher) (*FlowList, error)
	// Frontends has the fields of a FrontendList.
	Frontends(ctx context.Context) (Stream, error)
	// Verify checks the invariants of the flow table.
	Verify(ctx context.Context) (*Verification, error)
	// ServiceStates has the fields of a ServiceList, of a Service or, for "", of all.
	ServiceStates(service string) (Stream, error)
	// EndpointStates has the fields of an EndpointList.
	EndpointStates(service string) (Stream, error)
	// Events are those that match, the last at the end, and the number of the last of all.
	Events(f *event.Filter) (list []event.Event, last uint64, err error)
	// Stop begins to end the daemon for good, and does not wait.
	Stop(ctx context.Context) error

	AddressSource
	ConnectionSource
	PacketSource
	TraceSource
	ControlSource
	DrainSource
}

// ExplainQuery selects the Services to explain.
type ExplainQuery struct {
	Service string // namespace/name; "": all
	WhatIf  string // a change to imagine, as `weir explain --what-if` takes it; "": none
}

// ErrNotFound is returned by a Source for a Service that does not exist.
var ErrNotFound = errors.New("not found")

// ErrInvalid is returned by a Source for a request that cannot be understood.
var ErrInvalid = errors.New("invalid request")

// ErrTooMany is returned by a Source for a request of which as many are answered as may be.
var ErrTooMany = errors.New("try again later")

// Serve serves src on l, which is a UNIX socket, until ctx ends, then closes l, which removes
// the socket, and returns nil.
func Serve(ctx context.Context, l net.Listener, src Source, access Access, log *slog.Logger) error {
	gid, err := access.gid()
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	g := &guard{access, gid, log}
	err = httpserver.Serve(ctx, l, handler(src, usual, g.check), httpserver.Options{
		Limit: httpserver.NewLimit(maxConnections), ConnContext: g.connContext, WriteTimeout: answerTime, Log: log,
	})
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// Handler is the API over src, without a check of the client.
func Handler(src Source) http.Handler {
	return handler(src, usual, func(*http.Request, *route) error { return nil })
}

// usual are the times but in tests.
var usual = times{stall: readerStall, wait: admitTime}

// handler is Handler with other times, and a check.
func handler(src Source, t times, check func(*http.Request, *route) error) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes(src, t) {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, req *http.Request) {
			if err := check(req, &r); err != nil {
				refuse(w, http.StatusForbidden, err)
				return
			}
			r.serve(w, req)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Errorf("%s %s%s", r.Method, r.URL.Path, noSuchRequest))
	})
	return mux
}

// noSuchRequest ends the error of an unknown request, by which a client of another version
// knows it.
const noSuchRequest = ": there is no such thing here"

// serve refuses parameters that cannot be read, and answers.
func (r *route) serve(w http.ResponseWriter, req *http.Request) {
	if err := r.check(req); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	r.handle(w, req)
}

// check reads the parameters of a request, of the query and of a form in the body. An unknown
// or misspelt parameter, or the second of a name, might be a filter: without it more
// connections than meant would match.
func (r *route) check(req *http.Request) error {
	if t, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); strings.HasPrefix(t, "multipart/") {
		return errors.New("the body must be application/x-www-form-urlencoded")
	}
	if err := req.ParseForm(); err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(req.Form)) {
		if !slices.ContainsFunc(r.params, func(p param) bool { return p.name == name }) {
			return fmt.Errorf("%s: unknown parameter", name)
		}
		if n := len(req.Form[name]); n > 1 {
			return fmt.Errorf("%s: there are %d of it", name, n)
		}
	}
	return nil
}

func reply(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		refuse(w, http.StatusNotFound, err)
	case errors.Is(err, ErrTooMany):
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, err)
	case errors.Is(err, ErrInvalid):
		refuse(w, http.StatusBadRequest, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	default:
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(v) // the client went away
	}
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(Failure{err.Error()})
}
