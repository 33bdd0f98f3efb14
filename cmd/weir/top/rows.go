package top

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
)

var servicesTab = &tab{
	name: "services", title: "Services", order: 9,
	columns: []column{
		{"service", "SERVICE", text, 0}, {"tier", "TIER", text, 2}, {"used", "USED", count, 5}, {"endpoints", "OF", count, 6},
		{"failing", "FAILING", count, 1},
		{"open", "OPEN", count, 0}, {"newPerSecond", "NEW/S", rate, 0}, {"failedPerSecond", "FAIL/S", rate, 3}, {"resentPerSecond", "RESENT/S", rate, 4},
		{"packetsPerSecond", "~PKT/S", rate, 0}, {"bytesPerSecond", "~B/S", rate, 4}, {"dropsPerSecond", "DROP/S", rate, 0}, {"mostDrops", "MOST DROPS", text, 1},
	},
	look: func(ctx context.Context, s *source, g *gatherer) error {
		return s.client.EachService(ctx, func(a *api.ServiceState) error {
			t := a.Totals()
			counts := []uint64{t.Flows, t.Failed, t.Resent, t.Packets, t.Bytes, t.Drops}
			g.add(a.Service, counts, func(rates []cell) []cell {
				tier, used, all := tiersOf(a)
				return []cell{
					word(a.Service), word(tier), number(used), number(all), number(a.Health[api.HealthFailing] + a.Health[api.HealthEjected]), number(a.Open), rates[0], rates[1], rates[2], rates[3], rates[4], rates[5],
					word(most(a.Drops)),
				}
			})
			return nil
		})
	},
}

// tiersOf are the tiers in use, with endpoints in use and in all.
func tiersOf(a *api.ServiceState) (tier string, used, all int) {
	var names []string
	for i := range a.Ports {
		p := &a.Ports[i]
		all += p.Endpoints
		most := 0
		for _, t := range p.Tiers {
			most = max(most, t.Endpoints)
			if !slices.Contains(names, t.Tier) {
				names = append(names, t.Tier)
			}
		}
		used += most
	}
	return strings.Join(names, ","), used, all
}

// most is the reason with the largest count.
func most(m map[string]uint64) (reason string) {
	for r, n := range m {
		if n > 0 && (n > m[reason] || n == m[reason] && r < reason) {
			reason = r
		}
	}
	return reason
}

var endpointsTab = &tab{
	name: "endpoints", title: "Endpoints", order: 9,
	columns: []column{
		{"endpoint", "ENDPOINT", text, 0}, {"service", "SERVICE", text, 0}, {"port", "PORT", text, 5}, {"node", "NODE", text, 3},
		{"zone", "ZONE", text, 4}, {"state", "STATE", text, 1}, {"health", "HEALTH", text, 1}, {"policy", "POLICY", text, 4}, {"used", "USED", text, 2}, {"connections", "CONN", count, 0}, {"open", "OPEN", count, 0},
		{"failedPerSecond", "FAIL/S", rate, 2}, {"reason", "REASON", text, 6},
	},
	look: func(ctx context.Context, s *source, g *gatherer) error {
		return s.client.EachEndpoint(ctx, "", func(e *api.EndpointState) error {
			g.add(e.Service+" "+e.Port+"/"+e.Protocol+" "+e.Address, []uint64{e.Attempts.Refused + e.Attempts.Unanswered}, func(rates []cell) []cell {
				state := e.State
				if e.Drained {
					state = "drained"
				}
				used := "no"
				if e.Used {
					used = "yes"
				}
				return []cell{
					word(e.Address), word(e.Service), word(e.Port + "/" + e.Protocol), word(e.Node), word(e.Zone), word(state), word(e.Health.State), word(e.Policy), word(used),
					number(e.Connections), number(e.Open), rates[0], word(e.Reason),
				}
			})
			return nil
		})
	},
}

// workerRates are the counters of a worker that are shown per second.
var workerRates = []counter.Counter{
	counter.RxPackets, counter.RxBytes, counter.TxPackets, counter.TxBytes, counter.NewFlows, counter.Handoff, counter.Punted, counter.Batches,
}

var workersTab = &tab{
	name: "workers", title: "Workers", order: 0,
	columns: []column{
		{"worker", "WORKER", count, 0}, {"cpu", "CPU", count, 0}, {"busy", "BUSY", share, 0}, {"receivedPacketsPerSecond", "RX/S", rate, 0},
		{"receivedBytesPerSecond", "RX B/S", rate, 2}, {"sentPacketsPerSecond", "TX/S", rate, 0}, {"sentBytesPerSecond", "TX B/S", rate, 3},
		{"batch", "BATCH", rate, 4}, {"newPerSecond", "NEW/S", rate, 0}, {"handoffPerSecond", "HAND/S", rate, 1},
		{"puntedPerSecond", "PUNT/S", rate, 1}, {"dropsPerSecond", "DROP/S", rate, 0},
	},
	look: func(_ context.Context, _ *source, g *gatherer) error {
		for i := range g.status.Workers {
			w := &g.status.Workers[i]
			counts := []uint64{uint64(w.Counters.Busy()), api.Sum(w.Drops)}
			for _, c := range workerRates {
				counts = append(counts, w.Counters[c])
			}
			g.add(strconv.Itoa(w.ID), counts, func(rates []cell) []cell {
				busy, drops, r := real(rates[0].value/1e9), rates[1], rates[2:]
				cpu := unknown
				if w.CPU >= 0 {
					cpu = number(w.CPU)
				}
				return []cell{number(w.ID), cpu, busy, r[0], r[1], r[2], r[3], real(r[0].value / r[7].value), r[4], r[5], r[6], drops}
			})
		}
		return nil
	},
}

// maxClients is how many client prefixes are asked for: the daemon gives no more.
const maxClients = 1000

var clientsTab = &tab{
	name: "clients", title: "Clients", order: 1, walks: true,
	columns: []column{
		{"prefix", "CLIENT PREFIX", text, 0}, {"connections", "CONNECTIONS", count, 0}, {"share", "SHARE", share, 0}, {"morePerSecond", "MORE/S", rate, 0},
	},
	look: func(ctx context.Context, s *source, g *gatherer) error {
		n, err := s.client.CountConnections(ctx, &api.FlowFilter{}, "client-prefix", maxClients)
		if err != nil {
			return err
		}
		for _, p := range n.Groups {
			g.add(p.Key, []uint64{p.Count}, func([]cell) []cell {
				return []cell{word(p.Key), number(p.Count), real(float64(p.Count) / float64(max(1, n.Matched))), g.growth(p.Key, p.Count)}
			})
		}
		if n.Others > 0 {
			g.add("others", nil, func([]cell) []cell {
				return []cell{word("others"), number(n.Others), real(float64(n.Others) / float64(n.Matched)), unknown}
			})
		}
		return nil
	},
}

// growth is how much a number that goes up and down grows per second.
func (g *gatherer) growth(key string, n uint64) cell {
	before := g.before[key]
	if len(before) == 0 || g.seconds <= 0 {
		return unknown
	}
	return real((float64(n) - float64(before[0])) / g.seconds)
}

var dropsTab = &tab{
	name: "drops", title: "Drops", order: 2,
	columns: []column{
		{"reason", "REASON", text, 0}, {"service", "SERVICE", text, 0}, {"dropsPerSecond", "DROP/S", rate, 0}, {"drops", "DROPS", count, 0},
	},
	look: func(ctx context.Context, s *source, g *gatherer) error {
		rest := g.status.Drops // those of no Service: the Services are subtracted
		add := func(reason, service string, n uint64) {
			g.add(reason+" "+service, []uint64{n}, func(rates []cell) []cell {
				return []cell{word(reason), word(service), rates[0], number(n)}
			})
		}
		err := s.client.EachService(ctx, func(a *api.ServiceState) error {
			for reason, n := range a.Drops {
				if n > 0 {
					add(reason, a.Service, n)
					rest[reason] -= min(n, rest[reason])
				}
			}
			return nil
		})
		for reason, n := range rest {
			if n > 0 {
				add(reason, "", n)
			}
		}
		return err
	},
}

// arrange sorts rows by a column: numbers with the largest first, texts by the alphabet. Unknown
// numbers come last in both directions, and rows with equal values by their texts.
func arrange(rows []row, t *tab, by int, reverse bool) {
	sign := -1
	if t.columns[by].kind == text || t == workersTab && by < 2 {
		sign = 1
	}
	if reverse {
		sign = -sign
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		x, y := a.cells[by], b.cells[by]
		if xn, yn := math.IsNaN(x.value), math.IsNaN(y.value); xn != yn {
			if xn {
				return 1
			}
			return -1
		}
		if c := cmp.Or(strings.Compare(x.text, y.text), cmp.Compare(x.value, y.value)); c != 0 {
			return sign * c
		}
		for i := range a.cells {
			if c := strings.Compare(a.cells[i].text, b.cells[i].text); c != 0 {
				return c
			}
		}
		return 0
	})
}
