package kube

import (
	"context"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weirlb/weir/discovery"
)

// Reasons of Events.
const (
	ReasonInvalid     = "InvalidService"     // a field is malformed
	ReasonUnsupported = "UnsupportedService" // left to the kernel as a whole
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
	said map[discovery.ServiceName]string // as of the newest Update
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

// services reports what is wrong with the Services of an Update.
func (r *reporter) services(up *discovery.Update) {
	if !r.on {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range up.Deleted {
		delete(r.said, name)
		delete(r.todo, name)
	}
	for _, svc := range up.Put {
		reason, text := complaint(svc)
		switch text {
		case r.said[svc.Name]:
		case "":
			delete(r.said, svc.Name)
			delete(r.todo, svc.Name)
		default:
			r.said[svc.Name], r.todo[svc.Name] = text, event{reason, text}
		}
	}
	r.wakeUp()
}

// add has an Event recorded.
func (r *reporter) add(name discovery.ServiceName, reason, text string) {
	if !r.on {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.todo[name] = event{reason, text}
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

// complaint is what is wrong with a Service, "" for nothing.
func complaint(svc *discovery.Service) (reason, text string) {
	switch {
	case svc.Unsupported != "" && len(svc.Errors) == 0:
		return ReasonUnsupported, svc.Unsupported + " is not supported by Weir: the Service is left to the kernel"
	case len(svc.Errors) == 0:
		return "", ""
	}
	text = strings.Join(svc.Errors, "; ")
	if svc.Unsupported != "" {
		text += " (the Service is left to the kernel)"
	}
	return ReasonInvalid, text
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
