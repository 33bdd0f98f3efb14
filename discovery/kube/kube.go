// Package kube is the discovery source that watches a cluster: Services,
// EndpointSlices, Nodes and, where asked for, legacy Endpoints, through
// client-go's informers.
//
// Nothing is delivered before all objects of the API server at start have come: the first
// Update is a full view. A list that is taken again, after a watch was lost, delivers only
// real changes. While the API server is unreachable the last view stays. A source that
// starts meanwhile, with the objects of an earlier source (Config.LastKnown), delivers
// those, reports it (Source.LastKnown), and replaces them as a whole with the first full
// view.
//
// The informers hand all events to a single goroutine, which coalesces them: an object that
// changes ten times between two Updates costs a single look at it, and a storm costs a
// bounded share of a CPU.
package kube

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube/client"
)

// Config selects the cluster and the objects to watch.
type Config struct {
	// REST reaches the API server; see ClientConfig.
	REST *rest.Config
	// Store has the options for merging the objects. ServiceProxyName chooses the
	// Services, as the label service.kubernetes.io/ service-proxy-name does: "" takes
	// those without it.
	Store discovery.Options
	// LabelSelector narrows the Services, in the syntax of kubectl -l.
	LabelSelector string
	// LegacyEndpoints watches Endpoints too. Where the mirroring controller
	// runs, as in every cluster of kube-controller-manager, that is not
	// needed.
	LegacyEndpoints bool
	// LastKnown, if not nil, has the objects of an earlier source (Source.Objects) at
	// LastKnownTime. They are delivered when the API server does not answer.
	LastKnown     *Objects
	LastKnownTime time.Time
	// LastValid are the last valid versions of Services that were invalid in an earlier
	// source (Objects.Valid), however old they are.
	LastValid []*corev1.Service
	// Patience is how long an API server that answers, even with errors, may take to
	// deliver everything before LastKnown is delivered; 0 is 3 s: a reflector asks again
	// within 1.6 s of a refusal.
	Patience time.Duration
	// Silence is the time limit of an API server for the first answer to any request; 0 is
	// 1 s. An unreachable server is not waited for at all.
	Silence time.Duration
	// Events has Complain and Tell record Events.
	Events bool
	// EventRetry is how long an Event waits that could not be recorded; 0 is 10 s.
	EventRetry time.Duration
	// Concerns reports whether this node has frontends of a Service: there are
	// Events on these alone. Nil: on all.
	Concerns func(*discovery.Service) bool
	// DaemonSet, if not zero, is that of the Pod of this process: see NextPod.
	DaemonSet types.NamespacedName
	// ObjectNamespaces and ObjectSecrets are those of PoolConfig, whose rights Access asks for too.
	ObjectNamespaces, ObjectSecrets []string
	// ConfigMaps are those of NewConfigMaps, whose rights Access asks for too.
	ConfigMaps []types.NamespacedName
	// Working is called before objects are merged, and the function that it returns when the change
	// is delivered; nil: nobody asks. Both are called from the goroutine of Run.
	Working func() (done func())
	// Log gets the events of the source; nil is slog.Default.
	Log *slog.Logger
	// Measure gets latencies, if not nil.
	Measure Measure
}

// Measure gets latencies. Methods are called from the goroutine of Run.
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

// Source watches a cluster. Methods may be called from any goroutine; Run only once.
type Source struct {
	cfg      Config
	log      *slog.Logger
	client   *client.Client
	selector labels.Selector // of Services
	watch    *observer
	queue    queue
	node     nodeState
	// daemonSet is nil without Config.DaemonSet.
	daemonSet *daemonSet

	mu        sync.Mutex       // guards the fields below
	store     *discovery.Store // written by Run alone
	informers []informer
	synced    bool
	lastKnown bool // LastKnown is delivered
	report    *reporter
}

// New makes a source that has asked nothing yet.
func New(cfg Config) (*Source, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Working == nil {
		cfg.Working = func() func() { return func() {} }
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
	for _, svc := range cfg.LastValid {
		s.store.Recall(svc)
	}
	s.queue.init()
	s.node.name = cfg.Store.NodeName
	var err error
	if s.selector, err = serviceSelector(cfg.Store.ServiceProxyName, cfg.LabelSelector); err != nil {
		return nil, err
	}
	rc := rest.CopyConfig(cfg.REST)
	s.watch = newObserver(cfg.Log)
	rc.Wrap(s.watch.wrap)
	if s.client, err = client.New(rc); err != nil {
		return nil, err
	}
	s.report = newReporter(s, cfg.Events)
	if cfg.DaemonSet.Name != "" {
		if s.daemonSet, err = newDaemonSet(cfg.DaemonSet, cfg.REST, &s.node, cfg.Log); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Services are all Services as last delivered, sorted by name.
func (s *Source) Services() []*discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.All()
}

// Merged is a Service with all endpoints, also where no frontend here needs them; nil when there is
// none.
func (s *Source) Merged(name discovery.ServiceName) *discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Merged(name)
}

// Reconsider asks Config.Store.Use again of all Services, for the next update.
func (s *Source) Reconsider() {
	s.mu.Lock()
	s.store.Reconsider()
	s.mu.Unlock()
	s.queue.signal()
}

// NamesChanged takes the answers of Config.Store.Names again, for the next update.
func (s *Source) NamesChanged() {
	s.mu.Lock()
	s.store.NamesChanged()
	s.mu.Unlock()
	s.queue.signal()
}

// Stats are the counters of the store.
func (s *Source) Stats() discovery.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Stats()
}

// LastKnown reports whether Config.LastKnown was delivered in place of the API server's
// state, and the time of that.
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

// Errors are the present errors: resources that cannot be listed or watched.
func (s *Source) Errors() []string {
	out := s.watch.errors()
	if at, ok := s.LastKnown(); ok {
		out = append(out, fmt.Sprintf("kubernetes: the API server has not told its state yet: serving what was known at %s", at.Format(time.RFC3339)))
	}
	return out
}

// WatchErrors counts, by resource, the requests to list or watch that were refused, cut short, or
// whose answer could not be decoded.
func (s *Source) WatchErrors() map[string]uint64 { return s.watch.counts() }

// String is "kubernetes SERVER".
func (s *Source) String() string { return "kubernetes " + s.cfg.REST.Host }

// Reload does nothing: a cluster is always watched.
func (s *Source) Reload() {}

// Complain records an Event of type Warning on a Service, within the limits of all Events,
// unless text is that of the Service's last Event. Only the newest waits to be recorded; an
// empty text withdraws it.
func (s *Source) Complain(name discovery.ServiceName, reason, text string) {
	s.report.complain(name, event{reason: reason, text: text})
}

// Change is a change of a Service that nodes see alike.
type Change struct {
	Reason, Text string
	Warning      bool // Event type Warning in place of Normal
	// Identity is equal on all nodes that see the change: within ten minutes the first of
	// them records an Event, and the others find it there.
	Identity string
}

// Tell records an Event of a change of a Service, within the limits of all Events. Of many that
// wait the last are left out.
func (s *Source) Tell(name discovery.ServiceName, c Change) { s.report.change(name, c) }

// NodeEligible reports whether load balancers in front should send traffic to
// this node, and if not why. A node that the cluster has never known is
// eligible.
func (s *Source) NodeEligible() (bool, string) { return s.node.eligible() }
