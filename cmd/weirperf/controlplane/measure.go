package controlplane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
)

// plane is Weir's control plane from the slice to the published snapshot, as
// the daemon has it but for the sources and the steering map.
type plane struct {
	store      *discovery.Store
	translator *translate.Translator
	table      *table.Table
	// replaced is how many endpoints of a slice are others than at first.
	replaced map[target]int
}

func newPlane() *plane {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	return &plane{
		store:      discovery.NewStore(discovery.Options{NodeName: nodeName(0), Supported: translate.Supported}),
		translator: translate.New(translate.Options{NodeAddresses: addrs}),
		table:      table.New(table.Config{MaxEndpoints: 1 << 21}),
		replaced:   map[target]int{},
	}
}

// publish brings the changes of the store into a new snapshot.
func (p *plane) publish() error {
	up := p.store.Flush()
	if up == nil {
		return fmt.Errorf("the change changed nothing")
	}
	batch := p.translator.Apply(up)
	change, err := p.table.Prepare(batch.Put, batch.Delete)
	if err != nil {
		return err
	}
	if len(change.Errors) > 0 {
		return change.Errors[0]
	}
	return p.table.Publish(change)
}

// sample is the duration of a change: by the clock, and by the CPU alone, which other
// processes on the machine do not add to. Neither includes the garbage collector, but for
// its assists on the goroutine.
type sample struct{ wall, cpu time.Duration }

// change is a slice event and the publication of it. Preconditions: the goroutine
// is locked to its thread.
func (p *plane) change(slice *discoveryv1.EndpointSlice) (sample, error) {
	cpu, start := threadTime(), time.Now()
	p.store.SetSlice(slice)
	err := p.publish()
	return sample{time.Since(start), threadTime() - cpu}, err
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// build fills an empty plane with the whole cluster in a single publication, as
// after the first list of every object. The objects are made beforehand.
func (p *plane) build(c *cluster) (time.Duration, error) {
	nodes := nodeObjects()
	services := make([]*corev1.Service, len(c.sizes))
	var slices []*discoveryv1.EndpointSlice
	for i := range services {
		services[i] = serviceObject(i)
		for j := range c.sliceCount(i) {
			slices = append(slices, c.sliceObject(i, j, 0))
		}
	}
	runtime.GC()
	start := time.Now()
	for _, n := range nodes {
		p.store.SetNode(n)
	}
	for _, s := range services {
		p.store.SetService(s)
	}
	for _, s := range slices {
		p.store.SetSlice(s)
	}
	err := p.publish()
	return time.Since(start), err
}

// target is a slice of a Service, both by number.
type target struct{ service, slice int }

// next is the target's slice with one more endpoint replaced or, when all are, with the
// first endpoints restored.
func (p *plane) next(c *cluster, t target) *discoveryv1.EndpointSlice {
	size := min(perSlice, c.sizes[t.service]-t.slice*perSlice)
	p.replaced[t] = (p.replaced[t] + 1) % (size + 1)
	return c.sliceObject(t.service, t.slice, p.replaced[t])
}

// changes measures n events. Each replaces another endpoint of a slice that pick names.
func (p *plane) changes(ctx context.Context, c *cluster, n int, pick func(i int) target) (spread, error) {
	var s spread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range n {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		d, err := p.change(p.next(c, pick(i)))
		if err != nil {
			return s, err
		}
		s.add(d)
	}
	return s, nil
}

// anySlice picks among all slices alike.
func (c *cluster) anySlice() func(int) target {
	var all []target
	for i := range c.sizes {
		for j := range c.sliceCount(i) {
			all = append(all, target{i, j})
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	return func(int) target { return all[rng.IntN(len(all))] }
}

// ofSize picks among the Services with that many endpoints, first to last.
func (c *cluster) ofSize(size int) func(int) target {
	var all []target
	for i, n := range c.sizes {
		if n == size {
			for j := range c.sliceCount(i) {
				all = append(all, target{i, j})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return func(i int) target { return all[i%len(all)] }
}

// allocation is the memory that a change allocates, without the decoding of the event in
// the source.
type allocation struct{ bytes, objects uint64 }

// allocations measures the median of n changes.
func (p *plane) allocations(c *cluster, n int, pick func(i int) target) (allocation, error) {
	var bytes, objects []uint64
	for i := range n {
		object := p.next(c, pick(i))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := p.change(object)
		runtime.ReadMemStats(&after)
		if err != nil {
			return allocation{}, err
		}
		bytes = append(bytes, after.TotalAlloc-before.TotalAlloc)
		objects = append(objects, after.Mallocs-before.Mallocs)
	}
	slices.Sort(bytes)
	slices.Sort(objects)
	return allocation{bytes[n/2], objects[n/2]}, nil
}

// heap returns the live memory after a full collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // finalizers of the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// spread is a set of durations.
type spread struct{ wall, cpu []time.Duration }

func (s *spread) add(m sample) {
	s.wall, s.cpu = append(s.wall, m.wall), append(s.cpu, m.cpu)
}

// quantiles of the durations, in microseconds.
func (s *spread) quantiles() Quantiles {
	return Quantiles{
		MinUs: quantile(s.wall, 0), P50us: quantile(s.wall, 0.5), P99us: quantile(s.wall, 0.99), Maxus: quantile(s.wall, 1),
		CPUP50us: quantile(s.cpu, 0.5), CPUP99us: quantile(s.cpu, 0.99),
	}
}

// quantile is the q-th part of all, in microseconds.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	at := min(int(q*float64(len(sorted))), len(sorted)-1)
	return float64(sorted[at].Nanoseconds()) / 1000
}
