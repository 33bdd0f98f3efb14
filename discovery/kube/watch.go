package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
)

// observer sees every request of the informers: it has the resources that cannot be listed
// or watched right now, which the informers do not report.
type observer struct {
	log *slog.Logger
	// name is the resource of a request, "" for one that is not observed.
	name func(path string) string
	// away gets a value when the API server cannot be connected with.
	away chan struct{}
	// answered is true once it has answered anything at all.
	answered atomic.Bool

	mu        sync.Mutex
	resources map[string]*resource
}

// resource is the state of the requests for a kind of object.
type resource struct {
	failures uint64
	fault    string       // "" while all is well
	since    time.Time    // of the first fault in a row
	said     time.Time    // when it was last logged
	last     atomic.Int64 // when the API server last said something about it, in Unix nanoseconds; 0: never
}

// repeat is how often the log says again that a fault goes on.
const repeat = time.Minute

func newObserver(log *slog.Logger, name func(path string) string) *observer {
	return &observer{log: log, name: name, away: make(chan struct{}, 1), resources: map[string]*resource{}}
}

// watched are the resources that informers ask for.
var watched = []string{"services", "endpointslices", "nodes", "endpoints"}

// watchedName is the resource of a request of a Source's informers.
func watchedName(path string) string {
	if name := path[strings.LastIndexByte(path, '/')+1:]; slices.Contains(watched, name) {
		return name
	}
	return ""
}

// wrap is a transport.WrapperFunc.
func (o *observer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		name := o.name(r.URL.Path)
		if r.Method != http.MethodGet || name == "" || r.Context().Err() != nil {
			return res, err
		}
		if err != nil {
			o.failed(name, err.Error())
			o.setUnreachable()
			return res, err
		}
		o.answered.Store(true)
		switch {
		case res.StatusCode == http.StatusGone || withoutWatchList(r, res):
		case res.StatusCode >= 400:
			o.failed(name, res.Status)
		case res.StatusCode < 300:
			res.Body = &responseBody{res.Body, o.succeeded(name)}
		}
		return res, err
	})
}

// withoutWatchList reports whether a server refuses to begin a watch with a list
// (KEP-3157), the default before Kubernetes 1.32. The reflector lists instead.
func withoutWatchList(r *http.Request, res *http.Response) bool {
	return r.URL.Query().Has("sendInitialEvents") &&
		(res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusUnprocessableEntity)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (o *observer) setUnreachable() {
	select {
	case o.away <- struct{}{}:
	default:
	}
}

func (o *observer) resourceNamed(name string) *resource {
	r := o.resources[name]
	if r == nil {
		r = &resource{}
		o.resources[name] = r
	}
	return r
}

func (o *observer) failed(name, fault string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, now := o.resourceNamed(name), time.Now()
	r.failures++
	if r.fault == "" {
		r.since = now
	}
	if fault != r.fault && now.Sub(r.said) > time.Second || now.Sub(r.said) > repeat {
		r.said = now
		o.log.Warn("cannot watch the cluster: what is known stays", "resource", name, "err", fault, "since", r.since)
	}
	r.fault = fault
}

// responseBody notes when something is read of a response: a watch is a response that lasts
// for minutes, with bookmarks in between.
type responseBody struct {
	io.ReadCloser
	of *resource
}

func (h *responseBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 {
		h.of.last.Store(time.Now().UnixNano())
	}
	return n, err
}

func (o *observer) succeeded(name string) *resource {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.resourceNamed(name)
	if r.fault != "" {
		o.log.Info("watching the cluster again", "resource", name, "after", time.Since(r.since).Round(time.Millisecond))
	}
	r.fault, r.said = "", time.Time{}
	r.last.Store(time.Now().UnixNano())
	return r
}

// watchFailed is a cache.WatchErrorHandlerWithContext. The observer itself notes refused
// requests; left are streams that broke off or could not be decoded.
func (o *observer) watchFailed(ctx context.Context, _ *cache.Reflector, err error) {
	if err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil {
		return
	}
	o.log.Debug("watch ended", "err", err)
}

// errors are the present failures, sorted.
func (o *observer) errors() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for name, r := range o.resources {
		if r.fault != "" {
			out = append(out, fmt.Sprintf("kubernetes: cannot watch %s since %s: %s", name, r.since.Format(time.RFC3339), r.fault))
		}
	}
	slices.Sort(out)
	return out
}

func (o *observer) counts() map[string]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]uint64{}
	for name, r := range o.resources {
		out[name] = r.failures
	}
	return out
}
