package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/client"
)

// Limits of Events, those of client-go: they must not hold up writes of status, and a Service that
// changes all the time must not keep the others from having any.
const (
	eventsPerSecond  = 20
	eventsWaiting    = 1000
	eventsPerService = 25 // at once, and then one in eventEvery
	eventEvery       = 5 * time.Minute
	limitedServices  = 4096
)

// recorder records Events on Services in the background. An Event beyond a limit is left out.
type recorder struct {
	client *client.Client
	log    *slog.Logger
	queue  chan *corev1.Event

	mu     sync.Mutex
	limits map[types.UID]*rate.Limiter // by Service
}

func newRecorder(c *client.Client, log *slog.Logger) *recorder {
	return &recorder{client: c, log: log, queue: make(chan *corev1.Event, eventsWaiting), limits: map[types.UID]*rate.Limiter{}}
}

// event has an Event recorded, without waiting for it.
func (r *recorder) event(svc *corev1.Service, kind, reason, text string) {
	if !r.allows(svc.UID) {
		return
	}
	// Every decision has an Event: that the Service gets an address again is told again.
	e := kube.NewEvent(svc, kind, reason, text, svc.ResourceVersion+" "+text)
	e.Source, e.ReportingController = corev1.EventSource{Component: "weir-controller"}, "weir-controller"
	select {
	case r.queue <- e:
	default:
		r.log.Debug("an Event is left out: too many wait", "service", key(svc), "reason", reason)
	}
}

func (r *recorder) allows(service types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[service]
	if l == nil {
		if len(r.limits) >= limitedServices {
			clear(r.limits)
		}
		l = rate.NewLimiter(rate.Every(eventEvery), eventsPerService)
		r.limits[service] = l
	}
	return l.Allow()
}

// start records Events until stop is called, also those of the last writes, after the end of ctx.
func (r *recorder) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var task sync.WaitGroup
	task.Go(func() {
		pace := rate.NewLimiter(eventsPerSecond, 2*eventsPerSecond)
		for pace.Wait(ctx) == nil {
			select {
			case <-ctx.Done():
				return
			case e := <-r.queue:
				if _, err := r.client.Events(e.Namespace).Create(ctx, e); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
					r.log.Warn("an Event is not recorded", "service", e.Namespace+"/"+e.InvolvedObject.Name, "reason", e.Reason, "err", err)
				}
			}
		}
	})
	return func() { cancel(); task.Wait() }
}
