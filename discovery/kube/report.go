package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weirlb/weir/discovery"
)

// Limits of Events: a cluster has many nodes, and each has something to say.
const (
	eventsPerSecond = 1
	eventBurst      = 20
	maxEventText    = 1024 // the API's limit
)

// reporter records Events on Services that cannot be served. The same is said
// once; what the limit does not let through waits.
type reporter struct {
	src      *Source
	on       bool
	recorder record.EventRecorder
	limit    flowcontrol.RateLimiter
	wake     chan struct{}

	mu   sync.Mutex
	said map[discovery.ServiceName]string // the newest text
	todo map[discovery.ServiceName]event  // not yet recorded
}

func newReporter(src *Source, on bool) *reporter {
	return &reporter{
		src: src, on: on,
		limit: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst),
		wake:  make(chan struct{}, 1),
		said:  map[discovery.ServiceName]string{},
		todo:  map[discovery.ServiceName]event{},
	}
}

// start begins to record; the returned function ends it.
func (r *reporter) start(ctx context.Context) (stop func()) {
	if !r.on {
		return func() {}
	}
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.src.client.CoreV1().Events("")})
	r.recorder = b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "weir", Host: r.src.node.name})
	var task sync.WaitGroup
	task.Go(func() {
		for r.recordNext(ctx) {
		}
	})
	return func() {
		task.Wait()
		b.Shutdown()
	}
}

// complain has an Event recorded, unless the text is that of the last one. An
// empty text takes back what waits.
func (r *reporter) complain(name discovery.ServiceName, e event) {
	if !r.on {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.text {
	case r.said[name]:
	case "":
		delete(r.said, name)
		delete(r.todo, name)
	default:
		r.said[name], r.todo[name] = e.text, e
	}
	r.wakeUp()
}

func (r *reporter) wakeUp() {
	if len(r.todo) == 0 {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// recordNext records one of the Events that wait, and returns false once ctx
// has ended.
func (r *reporter) recordNext(ctx context.Context) bool {
	r.mu.Lock()
	var (
		name discovery.ServiceName
		e    event
	)
	for name, e = range r.todo {
		delete(r.todo, name)
		break
	}
	r.mu.Unlock()
	if e == (event{}) {
		select {
		case <-ctx.Done():
			return false
		case <-r.wake:
			return true
		}
	}
	if r.limit.Wait(ctx) != nil {
		return false
	}
	r.warn(name, e)
	return true
}

// event is a reason and a text.
type event struct{ reason, text string }

// warn records one Event.
func (r *reporter) warn(name discovery.ServiceName, e event) {
	obj := r.src.object(name)
	if obj == nil {
		return
	}
	text := e.text
	if len(text) > maxEventText {
		text = text[:maxEventText-3] + "..."
	}
	r.recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: obj.Namespace, Name: obj.Name,
		UID: obj.UID, ResourceVersion: obj.ResourceVersion,
	}, corev1.EventTypeWarning, e.reason, text)
}
