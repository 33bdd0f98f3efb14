package controller

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirlb/weir/cmd/weir/httpserver"
	"github.com/weirlb/weir/discovery/addresspool"
)

var (
	descAddresses = prometheus.NewDesc("weir_pool_addresses", "Addresses of a pool: assigned to Services, resting after their release, available.",
		[]string{"pool", "family", "state"}, nil)
	descServices = prometheus.NewDesc("weir_pool_services", "Services of this controller, by the reason of the last decision.", []string{"reason"}, nil)
	descFaults   = prometheus.NewDesc("weir_pool_faults", "Faults of pool objects, see the log or weir check --pools.", nil, nil)
	descLeading  = prometheus.NewDesc("weir_controller_leading", "1 if this controller allocates.", nil, nil)
	descWritten  = prometheus.NewDesc("weir_controller_status_writes_total", "Statuses of Services written.", nil, nil)
)

// Describe lists the metrics.
func (c *controller) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descAddresses, descServices, descFaults, descLeading, descWritten} {
		out <- d
	}
}

// Collect reads the metrics. Those of pools and Services are of the controller that leads.
func (c *controller) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	out <- prometheus.MustNewConstMetric(descWritten, prometheus.CounterValue, float64(c.written.Load()))
	if !c.leading.Load() {
		gauge(descLeading, 0)
		return
	}
	gauge(descLeading, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.allocator.Usage(time.Now()) {
		gauge(descAddresses, float64(u.Assigned), u.Pool, u.Family, "assigned")
		gauge(descAddresses, float64(u.Resting), u.Pool, u.Family, "resting")
		gauge(descAddresses, u.Available, u.Pool, u.Family, "available")
	}
	services := map[string]int{addresspool.ReasonAllocated: 0, addresspool.ReasonExhausted: 0}
	for _, reason := range c.outcomes {
		services[reason]++
	}
	for reason, n := range services {
		gauge(descServices, float64(n), reason)
	}
	gauge(descFaults, float64(c.faults))
}

// maxConnections is the most connections for probes and metrics at the same time.
const maxConnections = 64

// serve answers /metrics and /healthz until ctx ends, and stop waits for that.
func (c *controller) serve(ctx context.Context) (stop func(), err error) {
	if c.o.Metrics == "" {
		return func() {}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/healthz", c.health)
	l, err := net.Listen("tcp", c.o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("--metrics-address: %w", err)
	}
	c.log.Info("metrics", "address", l.Addr().String())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := httpserver.Serve(ctx, l, mux, httpserver.Options{Limit: httpserver.NewLimit(maxConnections), Log: c.log}); err != nil {
			c.log.Warn("metrics", "err", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}
