package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
)

// cacheTime is how long the first lists of a controller may take.
const cacheTime = 30 * time.Second

// caches are the Services and namespaces of the API server.
type caches struct {
	informers.SharedInformerFactory

	mu     sync.Mutex
	errors map[string]error // the last of each resource
}

// startCaches starts caches, until ctx ends, and waits until they are complete.
func (c *controller) startCaches(ctx context.Context) (*caches, error) {
	k := &caches{
		SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTweakListOptions(upToDate)),
		errors:                map[string]error{},
	}
	wait, cancel := context.WithTimeout(ctx, cacheTime)
	defer cancel()
	list := map[string]cache.SharedIndexInformer{
		"services": k.Core().V1().Services().Informer(), "namespaces": k.Core().V1().Namespaces().Informer(),
	}
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
	k.Start(ctx.Done())
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

// tryCaches reports whether a controller may stand for the Lease: it can read all that it needs. What
// it has read is forgotten, since the holder until then goes on writing.
func (c *controller) tryCaches(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	k, err := c.startCaches(ctx)
	cancel()
	if k != nil {
		k.Shutdown()
	}
	return err
}

// tryLists asks the API server for an object of each cache. A cache itself has old objects for ever
// when they may be listed no more.
func (c *controller) tryLists(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	o := metav1.ListOptions{Limit: 1}
	if _, err := c.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, o); err != nil {
		return err
	}
	_, err := c.client.CoreV1().Namespaces().List(ctx, o)
	return err
}

// health is the answer to /healthz: 200 while the caches are current, and the Lease is renewed
// by its holder.
type health struct {
	lease *leaderelection.HealthzAdaptor

	mu    sync.Mutex
	fault error
}

func newHealth() *health {
	return &health{lease: leaderelection.NewLeaderHealthzAdaptor(renewDeadline), fault: errors.New("services and namespaces are not listed yet")}
}

// set notes why the caches are not current, nil if they are.
func (h *health) set(fault error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = fault
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	err := h.fault
	h.mu.Unlock()
	if err == nil {
		err = h.lease.Check(r)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
