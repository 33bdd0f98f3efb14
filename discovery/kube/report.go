package kube

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
)

// Limits of Events: a cluster has many nodes, and each has something to say.
const (
	// eventsPerSecond and eventBurst are those of the fleet, shared out between the nodes of the
	// cluster; a node has no more than a tenth of them.
	eventsPerSecond = 10
	eventBurst      = 200
	leastShares     = 10
	maxEventText    = 1024 // the API's limit

	// Nodes take turns of this length, and are all through after maxTurns.
	turn     = 100 * time.Millisecond
	maxTurns = time.Minute

	// maxChanges is how many Events of changes wait at most: a storm of changes is on the
	// node's own list alone.
	maxChanges = 100
	// changeWindow is the time in which equal changes are an Event.
	changeWindow = 10 * time.Minute
)

// reporter records Events on Services that cannot be served, and of changes that nodes see
// alike. The same text is recorded once; Events beyond the limit wait.
type reporter struct {
	src  *Source
	on   bool
	wake chan struct{}
	// paid is when the requests so far are within this node's share; of start alone.
	paid time.Time

	mu   sync.Mutex
	said map[discovery.ServiceName]string // the newest complaint
	todo map[subject]event                // not yet recorded
}

// subject tells Events apart that wait: of the complaints about a Service the newest waits, and
// each change.
type subject struct {
	service discovery.ServiceName
	change  string // "": a complaint
}

func newReporter(src *Source, on bool) *reporter {
	return &reporter{
		src: src, on: on,
		wake: make(chan struct{}, 1),
		said: map[discovery.ServiceName]string{},
		todo: map[subject]event{},
	}
}

// start begins to record; the returned function ends it.
func (r *reporter) start(ctx context.Context) (stop func()) {
	if !r.on {
		return func() {}
	}
	var task sync.WaitGroup
	task.Go(func() {
		for r.recordNext(ctx) {
		}
	})
	return task.Wait
}

// complain records an Event, unless the text is that of the last Event. An empty text
// withdraws the waiting Event.
func (r *reporter) complain(name discovery.ServiceName, e event) {
	if !r.on {
		return
	}
	if !r.concerns(name) {
		e.text = "" // other nodes serve it, or none
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.text {
	case r.said[name]:
	case "":
		delete(r.said, name)
		delete(r.todo, subject{service: name})
	default:
		e.due = r.due(name)
		r.said[name], r.todo[subject{service: name}] = e.text, e
	}
	r.wakeUp()
}

func (r *reporter) concerns(name discovery.ServiceName) bool {
	c, svc := r.src.cfg.Concerns, r.src.service(name)
	return c == nil || svc == nil || c(svc)
}

// change records an Event of a change, unless as many wait as may.
func (r *reporter) change(name discovery.ServiceName, c Change) {
	if !r.on || !r.concerns(name) {
		return
	}
	e := event{reason: c.Reason, text: c.Text, kind: corev1.EventTypeNormal}
	if c.Warning {
		e.kind = corev1.EventTypeWarning
	}
	e.identity = fmt.Sprint(time.Now().Unix()/int64(changeWindow.Seconds()), " ", c.Identity)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := subject{name, c.Identity}
	if _, waits := r.todo[s]; !waits && len(r.todo) >= maxChanges {
		return
	}
	e.due = r.due(name)
	r.todo[s] = e
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

// recordNext records a waiting Event, and returns false once ctx has ended.
func (r *reporter) recordNext(ctx context.Context) bool {
	r.mu.Lock()
	s, e := r.next()
	wait := time.Until(e.due)
	if e != (event{}) && wait <= 0 {
		delete(r.todo, s)
	}
	r.mu.Unlock()
	var due <-chan time.Time // nil: nothing waits
	if e != (event{}) {
		due = time.After(wait)
	}
	if due == nil || wait > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-r.wake:
		case <-due:
		}
		return true
	}
	if !r.waitForShare(ctx) {
		return false
	}
	if !r.record(ctx, s.service, e) {
		r.later(s, e)
	}
	return true
}

// waitForShare waits until this node may look at an Event, and returns false once ctx has ended.
func (r *reporter) waitForShare(ctx context.Context) bool {
	var wait time.Duration
	if wait, r.paid = share(r.src.nodes(), r.paid, time.Now()); wait <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// share is how long a request of a node waits, of so many, and the next paid.
func share(nodes int, paid, now time.Time) (wait time.Duration, next time.Time) {
	shares := time.Duration(max(nodes, leastShares))
	interval := shares * time.Second / eventsPerSecond
	burst := max(eventBurst/shares-1, 0) * interval
	if paid.Before(now) {
		paid = now
	}
	return paid.Add(-burst).Sub(now), paid.Add(interval)
}

// later has an Event wait for another try, unless it was taken back or replaced.
func (r *reporter) later(s subject, e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, newer := r.todo[s]; newer || s.change == "" && r.said[s.service] != e.text {
		return
	}
	e.due = r.due(s.service).Add(r.src.cfg.EventRetry)
	r.todo[s] = e
}

// next is the Event to record first, zero for none. Preconditions: r.mu is held.
func (r *reporter) next() (s subject, e event) {
	for k, x := range r.todo {
		if e == (event{}) || x.due.Before(e.due) {
			s, e = k, x
		}
	}
	return s, e
}

// due is when this node records an Event of a Service: nodes with the same to say
// take turns, and all but the first find the Event there.
func (r *reporter) due(name discovery.ServiceName) time.Time {
	window := min(time.Duration(r.src.nodes())*turn, maxTurns)
	if window <= 0 {
		return time.Now()
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", r.src.node.name, name)
	return time.Now().Add(time.Duration(h.Sum64() % uint64(window)))
}

// event is an Event that waits.
type event struct {
	reason, text string
	kind         string // "": Warning
	// identity is equal where nodes have the same to say; "": that is the text.
	identity string
	due      time.Time
}

// NewEvent is an Event on a Service. Its name follows from the Service, the reason and the identity, "" for
// the text: the API server has an Event once.
func NewEvent(svc *corev1.Service, kind, reason, text, identity string) *corev1.Event {
	text = discovery.Shortened(text, maxEventText)
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", svc.UID, reason, cmp.Or(identity, text))
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: fmt.Sprintf("%s.%016x", svc.Name, h.Sum64())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name,
			UID: svc.UID, ResourceVersion: svc.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
	}
}

// record records an Event. The name follows from the Service and the identity: the API server has
// the Event once, whichever nodes record it and however often they are
// started, for as long as it keeps Events (an hour by default). A node whose turn comes later finds
// it there, and writes nothing. It reports false where another try may do.
func (r *reporter) record(ctx context.Context, name discovery.ServiceName, e event) (done bool) {
	obj := r.src.object(name)
	if obj == nil {
		return r.src.Synced() // gone, or not told yet
	}
	made := NewEvent(obj, cmp.Or(e.kind, corev1.EventTypeWarning), e.reason, e.text, e.identity)
	made.Source = corev1.EventSource{Component: "weir", Host: r.src.node.name}
	made.ReportingController, made.ReportingInstance = "weir", r.src.node.name
	events := r.src.client.Events(obj.Namespace)
	if _, err := events.Get(ctx, made.Name); err == nil || !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return err == nil || ctx.Err() != nil
	}
	_, err := events.Create(ctx, made)
	if err == nil || apierrors.IsAlreadyExists(err) || ctx.Err() != nil {
		return true
	}
	r.src.log.Debug("an Event is not recorded", "service", name, "err", err)
	// The namespace is going away, a right is missing: that is for good.
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err)
}
