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

	given, lost atomic.Uint64         // in this order, so that never more are lost than given
	fault       atomic.Pointer[fault] // of the last events that were lost; nil: of none lately
}

// queueSize is how many reads of records wait for a place that is slow: a second of 16,000 records.
const queueSize = 16

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
	return &target{name: name, sink: s, log: log, queue: make(chan []Event, queueSize), done: make(chan struct{})}
}

// follow writes events until the queue is closed.
func (t *target) follow() {
	defer close(t.done)
	defer t.sink.close()
	for events := range t.queue {
		lost, err := t.sink.write(events)
		t.given.Add(uint64(len(events)))
		t.count(lost, err)
	}
}

var errSlow = errors.New("it takes records more slowly than they come")

// give queues events, which are lost where the queue is full.
func (t *target) give(events []Event) {
	select {
	case t.queue <- events:
	default:
		t.given.Add(uint64(len(events)))
		t.count(len(events), errSlow)
	}
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

// look ends a fault that is over.
func (t *target) look(now time.Time) {
	if f := t.fault.Load(); f != nil && f.over(now) && t.fault.CompareAndSwap(f, nil) {
		t.log.Info("flow log: no records are lost any more", "to", t.name, "lost", t.lost.Load())
	}
}
