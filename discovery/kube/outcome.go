package kube

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lists is what an informer asks an API server for.
type lists interface {
	ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// observe returns from with the outcome of every request noted for a resource.
func (o *observer) observe(name string, from lists) *cache.ListWatch {
	begin := func(ctx context.Context) (context.Context, *request) {
		q := &request{resource: name}
		return context.WithValue(ctx, requestKey{}, q), q
	}
	end := func(ctx context.Context, q *request, err error) {
		if err != nil && !q.noted && ctx.Err() == nil && !isExpired(err) {
			o.failed(name, err.Error())
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			in, q := begin(ctx)
			list, err := from.ListWithContext(in, options)
			end(ctx, q, err)
			if err != nil {
				return nil, err
			}
			if m, err := meta.ListAccessor(list); err == nil && m.GetContinue() == "" {
				o.succeeded(name)
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			in, q := begin(ctx)
			w, err := from.WatchWithContext(in, options)
			end(ctx, q, err)
			if err != nil {
				return nil, err
			}
			o.mu.Lock()
			r := o.resourceNamed(name)
			o.mu.Unlock()
			f := &followed{from: w, to: make(chan watch.Event), stopped: make(chan struct{}), observer: o, name: name, resource: r}
			f.listing = options.SendInitialEvents != nil && *options.SendInitialEvents
			go f.run(ctx)
			return f, nil
		},
	}
}

// followed is a watch whose events are noted.
type followed struct {
	from     watch.Interface
	to       chan watch.Event
	stopped  chan struct{}
	observer *observer
	name     string
	resource *resource
	listing  bool // the watch begins with a list, whose end has not come
	once     sync.Once
}

// ResultChan implements watch.Interface.
func (f *followed) ResultChan() <-chan watch.Event { return f.to }

// Stop implements watch.Interface.
func (f *followed) Stop() {
	f.once.Do(func() { close(f.stopped) })
	f.from.Stop()
}

func (f *followed) run(ctx context.Context) {
	defer close(f.to)
	for e := range f.from.ResultChan() {
		if ctx.Err() == nil {
			f.note(e)
		}
		select {
		case f.to <- e:
		case <-f.stopped:
			return
		}
	}
	select {
	case <-f.stopped:
	case <-ctx.Done():
	default:
		if f.listing {
			f.observer.failed(f.name, "the list is cut short")
		}
	}
}

// note takes the outcome of an event. The first events of a list prove nothing before its end.
func (f *followed) note(e watch.Event) {
	if e.Type == watch.Error {
		f.listing = false // said here
		if err := apierrors.FromObject(e.Object); !isExpired(err) {
			f.observer.failed(f.name, err.Error())
		}
		return
	}
	if f.listing && e.Type == watch.Bookmark {
		if m, err := meta.Accessor(e.Object); err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			f.listing = false
		}
	}
	switch {
	case f.listing:
	case f.resource.faulty.Load():
		f.observer.succeeded(f.name)
	default:
		f.resource.good.Store(time.Now().UnixNano())
	}
}
