package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/cmd/weir/api"
)

// ServiceSource has the counters of the Services with a frontend on this node.
type ServiceSource interface {
	ServiceMetrics() []api.ServiceState
}

// others is the label of the Services beyond the limit, together. It is the name of none:
// these have a slash.
const others = "other"

// Services has metrics per Service. Those with the most new connections and drops have series of
// their own, up to a limit, so that the number of series is bounded.
type Services struct {
	src   ServiceSource
	limit int

	mu    sync.Mutex
	known map[string]*knownService // those of the last scrape
	// rest has the counts of Services while they had no series of their own: it never goes down.
	rest serviceCounts
	// more is true since there have been Services without series of their own.
	more bool
}

// knownService is a Service as of the last scrape. Each count is in own or in rest, so that the
// sum of all series is that of all Services.
type knownService struct {
	last serviceCounts
	own  serviceCounts // while it had series of its own
}

// NewServices makes the metrics of at most limit Services.
func NewServices(src ServiceSource, limit int) *Services {
	return &Services{src: src, limit: limit, rest: noCounts()}
}

// serviceCounts are the counters of a Service, or of several.
type serviceCounts struct {
	packets, bytes      api.Traffic
	connections, failed uint64
	resent              api.Retransmissions
	drops               map[string]uint64
	handshakes          api.Histogram // Count is not used: it is the sum of the buckets
}

func noCounts() serviceCounts { return serviceCounts{drops: map[string]uint64{}} }

func countsOf(s *api.ServiceState) serviceCounts {
	return serviceCounts{s.Packets, s.Bytes, s.NewConnections, s.FailedHandshakes, s.Retransmissions, maps.Clone(s.Drops), s.Handshakes}
}

// grown is by how much a counter has grown; it began anew where it is less.
func grown(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// add adds by how much the counters have grown.
func (c *serviceCounts) add(now, before *serviceCounts) {
	c.packets.FromClients += grown(now.packets.FromClients, before.packets.FromClients)
	c.packets.FromEndpoints += grown(now.packets.FromEndpoints, before.packets.FromEndpoints)
	c.bytes.FromClients += grown(now.bytes.FromClients, before.bytes.FromClients)
	c.bytes.FromEndpoints += grown(now.bytes.FromEndpoints, before.bytes.FromEndpoints)
	c.connections += grown(now.connections, before.connections)
	c.failed += grown(now.failed, before.failed)
	c.resent.SYNs += grown(now.resent.SYNs, before.resent.SYNs)
	c.resent.SYNACKs += grown(now.resent.SYNACKs, before.resent.SYNACKs)
	c.resent.FINs += grown(now.resent.FINs, before.resent.FINs)
	for reason, n := range now.drops {
		c.drops[reason] += grown(n, before.drops[reason])
	}
	addTimes(&c.handshakes, &now.handshakes, &before.handshakes)
}

// addTimes adds by how much a histogram has grown.
func addTimes(to, now, before *api.Histogram) {
	to.SumSeconds += now.SumSeconds
	if now.SumSeconds >= before.SumSeconds {
		to.SumSeconds -= before.SumSeconds
	}
	for i, b := range now.Buckets {
		if i == len(to.Buckets) {
			to.Buckets = append(to.Buckets, api.Bucket{UpToSeconds: b.UpToSeconds})
		}
		n := b.Count
		if i < len(before.Buckets) {
			n = grown(n, before.Buckets[i].Count)
		}
		to.Buckets[i].Count += n
	}
}

// serviceMetric is a metric per Service.
type serviceMetric struct {
	name, help string
	labels     []string
	kind       prometheus.ValueType
	desc       *prometheus.Desc
}

func perService(kind prometheus.ValueType, name, help string, labels ...string) serviceMetric {
	labels = append([]string{"service"}, labels...)
	name = "weir_service_" + name
	return serviceMetric{name, help, labels, kind, prometheus.NewDesc(name, help, labels, nil)}
}

var (
	servicePackets     = perService(prometheus.CounterValue, "packets_total", "Packets of the Service's connections, estimated from a sample; without those that the kernel forwards by the flow table.", "from")
	serviceBytes       = perService(prometheus.CounterValue, "bytes_total", "Bytes of these packets, from the Ethernet header on.", "from")
	serviceConnections = perService(prometheus.CounterValue, "new_connections_total", "Flows that were made.")
	serviceFailed      = perService(prometheus.CounterValue, "failed_handshakes_total", "TCP and SCTP connections that ended before the handshake was complete.")
	serviceResent      = perService(prometheus.CounterValue, "retransmissions_total", "TCP segments that came again: syn from clients, syn-ack from endpoints, fin from both. Retransmitted data is not counted.", "segment")
	serviceDrops       = perService(prometheus.CounterValue, "dropped_packets_total", "Dropped and refused packets with a frontend or flow of the Service; reasons as of weir_dropped_packets_total.", "reason")
	serviceOpen        = perService(prometheus.GaugeValue, "connections_open", "Connections in which both sides have been heard.")
	serviceEndpoints   = perService(prometheus.GaugeValue, "endpoints", "Ready endpoints, of all Service ports, by the nearest tier that they belong to.", "tier")
	serviceHealth      = perService(prometheus.GaugeValue, "endpoints_checked", "Endpoints of all Service ports by what checks of this node say: passing, failing or ejected.", "health")

	// serviceHandshakes is a histogram: a Service has it from the first answer on.
	serviceHandshakes = perService(prometheus.UntypedValue, "handshake_duration_seconds", "From the first SYN to the SYN-ACK, in modes in which answers pass Weir: of at most 8 new connections of a batch.")

	serviceMetrics = []serviceMetric{servicePackets, serviceBytes, serviceConnections, serviceFailed, serviceResent, serviceDrops, serviceOpen, serviceEndpoints, serviceHealth, serviceHandshakes}
)

// Describe implements prometheus.Collector.
func (c *Services) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range serviceMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Services) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Under the lock: the counters of a list that is older than the last would seem to have begun anew.
	list := c.src.ServiceMetrics()
	slices.SortFunc(list, func(a, b api.ServiceState) int {
		return cmp.Or(cmp.Compare(activity(&b), activity(&a)), cmp.Compare(a.Service, b.Service))
	})
	known := make(map[string]*knownService, len(list))
	var open uint64
	tiers, health := map[string]int{}, map[string]int{}
	for i := range list {
		s := &list[i]
		k := c.known[s.Service]
		if k == nil {
			k = &knownService{own: noCounts()}
		}
		known[s.Service] = k
		now, to := countsOf(s), &k.own
		if i >= c.limit {
			to = &c.rest
		}
		to.add(&now, &k.last)
		k.last = now
		if i < c.limit {
			collectService(ch, s.Service, &k.own, uint64(s.Open), tiersOf(s, map[string]int{}), s.Health)
			continue
		}
		c.more = true
		open += uint64(s.Open)
		tiersOf(s, tiers)
		for state, n := range s.Health {
			health[state] += n
		}
	}
	c.known = known
	if c.more {
		collectService(ch, others, &c.rest, open, tiers, health)
	}
}

// activity ranks a Service: one without endpoints has no new connections, but drops.
func activity(s *api.ServiceState) uint64 {
	n := s.NewConnections
	for _, dropped := range s.Drops {
		n += dropped
	}
	return n
}

// tiersOf adds the endpoints of all ports by tier.
func tiersOf(s *api.ServiceState, to map[string]int) map[string]int {
	for i := range s.Ports {
		for tier, n := range s.Ports[i].EndpointsByTier {
			to[tier] += n
		}
	}
	return to
}

func collectService(ch chan<- prometheus.Metric, name string, c *serviceCounts, open uint64, tiers, health map[string]int) {
	emit := func(m *serviceMetric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, append([]string{name}, labels...)...)
	}
	emit(&servicePackets, float64(c.packets.FromClients), "client")
	emit(&servicePackets, float64(c.packets.FromEndpoints), "endpoint")
	emit(&serviceBytes, float64(c.bytes.FromClients), "client")
	emit(&serviceBytes, float64(c.bytes.FromEndpoints), "endpoint")
	emit(&serviceConnections, float64(c.connections))
	emit(&serviceFailed, float64(c.failed))
	emit(&serviceResent, float64(c.resent.SYNs), "syn")
	emit(&serviceResent, float64(c.resent.SYNACKs), "syn-ack")
	emit(&serviceResent, float64(c.resent.FINs), "fin")
	for reason, n := range c.drops {
		emit(&serviceDrops, float64(n), reason)
	}
	emit(&serviceOpen, float64(open))
	for tier, n := range tiers {
		emit(&serviceEndpoints, float64(n), tier)
	}
	for state, n := range health {
		emit(&serviceHealth, float64(n), state)
	}
	collectTimes(ch, name, &c.handshakes)
}

// collectTimes gives a histogram, whose buckets are cumulative.
func collectTimes(ch chan<- prometheus.Metric, name string, h *api.Histogram) {
	total, buckets := uint64(0), make(map[float64]uint64, len(h.Buckets))
	for _, b := range h.Buckets {
		if total += b.Count; b.UpToSeconds > 0 {
			buckets[b.UpToSeconds] = total
		}
	}
	if total > 0 {
		ch <- prometheus.MustNewConstHistogram(serviceHandshakes.desc, total, h.SumSeconds, buckets, name)
	}
}
