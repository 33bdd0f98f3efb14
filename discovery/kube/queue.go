package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weirlb/weir/discovery"
)

// kind is a kind of object that is watched.
type kind uint8

const (
	kindNode kind = iota
	kindService
	kindSlice
	kindEndpoints
)

func (k kind) String() string {
	return [...]string{"Node", "Service", "EndpointSlice", "Endpoints"}[k]
}

// key names an object.
type key struct {
	kind            kind
	namespace, name string
}

// queue holds, between two turns of Run, the newest state of each changed object: nil for a
// deleted object. Informers put, Run takes.
type queue struct {
	wake    chan struct{}
	started time.Time // earlier triggers do not count

	mu       sync.Mutex
	changed  map[key]runtime.Object
	since    time.Time // of the oldest event
	triggers map[discovery.ServiceName][]time.Time
}

// changes are the events of a turn.
type changes struct {
	objects  map[key]runtime.Object
	since    time.Time
	triggers map[discovery.ServiceName][]time.Time
}

func (q *queue) init() {
	q.wake = make(chan struct{}, 1)
	q.started = time.Now()
	q.changed = map[key]runtime.Object{}
	q.triggers = map[discovery.ServiceName][]time.Time{}
}

// put notes a change.
func (q *queue) put(k key, o runtime.Object) {
	q.mu.Lock()
	if len(q.changed) == 0 {
		q.since = time.Now()
	}
	q.changed[k] = o
	q.mu.Unlock()
	q.signal()
}

// signal has Run look for changes.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// trigger notes when that was done which a change of a Service's slice
// follows.
func (q *queue) trigger(svc discovery.ServiceName, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.triggers[svc]; len(t) < maxTriggers {
		q.triggers[svc] = append(t, at)
	}
}

// maxTriggers bounds the trigger times kept of a Service between two turns.
const maxTriggers = 1024

// dropTriggers is for a deleted slice: the trigger time is that of an earlier change.
func (q *queue) dropTriggers(svc discovery.ServiceName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.triggers, svc)
}

// take empties the queue.
func (q *queue) take() changes {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := changes{q.changed, q.since, q.triggers}
	q.changed = map[key]runtime.Object{}
	q.triggers = map[discovery.ServiceName][]time.Time{}
	return c
}
