// Package kube is the discovery source that watches a cluster: Services,
// EndpointSlices, Nodes and, where asked for, legacy Endpoints, through
// client-go's informers.
//
// Nothing is told before everything that the API server knew at start has
// come: the first Update is a full view. A list that is taken again, after a
// watch was lost, tells only what really changed. While the API server is
// away the last view stays. A source that starts while it is away, and is
// given what an earlier one knew (Config.LastKnown), tells that, says so
// (Source.LastKnown), and replaces it as a whole with the first full view.
//
// The informers hand their events to one goroutine, which coalesces them: an
// object that changes ten times between two Updates costs one look at it, and
// a storm costs a bounded share of one CPU.
package kube

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
)

// Config says which cluster is watched, and what of it.
type Config struct {
	// REST reaches the API server; see ClientConfig.
	REST *rest.Config
	// Store is how the objects are put together. Its ServiceProxyName
	// chooses the Services, as the label service.kubernetes.io/
	// service-proxy-name does: "" takes those without it.
	Store discovery.Options
	// LabelSelector narrows the Services, in the syntax of kubectl -l.
	LabelSelector string
	// LegacyEndpoints watches Endpoints too. Where the mirroring controller
	// runs, as in every cluster of kube-controller-manager, that is not
	// needed.
	LegacyEndpoints bool
	// LastKnown, if not nil, is what an earlier source knew (Source.Objects)
	// at LastKnownTime. It is told when the API server does not answer.
	LastKnown     *Objects
	LastKnownTime time.Time
	// Patience is how long an API server that answers, be it with errors,
	// may take to tell everything before LastKnown is told; 0 is 3 s: a
	// reflector asks again within 1.6 s of a refusal.
	Patience time.Duration
	// Silence is how long an API server may take for its first answer to
	// anything; 0 is 1 s. One that cannot be connected with is not waited
	// for at all.
	Silence time.Duration
	// Events has Complain record Events.
	Events bool
	// EventRetry is how long an Event waits that could not be recorded; 0 is 10 s.
	EventRetry time.Duration
	// Concerns reports whether this node has frontends of a Service: there are
	// Events on these alone. Nil: on all.
	Concerns func(*discovery.Service) bool
	// Log gets what happens; nil is slog.Default.
	Log *slog.Logger
	// Measure gets latencies, if not nil.
	Measure Measure
}

// Measure gets latencies. Its methods are called from the goroutine of Run.
type Measure interface {
	// Programmed is the time from the change of a Pod or Service, as the
	// slice controller noted it in the annotation
	// endpoints.kubernetes.io/last-change-trigger-time, until deliver
	// returned: the network programming latency of SIG Scalability.
	Programmed(d time.Duration)
	// Delivered is the time from the oldest event in an Update until
	// deliver returned.
	Delivered(d time.Duration)
}

// Source watches a cluster. Its methods may be called from any goroutine; Run
// only once.
type Source struct {
	cfg      Config
	log      *slog.Logger
	client   kubernetes.Interface
	selector labels.Selector // of Services
	watch    *observer
	queue    queue
	node     nodeState

	mu        sync.Mutex       // guards what follows
	store     *discovery.Store // written by Run alone
	informers []informer
	synced    bool
	lastKnown bool // what is told is LastKnown
	report    *reporter
}

// New makes a source that has asked nothing yet.
func New(cfg Config) (*Source, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 3 * time.Second
	}
	if cfg.Silence <= 0 {
		cfg.Silence = time.Second
	}
	if cfg.EventRetry <= 0 {
		cfg.EventRetry = 10 * time.Second
	}
	s := &Source{cfg: cfg, log: cfg.Log, store: discovery.NewStore(cfg.Store)}
	s.queue.init()
	s.node.name = cfg.Store.NodeName
	var err error
	if s.selector, err = serviceSelector(cfg.Store.ServiceProxyName, cfg.LabelSelector); err != nil {
		return nil, err
	}
	rc := rest.CopyConfig(cfg.REST)
	s.watch = newObserver(cfg.Log)
	rc.Wrap(s.watch.wrap)
	if s.client, err = kubernetes.NewForConfig(rc); err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	s.report = newReporter(s, cfg.Events)
	return s, nil
}

// Services are all Services as last delivered, sorted by name.
func (s *Source) Services() []*discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.All()
}

// Stats are the counters of the store.
func (s *Source) Stats() discovery.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Stats()
}

// LastKnown reports whether what was delivered is not of the API server but
// Config.LastKnown, and of when that is.
func (s *Source) LastKnown() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.LastKnownTime, s.lastKnown
}

// Synced reports whether a full view of the API server was delivered.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Errors says what is wrong now: what cannot be listed or watched.
func (s *Source) Errors() []string {
	out := s.watch.errors()
	if at, ok := s.LastKnown(); ok {
		out = append(out, fmt.Sprintf("kubernetes: the API server has not told its state yet: serving what was known at %s", at.Format(time.RFC3339)))
	}
	return out
}

// WatchErrors counts, by resource, the requests to list or watch that were
// refused or cut short.
func (s *Source) WatchErrors() map[string]uint64 { return s.watch.counts() }

// String is "kubernetes SERVER".
func (s *Source) String() string { return "kubernetes " + s.cfg.REST.Host }

// Reload does nothing: a cluster is always watched.
func (s *Source) Reload() {}

// Complain records an Event of type Warning on a Service, within the limits of
// all Events, unless text is that of its last one. Only the newest waits to be
// recorded; an empty text takes it back.
func (s *Source) Complain(name discovery.ServiceName, reason, text string) {
	s.report.complain(name, event{reason: reason, text: text})
}

// NodeEligible reports whether load balancers in front should send traffic to
// this node, and if not why. A node that the cluster has never known is
// eligible.
func (s *Source) NodeEligible() (bool, string) { return s.node.eligible() }
