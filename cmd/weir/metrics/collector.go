// Package metrics serves Weir's counters to Prometheus.
//
// The metrics are read from the same api.Status that `weir status` shows,
// once per scrape, so that the two never disagree. Names begin with weir_,
// units are base units, counters end in _total, and labels are bounded:
// reason, worker, device, queue, state. Those per Service are of a bounded number of
// Services, see Services.
package metrics

//go:generate go test -run ^TestReferenceIsCurrent$ -update .

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/lb/announce"
)

// StatusSource provides the counters; api.Source implements it.
type StatusSource interface {
	Status(ctx context.Context) (*api.Status, error)
}

// scrapeTimeout bounds how long a scrape waits for the status.
const scrapeTimeout = 5 * time.Second

type collector struct{ src StatusSource }

// metric is a metric with the function that reads the values from a status, or from the health.
type metric struct {
	name, help string
	labels     []string
	kind       prometheus.ValueType
	desc       *prometheus.Desc
	read       func(s *api.Status, emit emit)
	health     func(h *healthz.Health, emit emit)
}

// emit adds a value, with the values of the metric's labels.
type emit func(v float64, labels ...string)

func total(name, help string, labels []string, read func(*api.Status, emit)) metric {
	return newMetric(prometheus.CounterValue, name, help, labels, read)
}

func gauge(name, help string, labels []string, read func(*api.Status, emit)) metric {
	return newMetric(prometheus.GaugeValue, name, help, labels, read)
}

func newMetric(kind prometheus.ValueType, name, help string, labels []string, read func(*api.Status, emit)) metric {
	name = "weir_" + name
	return metric{name, help, labels, kind, prometheus.NewDesc(name, help, labels, nil), read, nil}
}

// ofHealth is a gauge of the health, which a scrape has whatever else waits.
func ofHealth(name, help string, labels []string, read func(*healthz.Health, emit)) metric {
	m := newMetric(prometheus.GaugeValue, name, help, labels, nil)
	m.health = read
	return m
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		if m.read != nil {
			ch <- m.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s, err := c.src.Status(ctx)
	if err != nil {
		// A single metric, so that the scrape fails with a single clear line.
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), fmt.Errorf("status: %w", err))
		return
	}
	for _, m := range all {
		if m.read == nil {
			continue
		}
		m.read(s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
		})
	}
}

// mostAddresses bounds the addresses with a metric.
const mostAddresses = 1000

// announced is the announcement of a status, empty where it is off.
func announced(s *api.Status) *api.Announce {
	if s.Announce == nil {
		return &api.Announce{}
	}
	return s.Announce
}

// all are the metrics, in the order in which they are documented.
var all = concat(general, devices, workers, flows)

var general = []metric{
	ofHealth("build_info", "Version of this Weir; always 1.", []string{"version", "revision", "goversion"},
		func(_ *healthz.Health, e emit) {
			v := version.Get()
			e(1, v.Version, v.Revision, v.Go)
		}),
	gauge("start_time_seconds", "When the process began to serve, in seconds since the epoch.", nil,
		func(s *api.Status, e emit) { e(seconds(s.StartTime)) }),
	ofHealth("synced", "1 after the first full view of Services is published.", nil,
		func(h *healthz.Health, e emit) { e(boolean(h.Synced)) }),
	ofHealth("draining", "1 while the node drains: from SIGTERM to the end of the process, or by weir drain self.", nil,
		func(h *healthz.Health, e emit) { e(boolean(h.Draining)) }),
	ofHealth("update_pending_seconds", "Age of the update that is being merged or published, 0 without one.", nil,
		func(h *healthz.Health, e emit) { e(h.Pending.Seconds()) }),
	gauge("snapshot_generation", "Generation of the published snapshot of frontends and endpoints.", nil,
		func(s *api.Status, e emit) { e(float64(s.Snapshot)) }),
	gauge("snapshot_last_timestamp_seconds", "When the last snapshot was published, in seconds since the epoch; 0 for never.", nil,
		func(s *api.Status, e emit) { e(seconds(s.LastUpdated)) }),
	gauge("services", "Services that Weir serves.", nil,
		func(s *api.Status, e emit) { e(float64(s.Services)) }),
	gauge("services_skipped", "Services with a field that Weir does not support; kube-proxy serves them.", nil,
		func(s *api.Status, e emit) { e(float64(s.ProblemCounts[problem.UnsupportedField])) }),
	gauge("frontends", "Addresses, protocols and ports that Weir serves.", nil,
		func(s *api.Status, e emit) { e(float64(s.Frontends)) }),
	gauge("frontends_hash", "A hash of the frontends, node ports apart, and their Services: nodes with different values serve different frontends.", nil,
		func(s *api.Status, e emit) { e(float64(s.FrontendsHash)) }),
	gauge("endpoints", "Endpoints that Services list, each counted for every Service port that lists it.", nil,
		func(s *api.Status, e emit) { e(float64(s.Endpoints)) }),
	gauge("frontends_limit", "Frontends that there is room for.", nil,
		func(s *api.Status, e emit) { e(float64(s.FrontendsLimit)) }),
	gauge("endpoints_limit", "Endpoints that there is room for, each counted for every Service port that lists it.", nil,
		func(s *api.Status, e emit) { e(float64(s.EndpointsLimit)) }),
	ofHealth("healthy", "1 while the packet path works: no worker is stuck, nor the publication of updates.", nil,
		func(h *healthz.Health, e emit) { e(boolean(h.Healthy)) }),
	gauge("discovery_connected", "1 while lists of the resource are completed and events decoded; 0 after a request that failed, was refused or was cut short.", []string{"resource"},
		func(s *api.Status, e emit) {
			for _, r := range s.Discovery.Resources {
				e(boolean(r.Connected), r.Name)
			}
		}),
	gauge("discovery_last_contact_timestamp_seconds", "Time of the last answer of the API server about the resource, in seconds since the epoch; 0 for never.", []string{"resource"},
		func(s *api.Status, e emit) {
			for _, r := range s.Discovery.Resources {
				e(seconds(r.LastContact), r.Name)
			}
		}),
	gauge("state_file_ok", "0 while the last known state of the cluster, or of endpoints by name, cannot be read or written.", nil,
		func(s *api.Status, e emit) { e(boolean(s.ProblemCounts[problem.StateFile] == 0)) }),
	gauge("state_file_bytes", "Size of the last known state that this process has saved.", []string{"file"},
		func(s *api.Status, e emit) {
			for _, f := range s.StateFiles {
				if f.GoodAt != nil {
					e(float64(f.Bytes), f.Name)
				}
			}
		}),
	gauge("state_file_good_timestamp_seconds", "When the saved state was last known to be that of the cluster, in seconds since the epoch; absent before this process has saved.", []string{"file"},
		func(s *api.Status, e emit) {
			for _, f := range s.StateFiles {
				if f.GoodAt != nil {
					e(seconds(*f.GoodAt), f.Name)
				}
			}
		}),
	total("state_file_not_used_total", "Files found at the start and not used, by cause: layout (of another version), damaged, reboot (made before the last boot), size, untrusted (another user could have written it), other (of another cluster).", []string{"file", "cause"},
		func(s *api.Status, e emit) {
			for _, f := range s.StateFiles {
				for cause, n := range f.NotUsed {
					e(float64(n), f.Name, cause)
				}
			}
		}),
	gauge("problems", "Things that are not done as asked for, by kind: weir status --problems lists them.", []string{"kind", "severity"},
		func(s *api.Status, e emit) {
			for _, d := range problem.Kinds {
				e(float64(s.ProblemCounts[d.Kind]), string(d.Kind), string(d.Severity))
			}
		}),
	gauge("discovery_slices", "EndpointSlices of Services.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.Slices)) }),
	gauge("discovery_named_endpoints", "Endpoints by name, of at most 65,536, each once for every slice and port number of it.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.NamedEndpoints)) }),
	gauge("discovery_fqdn_slices", "EndpointSlices that are skipped because their addresses are names.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.FQDNSlices)) }),
	gauge("discovery_mirrored_services", "Services that are served from a legacy Endpoints object.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.Mirrored)) }),
	gauge("discovery_refused_endpoints", "Endpoints with an address that must not be sent to.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.RefusedEndpoints)) }),
	total("discovery_services_removed_total", "Services that the source has withdrawn.", nil,
		func(s *api.Status, e emit) { e(float64(s.Discovery.ServicesRemoved)) }),
	gauge("discovery_stale", "1 while Weir serves the last known state because the API server has not answered since the start.", nil,
		func(s *api.Status, e emit) { e(boolean(s.Discovery.LastKnown != nil)) }),
	gauge("discovery_stale_age_seconds", "Age of what is served: seconds since it was last known to be what the API server has: since a list was last completed, or an event or bookmark decoded, of the resource that is longest ago. Bookmarks come about once a minute.", nil,
		func(s *api.Status, e emit) {
			if at := s.Discovery.GoodAt; at != nil {
				e(max(0, time.Since(*at).Truncate(time.Second).Seconds()))
			}
		}),
	total("discovery_watch_errors_total", "Requests to list or watch that the API server refused, that did not reach it, or whose answer was cut short or could not be decoded.", []string{"resource"},
		func(s *api.Status, e emit) {
			for resource, n := range s.Discovery.WatchErrors {
				e(float64(n), resource)
			}
		}),
	gauge("announce_address", "1 while the address is announced to routers, 0 while it is not: weir status --announce has the reason. Of the first 1,000 addresses.", []string{"address"},
		func(s *api.Status, e emit) {
			list := announced(s).Addresses
			for _, a := range list[:min(len(list), mostAddresses)] {
				e(boolean(a.Announced), a.Address.String())
			}
		}),
	gauge("announce_addresses", "Addresses that are announced to routers.", nil,
		func(s *api.Status, e emit) {
			n := 0
			for _, a := range announced(s).Addresses {
				if a.Announced {
					n++
				}
			}
			if s.Announce != nil {
				e(float64(n))
			}
		}),
	gauge("announce_addresses_limit", "Addresses that may be announced: announce.maxAddresses.", nil,
		func(s *api.Status, e emit) {
			if s.Announce != nil {
				e(float64(s.Announce.MaxAddresses))
			}
		}),
	gauge("announce_withheld_addresses", "Addresses that are not announced, by the first reason.", []string{"reason"},
		func(s *api.Status, e emit) {
			counts := map[string]int{}
			for _, a := range announced(s).Addresses {
				counts[a.Reason]++
			}
			for _, reason := range announce.Reasons() {
				if s.Announce != nil {
					e(float64(counts[reason]), reason)
				}
			}
		}),
	total("announce_held_total", "Times that an address was held back for longer than announce.settleSeconds: it was withdrawn more than 3 times in 5 minutes.", nil,
		func(s *api.Status, e emit) {
			if s.Announce != nil {
				e(float64(s.Announce.Held))
			}
		}),
	gauge("announce_object_faults", "Objects of announce.objects and announce.objectNamespaces that are out of service, or in use in part: weir status --announce names them.", nil,
		func(s *api.Status, e emit) {
			if o := announced(s).Objects; o != nil {
				e(float64(len(o.Faults)))
			}
		}),
	gauge("announce_peer_up", "1 while the BGP session with the router is established.", []string{"peer"},
		func(s *api.Status, e emit) {
			for _, p := range announced(s).Peers {
				e(boolean(p.Established), p.Peer)
			}
		}),
	gauge("announce_peer_bfd_up", "1 while BFD with the router is up, of routers that have it: without BFD the hold time alone ends a dead session.", []string{"peer"},
		func(s *api.Status, e emit) {
			for _, p := range announced(s).Peers {
				if p.BFD != "" {
					e(boolean(p.BFD == "up"), p.Peer)
				}
			}
		}),
	gauge("announce_peer_routes", "Routes that the router was sent.", []string{"peer"},
		func(s *api.Status, e emit) {
			for _, p := range announced(s).Peers {
				e(float64(p.Routes), p.Peer)
			}
		}),
	total("announce_peer_ends_total", "BGP sessions with the router that have ended.", []string{"peer"},
		func(s *api.Status, e emit) {
			for _, p := range announced(s).Peers {
				e(float64(p.Ends), p.Peer)
			}
		}),
	gauge("announce_link_up", "1 while addresses can be announced on the interface of announce.l2: it has a carrier, and its sockets are open.", []string{"interface"},
		func(s *api.Status, e emit) {
			for _, l := range announced(s).L2 {
				e(boolean(l.Carrier && l.Fault == ""), l.Interface)
			}
		}),
	gauge("announce_link_nodes", "Other nodes on the link that announce addresses.", []string{"interface"},
		func(s *api.Status, e emit) {
			for _, l := range announced(s).L2 {
				e(float64(len(l.Nodes)), l.Interface)
			}
		}),
	gauge("announce_link_owner", "1 while this node answers ARP and neighbor discovery for the address. Of the first 1,000 addresses.", []string{"address"},
		func(s *api.Status, e emit) {
			list := announced(s).Addresses
			for _, a := range list[:min(len(list), mostAddresses)] {
				if a.L2 != nil {
					e(boolean(a.L2.State == "owner"), a.Address.String())
				}
			}
		}),
	total("announce_link_changes_total", "Changes of addresses on the interface: taken, given-up, or claimed by another host while this node was the owner.", []string{"interface", "change"},
		func(s *api.Status, e emit) {
			for _, l := range announced(s).L2 {
				e(float64(l.Taken), l.Interface, "taken")
				e(float64(l.GivenUp), l.Interface, "given-up")
				e(float64(l.Claimed), l.Interface, "claimed")
			}
		}),
	gauge("node_eligible", "0 while load balancers in front should not send traffic to this node (KEP-3836).", nil,
		func(s *api.Status, e emit) { e(boolean(s.Discovery.NodeNotEligible == "")) }),
	gauge("kernel_feature", "1 where an optional kernel feature was found.", []string{"feature"},
		func(s *api.Status, e emit) {
			for _, f := range s.Kernel {
				e(boolean(f.Available), f.Name)
			}
		}),
	gauge("neighbors", "Next hops in use, by state.", []string{"state"},
		func(s *api.Status, e emit) {
			n := map[string]int{"unresolved": 0, "resolving": 0, "valid": 0, "failed": 0}
			for _, x := range s.Neighbors {
				n[x.State]++
			}
			for state, count := range n {
				e(float64(count), state)
			}
		}),
}

func concat(groups ...[]metric) []metric {
	var out []metric
	for _, g := range groups {
		out = append(out, g...)
	}
	return out
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

func itoa(n int) string { return strconv.Itoa(n) }
