package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Latencies are the histograms of how fast a change in a cluster reaches the
// packet path. It is a prometheus.Collector, and is safe for concurrent use.
type Latencies struct{ programmed, delivered prometheus.Histogram }

type latency struct {
	name, help string
	buckets    []float64
}

// latencies are in the order of Latencies' fields.
var latencies = []latency{
	{
		"weir_network_programming_duration_seconds",
		"From the change of a Pod or Service, as the slice controller noted it, to the published snapshot; both clocks must agree. As kubeproxy_network_programming_duration_seconds.",
		programmingBuckets(),
	},
	{
		"weir_discovery_publish_duration_seconds",
		"From the first watch event of an update to the published snapshot.",
		prometheus.ExponentialBuckets(0.0001, 2, 16), // 100 us to 3.3 s
	},
}

// programmingBuckets are kube-proxy's, and finer buckets below the first, which hold most
// of Weir's times.
func programmingBuckets() []float64 {
	b := []float64{0.005, 0.01, 0.025, 0.05, 0.1}
	b = append(b, prometheus.LinearBuckets(0.25, 0.25, 2)...)
	b = append(b, prometheus.LinearBuckets(1, 1, 59)...)
	b = append(b, prometheus.LinearBuckets(60, 5, 12)...)
	return append(b, prometheus.LinearBuckets(120, 30, 7)...)
}

// NewLatencies makes empty histograms.
func NewLatencies() *Latencies {
	h := func(l latency) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: l.name, Help: l.help, Buckets: l.buckets})
	}
	return &Latencies{h(latencies[0]), h(latencies[1])}
}

// Programmed counts a change of an EndpointSlice.
func (l *Latencies) Programmed(d time.Duration) { l.programmed.Observe(d.Seconds()) }

// Delivered counts an update.
func (l *Latencies) Delivered(d time.Duration) { l.delivered.Observe(d.Seconds()) }

// Describe implements prometheus.Collector.
func (l *Latencies) Describe(ch chan<- *prometheus.Desc) {
	l.programmed.Describe(ch)
	l.delivered.Describe(ch)
}

// Collect implements prometheus.Collector.
func (l *Latencies) Collect(ch chan<- prometheus.Metric) {
	l.programmed.Collect(ch)
	l.delivered.Collect(ch)
}
