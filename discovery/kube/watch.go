package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// observer notes the outcome of the requests of informers, which do not report it. A resource is
// current as of the last list that was completed, or the last event or bookmark that was decoded;
// an answer alone proves nothing.
type observer struct {
	log *slog.Logger
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
	good     atomic.Int64 // when a list was last completed or an event decoded, in Unix nanoseconds; 0: never
	faulty   atomic.Bool  // fault is not ""
}

// repeat is how often the log says again that a fault goes on.
const repeat = time.Minute

func newObserver(log *slog.Logger) *observer {
	return &observer{log: log, away: make(chan struct{}, 1), resources: map[string]*resource{}}
}

// request is a list or watch in the context of the HTTP requests made for it.
type request struct {
	resource string
	noted    bool // the outcome of the last HTTP request is noted, or is no fault
}

type requestKey struct{}

// wrap is a transport.WrapperFunc. It notes requests that fail or are refused: the client repeats
// some of them, for many seconds, before an informer gets to know.
func (o *observer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		q, _ := r.Context().Value(requestKey{}).(*request)
		if q == nil || r.Context().Err() != nil {
			return res, err
		}
		q.noted = true
		if err != nil {
			o.failed(q.resource, err.Error())
			o.setUnreachable()
			return res, err
		}
		o.answered.Store(true)
		switch {
		case res.StatusCode < 300:
			q.noted = false
		case res.StatusCode == http.StatusGone || withoutWatchList(r, res):
		case res.StatusCode >= 400:
			o.failed(q.resource, res.Status)
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
	r.faulty.Store(true)
}

func (o *observer) succeeded(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.resourceNamed(name)
	if r.fault != "" {
		o.log.Info("watching the cluster again", "resource", name, "after", time.Since(r.since).Round(time.Millisecond))
	}
	r.fault, r.said = "", time.Time{}
	r.faulty.Store(false)
	r.good.Store(time.Now().UnixNano())
}

// watchFailed returns a handler of the errors that end an attempt of an informer. Left for it are
// those that no request has noted, as of a list that cannot be understood.
func (o *observer) watchFailed(name string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) || isExpired(err) {
			return
		}
		o.mu.Lock()
		noted := o.resourceNamed(name).fault != ""
		o.mu.Unlock()
		if !noted {
			o.failed(name, err.Error())
		}
	}
}

// isExpired reports whether the API server has forgotten the version from which a watch is to go
// on. The informer lists again, and the outcome of that counts.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

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
