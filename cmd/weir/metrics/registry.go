package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirlb/weir/cmd/weir/healthz"
)

// Source provides the values of the metrics.
type Source interface {
	StatusSource
	healthz.Source
}

// Registry has Weir's metrics. Those of the status and those that are registered later may wait for
// the publication of an update. A scrape does not wait for long: it has the others then, so that
// a node whose update is late is not taken for a node that is down.
type Registry struct {
	*prometheus.Registry
	quick *prometheus.Registry // of what never waits
	wait  time.Duration

	mu      sync.Mutex
	running *gathering // nil: none
}

// gathering is a look at the metrics that may wait. Scrapes meanwhile share it.
type gathering struct {
	done     chan struct{}
	families []*dto.MetricFamily
	err      error
}

// NewRegistry returns a registry with Weir's metrics, and those of the Go
// runtime and the process.
func NewRegistry(src Source) *Registry {
	r := &Registry{Registry: prometheus.NewRegistry(), quick: prometheus.NewRegistry(), wait: scrapeTimeout}
	r.MustRegister(&collector{src})
	r.quick.MustRegister(
		healthCollector{src},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// Gather implements prometheus.Gatherer.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	g := r.gather()
	t := time.NewTimer(r.wait)
	defer t.Stop()
	select {
	case <-g.done:
		slow := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return g.families, g.err })
		return prometheus.Gatherers{r.quick, slow}.Gather()
	case <-t.C:
		return r.quick.Gather()
	}
}

// gather begins a gathering, or joins the present one.
func (r *Registry) gather() *gathering {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running != nil {
		return r.running
	}
	g := &gathering{done: make(chan struct{})}
	r.running = g
	go func() {
		g.families, g.err = r.Registry.Gather()
		r.mu.Lock()
		r.running = nil
		r.mu.Unlock()
		close(g.done)
	}()
	return g
}

// healthCollector has the metrics of the health.
type healthCollector struct{ src healthz.Source }

// Describe implements prometheus.Collector.
func (c healthCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		if m.health != nil {
			ch <- m.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c healthCollector) Collect(ch chan<- prometheus.Metric) {
	h := c.src.Health()
	for _, m := range all {
		if m.health == nil {
			continue
		}
		m.health(&h, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
		})
	}
}
