// Package flowlog sends the beginnings and ends of connections to a collector by IPFIX, and to a file
// as JSON lines. Workers leave records in memory of a fixed size (conntrack.Table.ReadRecords), and
// wait for nobody: what is not read in time, or cannot be sent, is lost and counted.
package flowlog

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
)

// Config says where records come from and go to.
type Config struct {
	Collector netip.AddrPort // of IPFIX over UDP; invalid: none
	File      string         // for JSON lines; "": none
	Table     *conntrack.Table
	// ServiceNames are the names of Services by their number in the table.
	ServiceNames func() []string
	// Services are those that are served.
	Services func() []*discovery.Service
	Log      *slog.Logger
}

// Log is the record of connections. A nil Log records nothing.
type Log struct {
	cfg     Config
	names   names
	targets []*target
	clock   wallClock
	records []conntrack.Record // of a read
	events  []Event

	mu   sync.Mutex // of left, and of looks at the table
	left bool       // the table may be gone
}

// target is a place that events go to.
type target struct {
	name string
	sink sink
	log  *slog.Logger

	given, lost atomic.Uint64          // in this order, so that never more are lost than given
	fault       atomic.Pointer[string] // of the last write that failed, for faultTime; nil: none
	failed      time.Time
}

// faultTime is how long a fault lasts after the last write that failed. Hosts limit what they say of a port
// on which nobody listens (Linux: about one ICMP error per second): most messages to it seem to be sent.
const faultTime = 10 * time.Second

// sink writes events. It returns how many were lost, which may include earlier ones.
type sink interface {
	write(events []Event) (lost int, err error)
	close()
}

const (
	// readEvery is the time between two looks at the records. A worker has room for
	// 80,000 records per second at it.
	readEvery = 100 * time.Millisecond
	// readMost is how many records are taken at a time.
	readMost = 1024
	// readLast bounds how often that is done at the end: as many as two workers have room for.
	readLast = 16
	// endTime bounds the writes at the end: a file system may hang.
	endTime = 2 * time.Second
)

// New makes the log of a configuration, nil if that has no place for it.
func New(cfg Config) *Log {
	if !cfg.Collector.IsValid() && cfg.File == "" {
		return nil
	}
	l := &Log{
		cfg: cfg, names: names{services: cfg.ServiceNames, served: cfg.Services},
		records: make([]conntrack.Record, readMost),
	}
	if cfg.Collector.IsValid() {
		l.targets = append(l.targets, &target{name: "ipfix " + cfg.Collector.String(), sink: newExporter(cfg.Collector), log: cfg.Log})
	}
	if cfg.File != "" {
		l.targets = append(l.targets, &target{name: "file " + cfg.File, sink: &file{path: cfg.File}, log: cfg.Log})
	}
	return l
}

// Run sends records until ctx ends, and then those that are left, unless a place takes no more. Then no goroutine
// looks at the table.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.send(ctx)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(endTime):
		l.mu.Lock()
		l.left = true
		l.mu.Unlock()
		l.cfg.Log.Warn("flow log: the last records are lost: a write does not end")
	}
	return nil
}

func (l *Log) send(ctx context.Context) {
	defer func() {
		for _, t := range l.targets {
			t.sink.close()
		}
	}()
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		for l.read() == readMost && ctx.Err() == nil {
		}
		select {
		case <-ctx.Done():
			for n := 0; n < readLast && l.read() == readMost; n++ { // workers go on meanwhile
			}
			return
		case <-tick.C:
		}
	}
}

// read takes records, sends them, and returns how many there were.
func (l *Log) read() int {
	n := l.take()
	if n == 0 {
		return 0
	}
	for _, t := range l.targets {
		t.write(l.events)
	}
	return n
}

// take makes events of records, and returns how many.
func (l *Log) take() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return 0
	}
	n := l.cfg.Table.ReadRecords(l.records)
	if n == 0 {
		return 0
	}
	now, tick := time.Now(), l.cfg.Table.Tick()
	missing := false
	for i := range l.records[:n] {
		r := &l.records[i]
		missing = missing || !l.names.knows(r.ServiceID, r.Endpoint.Dst().Addr())
	}
	l.names.refresh(now, missing)
	l.clock.follow(now, tick)
	l.events = l.events[:0]
	for i := range l.records[:n] {
		l.events = append(l.events, eventOf(&l.records[i], l.clock.at, &l.names))
	}
	return n
}

// wallClock has the time of day of a tick: always the same, unless the clock is set.
type wallClock struct{ zero time.Time } // of tick 0

// tickTime is the length of a tick.
const tickTime = time.Second / conntrack.TicksPerSecond

// follow takes the time of day at a tick, which may be nearly over.
func (c *wallClock) follow(now time.Time, tick uint32) {
	zero := now.UTC().Round(0).Truncate(time.Millisecond).Add(-time.Duration(tick) * tickTime)
	if d := zero.Sub(c.zero); d < -2*tickTime || d > 2*tickTime {
		c.zero = zero
	}
}

func (c *wallClock) at(tick uint32) time.Time { return c.zero.Add(time.Duration(tick) * tickTime) }

// write counts what became of events, and logs a fault once, until the next.
func (t *target) write(events []Event) {
	lost, err := t.sink.write(events)
	t.given.Add(uint64(len(events)))
	t.lost.Add(uint64(lost))
	last := t.fault.Load()
	switch {
	case err == nil && last != nil && time.Since(t.failed) > faultTime:
		t.fault.Store(nil)
		t.log.Info("flow log: records are sent again", "to", t.name, "lost", t.lost.Load())
	case err != nil:
		text := err.Error()
		t.failed = time.Now()
		t.fault.Store(&text)
		if last == nil {
			t.log.Warn("flow log: records are lost", "to", t.name, "err", err)
		}
	}
}

// Status is what was recorded and sent, nil for no log.
func (l *Log) Status() *api.FlowLog {
	if l == nil {
		return nil
	}
	s := l.cfg.Table.RecordStats()
	out := &api.FlowLog{Records: s.Written, Lost: s.Lost, Skipped: s.Skipped}
	for _, t := range l.targets {
		lost := t.lost.Load()
		to := api.FlowLogTarget{Name: t.name, Sent: t.given.Load() - lost, Lost: lost}
		if f := t.fault.Load(); f != nil {
			to.Fault = *f
		}
		out.Targets = append(out.Targets, to)
	}
	return out
}
