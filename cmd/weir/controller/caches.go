package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// cacheTime is how long the first lists of a controller may take.
const cacheTime = 30 * time.Second

// caches are the Services and namespaces of the API server.
type caches struct {
	services, namespaces cache.SharedIndexInformer

	stop context.CancelFunc
	task sync.WaitGroup

	mu     sync.Mutex
	errors map[string]error // the last of each resource
}

// startCaches starts caches, until ctx ends, and waits until they are complete.
func (c *controller) startCaches(ctx context.Context) (*caches, error) {
	rest := c.client.REST(corev1.SchemeGroupVersion)
	informer := func(resource string, of runtime.Object) cache.SharedIndexInformer {
		lw := cache.NewFilteredListWatchFromClient(rest, resource, metav1.NamespaceAll, upToDate)
		return cache.NewSharedIndexInformer(lw, of, 0, cache.Indexers{})
	}
	k := &caches{
		services: informer("services", &corev1.Service{}), namespaces: informer("namespaces", &corev1.Namespace{}),
		errors: map[string]error{},
	}
	wait, cancel := context.WithTimeout(ctx, cacheTime)
	defer cancel()
	list := map[string]cache.SharedIndexInformer{"services": k.services, "namespaces": k.namespaces}
	for resource, informer := range list {
		err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			k.mu.Lock()
			defer k.mu.Unlock()
			k.errors[resource] = err
		})
		if err != nil {
			return nil, err
		}
	}
	ctx, k.stop = context.WithCancel(ctx)
	for _, informer := range list {
		k.task.Go(func() { informer.RunWithContext(ctx) })
	}
	var errs []error
	for resource, informer := range list {
		if !cache.WaitForCacheSync(wait.Done(), informer.HasSynced) {
			k.mu.Lock()
			errs = append(errs, fmt.Errorf("%s cannot be listed within %s: %w", resource, cacheTime, cmp.Or(k.errors[resource], wait.Err())))
			k.mu.Unlock()
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return k, errors.Join(errs...)
}

// objects are all of a cache. They must not be changed.
func objects[T any](of cache.Store) []T {
	var out []T
	for _, o := range of.List() {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// named is the object of a cache with a key, nil for none. It must not be changed.
func named[T any](of cache.Store, key string) *T {
	o, _, _ := of.GetByKey(key) // an error is that of another kind of store
	t, _ := o.(*T)
	return t
}

// shutdown ends the caches and waits for that.
func (k *caches) shutdown() {
	k.stop()
	k.task.Wait()
}

// tryCaches reports whether a controller may stand for the Lease: it can read all that it needs. What
// it has read is forgotten, since the holder until then goes on writing.
func (c *controller) tryCaches(ctx context.Context) error {
	k, err := c.startCaches(ctx)
	if k != nil {
		k.shutdown()
	}
	return err
}

// tryLists asks the API server for an object of each cache. A cache itself has old objects for ever
// when they may be listed no more.
func (c *controller) tryLists(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	o := metav1.ListOptions{Limit: 1}
	if err := c.client.Services(metav1.NamespaceAll).List(ctx, o, &corev1.ServiceList{}); err != nil {
		return err
	}
	return c.client.Namespaces().List(ctx, o, &corev1.NamespaceList{})
}

// health is the answer to /healthz: 200 while the caches are current, and the Lease is renewed
// by its holder.
type health struct {
	mu    sync.Mutex
	lease *elector // nil: no election yet
	fault error
}

func newHealth() *health {
	return &health{fault: errors.New("services and namespaces are not listed yet")}
}

// set notes why the caches are not current, nil if they are.
func (h *health) set(fault error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = fault
}

// follow has the answer follow the Lease, too.
func (h *health) follow(e *elector) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease = e
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	err, lease := h.fault, h.lease
	h.mu.Unlock()
	if err == nil && lease != nil {
		err = lease.check()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
