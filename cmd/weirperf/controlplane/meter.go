package controlplane

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/table"
)

const (
	batchSize = 4                     // packets of a round: it is to take less than 1 us
	stallFrom = 10 * time.Microsecond // a round that takes longer is a stall
	maxStalls = 1 << 20
)

// meter is a worker's loop that watches the clock.
type meter struct {
	table *table.Table
	keys  []table.Key
	cpu   int

	end  atomic.Bool
	done chan *Stall
	sum  uint64 // keeps the compiler from leaving the work out
}

// frontendKeys are node ports and load balancer addresses of the cluster.
func frontendKeys(c *cluster) []table.Key {
	var keys []table.Key
	for i := range min(len(c.sizes), 4096) {
		keys = append(keys, table.MakeKey(netip.AddrPortFrom(netip.MustParseAddr(address(198, i)), 80), 6))
	}
	return keys
}

func startMeter(t *table.Table, keys []table.Key, cpu int) *meter {
	m := &meter{table: t, keys: keys, cpu: cpu, done: make(chan *Stall, 1)}
	go m.run()
	return m
}

func (m *meter) stop() *Stall {
	m.end.Store(true)
	return <-m.done
}

// run is never unlocked from its thread, which is pinned: it ends with it.
func (m *meter) run() {
	runtime.LockOSThread()
	if m.cpu >= 0 {
		var set unix.CPUSet
		set.Set(m.cpu)
		_ = unix.SchedSetaffinity(0, &set)
	}
	stalls := make([]time.Duration, 0, maxStalls)
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	waited := runDelay()
	start := time.Now()
	last, rounds, lost := start, 0, time.Duration(0)
	for !m.end.Load() {
		m.round(rounds)
		now := time.Now()
		if d := now.Sub(last); d > stallFrom && len(stalls) < cap(stalls) {
			stalls = append(stalls, d)
			lost += d
		}
		last = now
		rounds++
	}
	total := last.Sub(start)
	waited = runDelay() - waited
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
	m.done <- summary(stalls, rounds, total, lost, waited, &before, &after)
}

// round does the work of a worker for a batch of packets.
func (m *meter) round(n int) {
	s := m.table.Load()
	var w [5]uint64
	for i := range batchSize {
		at := n*batchSize + i
		f := s.Lookup(&m.keys[at%len(m.keys)])
		if f == nil {
			continue
		}
		w[0] = uint64(at) * 0x9e3779b97f4a7c15
		if e := f.Pool.Pick(table.Hash(&w)); e != nil {
			m.sum += uint64(e.ID)
		}
	}
}

func summary(stalls []time.Duration, rounds int, total, in, waited time.Duration, before, after *unix.Rusage) *Stall {
	s := &Stall{
		Seconds:       total.Seconds(),
		PerSecond:     float64(len(stalls)) / total.Seconds(),
		WaitedPercent: 100 * waited.Seconds() / total.Seconds(),
		Voluntary:     after.Nvcsw - before.Nvcsw,
		Involuntary:   after.Nivcsw - before.Nivcsw,
	}
	normal := float64(total-in) / float64(max(1, rounds-len(stalls)))
	s.RoundNs = normal
	s.LostPercent = 100 * (float64(in) - normal*float64(len(stalls))) / float64(total)
	s.OwnPercent = max(0, s.LostPercent-s.WaitedPercent)
	slices.Sort(stalls)
	s.P50us, s.P99us, s.Maxus = quantile(stalls, 0.5), quantile(stalls, 0.99), quantile(stalls, 1)
	for _, d := range stalls {
		if d > time.Millisecond {
			s.Over1ms++
		}
	}
	return s
}

// runDelay is how long the calling thread has waited for a CPU
// (Documentation/scheduler/sched-stats.rst), 0 where the kernel does not say.
func runDelay() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", unix.Gettid()))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	ns, _ := strconv.ParseInt(fields[1], 10, 64)
	return time.Duration(ns)
}
