package pipeline

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// inMemoryConfig has the parts of an inMemory.
type inMemoryConfig struct {
	Workers  int
	Ports    int // interfaces; each worker has a queue of each
	MaxFlows int // 0: at most 5 % of memory
	Frames   int // of packet memory, for all workers together
	// Routes and Hops stand for the kernel's.
	Routes map[netip.Prefix]route.Path
	Hops   []route.StaticHop
	// HostVeth is the port that leads to the kernel; 0: none.
	HostVeth int
	// SNAT are the sources of flows by any egress.
	SNAT []snat.Source
}

// inMemory is the workers of a load balancer without a kernel below them: they do all
// that they do in weir run, and their queues are [lbtest.Memory]. The caller puts
// descriptors into a queue and calls Round.
type inMemory struct {
	flows   *conntrack.Table
	tables  *table.Table
	memory  *xsk.Umem
	node    atomic.Pointer[worker.Node]
	vips    atomic.Pointer[bart.Lite]
	workers []*worker.Worker
	queues  [][]*lbtest.Memory // by worker, port
}

// newInMemory makes an inMemory. It needs no privilege.
func newInMemory(cfg inMemoryConfig) (_ *inMemory, err error) {
	m := &inMemory{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	m.flows, err = conntrack.Open(conntrack.Config{
		MaxFlows: cfg.MaxFlows, Workers: cfg.Workers, MaxEndpoints: 1 << 16,
	})
	if err != nil {
		return nil, fmt.Errorf("flow table: %w", err)
	}
	if m.memory, err = xsk.NewUmem(cfg.Frames, xsk.FrameSize); err != nil {
		return nil, err
	}
	tried := attempts.New(table.DefaultMaxEndpoints)
	m.tables = table.New(table.Config{
		OnAssign: tried.Assign,
		InUse:    func(n uint32) bool { return m.flows.EndpointFlows(n) > 0 },
		Tick:     m.flows.Tick,
	})
	m.node.Store(&worker.Node{
		Addresses: snat.New(snat.Config{Pool: cfg.SNAT, Owned: cfg.SNAT}), ReturnPath: cfg.HostVeth > 0,
	})
	m.vips.Store(new(bart.Lite))
	m.makeWorkers(cfg, tried)
	return m, nil
}

// servicesCounted is the largest number of a Service with counters, as weir run has them for
// every Service.
const servicesCounted = 4096

func (m *inMemory) makeWorkers(cfg inMemoryConfig, tried *attempts.Table) {
	common := worker.Config{
		CPU: -1, Ports: cfg.Ports, MaxPorts: cfg.Ports,
		Flows: m.flows, Frontends: m.tables, Router: route.Static(cfg.Routes, cfg.Hops), Memory: m.memory,
		Affinity: worker.NewAffinity(m.flows), CIDs: worker.NewCIDs(m.flows),
		Node: &m.node, VIPs: &m.vips,
		EndpointRemovalGrace: 10 * time.Second, Attempts: tried,
	}
	common.Services = worker.NewServiceCounts(cfg.Workers)
	common.Services.Grow(servicesCounted)
	for id := range cfg.Workers {
		common.ID = id
		w := worker.New(common)
		queues := make([]*lbtest.Memory, cfg.Ports)
		for i := range queues {
			queues[i] = &lbtest.Memory{}
			w.SetPort(i, worker.Port{
				Queue: queues[i], Ring: cfg.Frames / cfg.Workers / (cfg.Ports + 1),
				FullChecksums: cfg.HostVeth == 0 || i != cfg.HostVeth, // the kernel leaves sums to devices
			})
		}
		if cfg.HostVeth > 0 {
			w.SetHostVeth(cfg.HostVeth, macKernel, macWeir)
		}
		m.queues = append(m.queues, queues)
		m.workers = append(m.workers, w)
		for i := id; i < m.memory.Frames(); i += cfg.Workers {
			w.AddFrame(m.memory.Addr(i))
		}
		w.Refill()
	}
	worker.Connect(m.workers)
}

// Tables are the frontends; to be filled before the first Round.
func (m *inMemory) Tables() *table.Table { return m.tables }

// Flows is the flow table.
func (m *inMemory) Flows() *conntrack.Table { return m.flows }

// Workers is the number of workers.
func (m *inMemory) Workers() int { return len(m.workers) }

// Umem is the packet memory.
func (m *inMemory) Umem() *xsk.Umem { return m.memory }

// Queue is a worker's queue of a port. A frame for it is taken from its Empty.
func (m *inMemory) Queue(worker, port int) *lbtest.Memory { return m.queues[worker][port] }

// Round runs one round of a worker's loop, as its thread would: receive from every port,
// all stages, transmit, take back sent frames. Rounds of different workers may run at the
// same time.
func (m *inMemory) Round(worker int) int { return m.workers[worker].Round() }

// Idle ages the flows that are due, as a worker's thread does before it sleeps. The next
// Round does not pay for flows that came due before.
func (m *inMemory) Idle(worker int) { m.workers[worker].Idle() }

// Counters are a worker's as of its last Round.
func (m *inMemory) Counters(id int) worker.Counters { return m.workers[id].Counters() }

// ForgetFlows ends all connections, between Rounds.
func (m *inMemory) ForgetFlows() {
	m.flows.Range(func(r conntrack.Ref) bool { m.flows.Delete(r); return true })
	var resume []func()
	for _, w := range m.workers {
		resume = append(resume, w.Quiescent())
	}
	m.flows.Sweep(m.flows.Tick(), 0)
	for _, f := range resume {
		f()
	}
}

// Close frees the memory.
func (m *inMemory) Close() error {
	var errs []error
	if m.flows != nil {
		errs = append(errs, m.flows.Close())
	}
	if m.memory != nil {
		errs = append(errs, m.memory.Close())
	}
	return errors.Join(errs...)
}
