package lb

import (
	"sync"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
)

// ServiceTotals are the counters of a Service since this process has served it.
type ServiceTotals struct {
	worker.ServiceCounters
	// FailedHandshakes are TCP and SCTP connections that ended before the handshake was
	// complete.
	FailedHandshakes uint64
	// Open and HalfOpen are connections now.
	Open, HalfOpen uint32
}

// serviceCounts are the counters per Service. A number that another Service had before
// goes on counting: base has the counters at the time of the change.
type serviceCounts struct {
	workers *worker.ServiceCounts

	mu     sync.Mutex
	byName map[string]countedService
}

type countedService struct {
	number uint32
	base   *ServiceTotals // nil: nothing was counted before
}

// open makes the counters for a number of workers.
func (c *serviceCounts) open(workers int) {
	c.workers, c.byName = worker.NewServiceCounts(workers), map[string]countedService{}
}

// follow notes the numbers of Services that a publication has put or deleted.
func (c *serviceCounts) follow(flows *conntrack.Table, tables *table.Table, put []table.Service, del []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range del {
		delete(c.byName, name)
	}
	for i := range put {
		name := put[i].Name
		n, ok := tables.ServiceNumber(name)
		if old, known := c.byName[name]; !ok || known && old.number == n {
			continue
		}
		s := countedService{number: n}
		t := c.read(flows, n)
		t.Open, t.HalfOpen = 0, 0
		if t != (ServiceTotals{}) {
			s.base = &t
		}
		c.byName[name] = s
	}
}

func (c *serviceCounts) read(flows *conntrack.Table, n uint32) ServiceTotals {
	return ServiceTotals{
		ServiceCounters: c.workers.Read(n), FailedHandshakes: flows.ServiceFailed(n),
		Open: flows.ServiceOpen(n), HalfOpen: flows.ServiceHalfOpen(n),
	}
}

// totals are the counters of a Service; zero for a Service that is not served.
func (c *serviceCounts) totals(flows *conntrack.Table, name string) ServiceTotals {
	c.mu.Lock()
	s, ok := c.byName[name]
	c.mu.Unlock()
	if !ok {
		return ServiceTotals{}
	}
	t := c.read(flows, s.number)
	if s.base != nil {
		t.ServiceCounters = t.Since(&s.base.ServiceCounters)
		t.FailedHandshakes -= s.base.FailedHandshakes
	}
	return t
}
