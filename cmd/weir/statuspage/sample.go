package statuspage

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/lb/counter"
)

const (
	// points is the length of a chart, apart the time between two points.
	points = 60
	apart  = 5 * time.Second
	// fresh is how long an answer is used again for other requests.
	fresh = time.Second
	// A look at all Services takes at most a twentieth of the time.
	restFactor = 20
	// maxEvents is how many events are shown.
	maxEvents = 50
)

// series are the last values of a rate, the newest at the end.
type series struct {
	values [points]float32
	n      int
}

func (s *series) add(v float64) {
	copy(s.values[:], s.values[1:])
	s.values[points-1] = float32(v)
	s.n = min(s.n+1, points)
}

// list are the values since the first.
func (s *series) list() []float32 { return s.values[points-s.n:] }

// service is a Service as of the last look.
type service struct {
	name           string
	ports          []api.ServicePort
	open, halfOpen uint32
	api.Totals
	reasons map[string]uint64 // of drops
	maximum uint32            // of connections; 0: none
	// unhealthy is as of api.ServiceState.
	unhealthy string

	last                   api.Totals // at the last point of the charts
	rate                   api.Rates  // from then on, or up to then right after it
	packetChart, flowChart series

	seen uint64 // number of the look
}

// node are the totals of the node.
type node struct {
	api.Totals
	last                              api.Totals
	rate                              api.Rates
	packetChart, flowChart, dropChart series

	workers []workerRate // by worker
}

// workerRate is a worker since the last point of the charts.
type workerRate struct {
	last          counter.Values
	packets, busy float64 // per second
}

// sample is the state of the node as of the last look.
type sample struct {
	at       time.Time
	status   *api.Status
	events   []event.Event
	services []*service // by name; shared, see sampler.view
	node     node
}

// sampler looks at the node for all readers together.
type sampler struct {
	client *api.Client

	mu     sync.Mutex // from the question to the change
	looks  uint64
	byName map[string]*service
	now    sample
	point  time.Time // of the last point of the charts
	next   time.Time // when the sample is too old
}

func newSampler(c *api.Client) *sampler { return &sampler{client: c, byName: map[string]*service{}} }

// run keeps the charts going until ctx ends, also while nobody looks.
func (s *sampler) run(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		began := time.Now()
		s.mu.Lock()
		_ = s.look(ctx) // a reader gets the error
		s.mu.Unlock()
		t.Reset(max(apart, restFactor*time.Since(began)))
	}
}

// view calls f with a sample that is at most a second old, or as old as the load demands. f must
// keep nothing of it.
func (s *sampler) view(ctx context.Context, f func(*sample) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.next) {
		// The sample is of all readers: one who goes away must not leave half of it.
		if err := s.look(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return f(&s.now)
}

// look asks for everything. Preconditions: s.mu is held.
func (s *sampler) look(ctx context.Context) error {
	began := time.Now()
	status, err := s.client.Status(ctx)
	if err != nil {
		return err
	}
	events, err := s.client.Events(ctx, &api.EventFilter{Limit: maxEvents})
	if err != nil {
		return err
	}
	s.looks++
	at := time.Now()
	seconds := at.Sub(s.point).Seconds()
	first := s.point.IsZero()
	isPoint := seconds >= 0.9*apart.Seconds()
	changed := false
	err = s.client.EachService(ctx, func(a *api.ServiceState) error {
		svc := s.byName[a.Service]
		if svc == nil {
			svc = &service{name: a.Service}
			svc.last, s.byName[a.Service], changed = a.Totals(), svc, true
		}
		svc.follow(a, s.looks)
		if !first && seconds > 0.5 {
			svc.rate = svc.Since(svc.last, seconds)
		}
		if isPoint {
			if !first {
				svc.packetChart.add(svc.rate.Packets)
				svc.flowChart.add(svc.rate.Flows)
			}
			svc.last = svc.Totals
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.forget(changed)
	s.now.at, s.now.status, s.now.events = at, status, events.Events
	s.now.node.follow(status, seconds, first, isPoint)
	if isPoint {
		s.point = at
	}
	s.next = time.Now().Add(max(fresh, restFactor/4*time.Since(began)))
	return nil
}

// forget removes Services that are gone. Preconditions: s.mu is held.
func (s *sampler) forget(changed bool) {
	for name, svc := range s.byName {
		if svc.seen != s.looks {
			delete(s.byName, name)
			changed = true
		}
	}
	if changed {
		s.now.services = slices.SortedFunc(maps.Values(s.byName), func(a, b *service) int { return strings.Compare(a.name, b.name) })
	}
}

func (s *service) follow(a *api.ServiceState, look uint64) {
	s.seen, s.Totals = look, a.Totals()
	s.ports, s.reasons, s.unhealthy = a.Ports, a.Drops, a.Unhealthy()
	s.open, s.halfOpen, s.maximum = a.Open, a.HalfOpen, a.MaxConnections
}

func (n *node) follow(st *api.Status, seconds float64, first, isPoint bool) {
	n.Totals = st.Totals()
	if first {
		n.last = n.Totals
	} else if seconds > 0.5 {
		n.rate = n.Since(n.last, seconds)
	}
	n.followWorkers(st.Workers, seconds, first, isPoint)
	if !isPoint {
		return
	}
	if !first {
		n.packetChart.add(n.rate.Packets)
		n.flowChart.add(n.rate.Flows)
		n.dropChart.add(n.rate.Drops)
	}
	n.last = n.Totals
}

func (n *node) followWorkers(list []api.Worker, seconds float64, first, isPoint bool) {
	if len(n.workers) != len(list) {
		n.workers = make([]workerRate, len(list))
		first = true
	}
	for i := range list {
		w, c := &n.workers[i], &list[i].Counters
		if first {
			w.last = *c
		} else if seconds > 0.5 {
			w.packets = api.PerSecond(c[counter.RxPackets], w.last[counter.RxPackets], seconds)
			w.busy = list[i].BusySince(&w.last, seconds)
		}
		if isPoint {
			w.last = *c
		}
	}
}
