package flowlog

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// target is a place that events go to. Its goroutine writes what the reader queues.
type target struct {
	name  string
	sink  sink
	log   *slog.Logger
	queue chan []Event
	done  chan struct{}

	queued      atomic.Int64          // events
	given, lost atomic.Uint64         // in this order, so that never more are lost than given
	fault       atomic.Pointer[fault] // of the last events that were lost; nil: of none lately
	wrote       atomic.Int64          // UnixNano of the end of the last write without an error
}

// What waits for a place that is slow: reads of records, 400 s of them, and 22 MB of events.
const (
	queueReads  = 4096
	queueEvents = 1 << 16
)

// fault is why records are lost.
type fault struct {
	text string
	at   time.Time
}

// faultTime is how long a fault lasts after the last records that were lost. Hosts limit what they say of a port
// on which nobody listens (Linux: about one ICMP error per second): most messages to it seem to be sent.
const faultTime = 10 * time.Second

func (f *fault) over(now time.Time) bool { return now.Sub(f.at) > faultTime }

// sink writes events. It returns how many were lost, which may include earlier ones.
type sink interface {
	write(events []Event) (lost int, err error)
	close()
}

func newTarget(name string, s sink, log *slog.Logger) *target {
	return &target{name: name, sink: s, log: log, queue: make(chan []Event, queueReads), done: make(chan struct{})}
}

// follow writes events until the queue is closed.
func (t *target) follow() {
	defer close(t.done)
	defer t.sink.close()
	for events := range t.queue {
		lost, err := t.sink.write(events)
		if err == nil {
			t.wrote.Store(time.Now().UnixNano())
		}
		t.queued.Add(-int64(len(events)))
		t.given.Add(uint64(len(events)))
		t.count(lost, err)
	}
}

var errSlow = errors.New("it takes records more slowly than they come")

// give queues events, which are lost where too many wait.
func (t *target) give(events []Event) {
	n := int64(len(events))
	if t.queued.Load()+n <= queueEvents {
		t.queued.Add(n)
		select {
		case t.queue <- events:
			return
		default:
			t.queued.Add(-n)
		}
	}
	t.given.Add(uint64(n))
	t.count(len(events), errSlow)
}

// count counts records that are lost, and logs the first fault.
func (t *target) count(lost int, err error) {
	t.lost.Add(uint64(lost))
	if err == nil {
		return
	}
	if t.fault.Swap(&fault{err.Error(), time.Now()}) == nil {
		t.log.Warn("flow log: records are lost", "to", t.name, "err", err)
	}
}

// look ends a fault that is over: there was a write without an error since.
func (t *target) look(now time.Time) {
	if f := t.fault.Load(); f != nil && f.over(now) && t.wrote.Load() > f.at.UnixNano() && t.fault.CompareAndSwap(f, nil) {
		t.log.Info("flow log: no records are lost any more", "to", t.name, "lost", t.lost.Load())
	}
}
