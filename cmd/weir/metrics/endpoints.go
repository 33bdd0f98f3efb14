package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/cmd/weir/api"
)

// EndpointSource has the endpoints with the most failed attempts to connect, at most limit.
type EndpointSource interface {
	FailingEndpoints(limit int) []api.EndpointState
}

// worstEndpoints bounds the endpoints with series.
const worstEndpoints = 20

const (
	attemptsName = "weir_endpoint_attempts_total"
	attemptsHelp = "Attempts to connect to an endpoint, by outcome: answered, refused (RST, or ICMP of the endpoint), unanswered (the SYN came again, or no route or next hop). Of the 20 endpoints with the most failures."
)

var attemptLabels = []string{"service", "port", "endpoint", "outcome"}

// Endpoints has metrics of the endpoints with the most failed attempts.
type Endpoints struct {
	src  EndpointSource
	desc *prometheus.Desc
}

// NewEndpoints makes the metrics.
func NewEndpoints(src EndpointSource) *Endpoints {
	return &Endpoints{src, prometheus.NewDesc(attemptsName, attemptsHelp, attemptLabels, nil)}
}

// Describe implements prometheus.Collector.
func (e *Endpoints) Describe(ch chan<- *prometheus.Desc) { ch <- e.desc }

// Collect implements prometheus.Collector.
func (e *Endpoints) Collect(ch chan<- prometheus.Metric) {
	for _, s := range e.src.FailingEndpoints(worstEndpoints) {
		for outcome, n := range map[string]uint64{"answered": s.Attempts.Answered, "refused": s.Attempts.Refused, "unanswered": s.Attempts.Unanswered} {
			ch <- prometheus.MustNewConstMetric(e.desc, prometheus.CounterValue, float64(n), s.Service, s.Port+"/"+s.Protocol, s.Address, outcome)
		}
	}
}
