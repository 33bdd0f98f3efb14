package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// InMemoryConfig says what an InMemory load balancer is to be.
type InMemoryConfig struct {
	Workers  int
	Ports    int // interfaces; each worker has a queue of each
	MaxFlows int // 0: at most 5 % of memory
	Frames   int // of packet memory, for all workers together
	// Routes and Hops stand for the kernel's.
	Routes map[netip.Prefix]route.Path
	Hops   []route.StaticHop
	// SNAT are the sources of flows by any way.
	SNAT []snat.Source
}

// InMemory is a load balancer without a kernel below it: the workers are those
// of New with all that they do, and the queues are [Memory]. It is for
// benchmarks: who drives it puts descriptors into a queue and calls Round.
type InMemory struct {
	lb     *LB
	queues [][]*Memory // by worker, port
}

// NewInMemory makes one. It needs no privilege.
func NewInMemory(cfg InMemoryConfig) (_ *InMemory, err error) {
	l := &LB{
		cfg:     Config{EndpointRemovalGrace: 10 * time.Second},
		router:  route.Static(cfg.Routes, cfg.Hops),
		started: time.Now(),
	}
	l.vips.init()
	m := &InMemory{lb: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if l.flows, err = conntrack.Open(conntrack.Config{MaxFlows: cfg.MaxFlows, Workers: cfg.Workers, MaxEndpoints: 1 << 16}); err != nil {
		return nil, fmt.Errorf("flow table: %w", err)
	}
	l.affinity, l.servers = newAffinity(l.flows), newServers(l.flows)
	if l.memory, err = xsk.NewUmem(cfg.Frames, xsk.FrameSize); err != nil {
		return nil, err
	}
	l.tables = table.New(table.Config{
		InUse: func(n uint32) bool { return l.flows.EndpointFlows(n) > 0 },
		Tick:  l.flows.Tick,
	})
	l.node.Store(&nodeState{Addresses: snat.New(snat.Config{Pool: cfg.SNAT, Owned: cfg.SNAT})})
	m.makeWorkers(cfg)
	return m, nil
}

func (m *InMemory) makeWorkers(cfg InMemoryConfig) {
	l := m.lb
	for id := range cfg.Workers {
		w := l.newWorker(id, cfg.Ports)
		queues := make([]*Memory, cfg.Ports)
		for i := range queues {
			queues[i] = &Memory{}
			w.ports[i].q, w.ports[i].ring = queues[i], cfg.Frames/cfg.Workers/(cfg.Ports+1)
		}
		m.queues = append(m.queues, queues)
		l.workers = append(l.workers, w)
		for i := id; i < l.memory.Frames(); i += cfg.Workers {
			w.free.push(l.memory.Addr(i))
		}
		w.refill()
	}
	l.introduce()
}

// Tables are the frontends; to be filled before the first Round.
func (m *InMemory) Tables() *table.Table { return m.lb.tables }

// Flows is the flow table.
func (m *InMemory) Flows() *conntrack.Table { return m.lb.flows }

// Workers is the number of workers.
func (m *InMemory) Workers() int { return len(m.lb.workers) }

// Area is the packet memory.
func (m *InMemory) Area() *xsk.Umem { return m.lb.memory }

// Queue is a worker's queue of a port. A frame for it is taken from its Empty.
func (m *InMemory) Queue(worker, port int) *Memory { return m.queues[worker][port] }

// Round runs one round of a worker's loop, as its thread would: receive from
// every port, all stages, transmit, take back what was sent. Rounds of
// different workers may run at the same time.
func (m *InMemory) Round(worker int) int { return m.lb.workers[worker].round() }

// Idle does what a worker's thread does before it sleeps: it ages what is due.
// What came due while nobody called Round is then not the next Round's.
func (m *InMemory) Idle(worker int) {
	w := m.lb.workers[worker]
	w.beginRound()
	for !w.pending() && w.age() {
	}
}

// Counters are a worker's as of its last Round.
func (m *InMemory) Counters(worker int) WorkerCounters { return m.lb.workers[worker].shared.read() }

// ForgetFlows ends all connections, between Rounds.
func (m *InMemory) ForgetFlows() {
	flows := m.lb.flows
	flows.Range(func(r conntrack.Ref) bool { flows.Delete(r); return true })
	for _, w := range m.lb.workers {
		w.ct.Offline()
	}
	flows.Sweep(flows.Tick(), 0)
	for _, w := range m.lb.workers {
		w.ct.Online()
	}
}

// Close frees the memory.
func (m *InMemory) Close() error {
	var errs []error
	if m.lb.flows != nil {
		errs = append(errs, m.lb.flows.Close())
	}
	if m.lb.memory != nil {
		errs = append(errs, m.lb.memory.Close())
	}
	return errors.Join(errs...)
}
