// Package flowlog sends the beginnings and ends of connections to a collector by IPFIX, and to a file
// as JSON lines. Workers leave records in memory of a fixed size (conntrack.Table.ReadRecords), and
// wait for nobody: what is not read in time, or cannot be sent, is lost and counted.
package flowlog

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/aligned"
)

// Config says where records come from and go to.
type Config struct {
	Collector netip.AddrPort // of IPFIX over UDP; invalid: none
	File      string         // for JSON lines; "": none
	Table     *conntrack.Table
	// ServiceNames are the names of Services by their number in the table. It may wait for a change of Services.
	ServiceNames func() []string
	// Services are those that are served. It may wait, too.
	Services func() []*discovery.Service
	Log      *slog.Logger
}

// Log is the record of connections. A nil Log records nothing.
//
// A goroutine reads records, and waits for nobody: each target has a goroutine and a queue of its own, and
// so have the names.
type Log struct {
	cfg     Config
	names   *names
	targets []*target
	clock   wallClock
	records []conntrack.Record // of a read

	unread uint64                // records for which workers had no room, as last seen
	fault  atomic.Pointer[fault] // of reading
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
	l := &Log{cfg: cfg, names: newNames(cfg.ServiceNames, cfg.Services), records: make([]conntrack.Record, readMost)}
	if cfg.Collector.IsValid() {
		l.targets = append(l.targets, newTarget("ipfix "+cfg.Collector.String(), newExporter(cfg.Collector), cfg.Log))
	}
	if cfg.File != "" {
		l.targets = append(l.targets, newTarget("file "+cfg.File, &file{path: cfg.File}, cfg.Log))
	}
	return l
}

// Run sends records until ctx ends, and then those that are left, unless a place takes no more. Then no goroutine
// looks at the table.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	go l.names.follow()
	for _, t := range l.targets {
		go t.follow()
	}
	l.follow(ctx)
	close(l.names.asks)
	for _, t := range l.targets {
		close(t.queue)
	}
	late := time.After(endTime)
	for _, t := range l.targets {
		select {
		case <-t.done:
		case <-late:
			l.cfg.Log.Warn("flow log: the last records are lost: a write does not end", "to", t.name)
			return nil
		}
	}
	return nil
}

// follow reads records until ctx ends, and then those that are left.
func (l *Log) follow(ctx context.Context) {
	tick := aligned.NewTicker(readEvery)
	defer tick.Stop()
	for {
		for l.read() == readMost && ctx.Err() == nil {
			l.look(time.Now())
		}
		l.look(time.Now())
		select {
		case <-ctx.Done():
			for n := 0; n < readLast && l.read() == readMost; n++ { // workers go on meanwhile
			}
			return
		case <-tick.C:
		}
	}
}

// look notes records that nobody has read in time, and ends faults that are over.
func (l *Log) look(now time.Time) {
	if lost := l.cfg.Table.RecordStats().Lost; lost != l.unread {
		if l.fault.Swap(&fault{"more connections begin and end than can be read", now}) == nil {
			l.cfg.Log.Warn("flow log: records are lost: more connections begin and end than can be read")
		}
		l.unread = lost
	}
	if f := l.fault.Load(); f != nil && f.over(now) {
		l.fault.Store(nil)
		l.cfg.Log.Info("flow log: no records are lost any more", "lost", l.unread)
	}
	for _, t := range l.targets {
		t.look(now)
	}
}

// read takes records, queues them for all targets, and returns how many there were.
func (l *Log) read() int {
	n := l.cfg.Table.ReadRecords(l.records)
	if n == 0 {
		return 0
	}
	now, tick := time.Now(), l.cfg.Table.Tick()
	l.names.refresh(now, l.records[:n])
	l.clock.follow(now, tick)
	events := make([]Event, 0, n) // of all targets, which read it when they can
	l.names.mu.RLock()
	for i := range l.records[:n] {
		events = append(events, eventOf(&l.records[i], l.clock.at, l.names))
	}
	l.names.mu.RUnlock()
	for _, t := range l.targets {
		t.give(events)
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

// Status is what was recorded and sent, nil for no log.
func (l *Log) Status() *api.FlowLog {
	if l == nil {
		return nil
	}
	s := l.cfg.Table.RecordStats()
	out := &api.FlowLog{Records: s.Written, Lost: s.Lost, Skipped: s.Skipped}
	if f := l.fault.Load(); f != nil {
		out.Fault = f.text
	}
	for _, t := range l.targets {
		lost := t.lost.Load()
		to := api.FlowLogTarget{Name: t.name, Sent: t.given.Load() - lost, Lost: lost}
		if f := t.fault.Load(); f != nil {
			to.Fault = f.text
		}
		out.Targets = append(out.Targets, to)
	}
	return out
}
