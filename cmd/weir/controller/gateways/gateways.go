// Package gateways has Gateways of the Gateway API served: it watches the objects, and writes what
// discovery/gateway makes of them, which are generated Services and slices, and statuses. Addresses of these
// Services, and what nodes do with them, are as for all others.
package gateways

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery/gateway"
	"github.com/weirlb/weir/discovery/kube/client"
)

const (
	// gather is how long changes are gathered: all objects are looked at together.
	gather = 50 * time.Millisecond
)

// Config has the parameters of Run.
type Config struct {
	Client *client.Client
	// Services and Namespaces are caches that run and are complete.
	Services, Namespaces cache.SharedIndexInformer
	Class                string // spec.loadBalancerClass of the Services
	// Installation names the controllers of which one serves, "" if that is not known. Others may serve Gateways
	// with another Class.
	Installation string
	Log          *slog.Logger
}

// keeper keeps the objects of Gateways as they should be.
type keeper struct {
	cfg    Config
	wake   chan struct{}
	caches map[string]cache.SharedIndexInformer // by resource
	// failed are the errors of the last writes of generated Services, by key.
	failed map[string]string
	// spared are Services that are not deleted yet, by key: others take their place, and are not there.
	spared map[string]bool
	// unguarded are Gateways whose classes could go, which have not the finalizer.
	unguarded map[types.UID]bool
	retries   *retries
}

// bySlice is the index of slices by their Service.
const bySlice = "service"

// Run keeps Gateways served until ctx ends. It waits for definitions that are not installed yet.
func Run(ctx context.Context, cfg Config) error {
	k := &keeper{cfg: cfg, wake: make(chan struct{}, 1), caches: map[string]cache.SharedIndexInformer{}, failed: map[string]string{}, retries: newRetries()}
	own := map[string]runtime.Object{
		"gatewayclasses": &gatewayv1.GatewayClass{}, "gateways": &gatewayv1.Gateway{}, "tcproutes": &gatewayv1.TCPRoute{},
		"udproutes": &gatewayv1.UDPRoute{}, "referencegrants": &gatewayv1.ReferenceGrant{},
	}
	for resource, kind := range own {
		k.caches[resource] = k.informer(client.GroupGateway, resource, kind)
	}
	endpoints := k.informer(discoveryv1.SchemeGroupVersion, "endpointslices", &discoveryv1.EndpointSlice{})
	if err := endpoints.AddIndexers(cache.Indexers{bySlice: serviceOfSlice}); err != nil {
		return err
	}
	k.caches["endpointslices"] = endpoints
	for _, informer := range k.caches {
		if err := informer.SetTransform(trim); err != nil {
			return err
		}
		go informer.RunWithContext(ctx)
	}
	for _, informer := range k.caches {
		// Without all of them a Gateway could lose the Service, and a grant that is not known yet is none.
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil
		}
	}
	for _, informer := range append([]cache.SharedIndexInformer{cfg.Services, cfg.Namespaces}, values(k.caches)...) {
		handler, err := informer.AddEventHandler(k.onAny())
		if err != nil {
			return err
		}
		defer func() { _ = informer.RemoveEventHandler(handler) }()
	}
	cfg.Log.Info("gateways are served", "gateways", len(k.caches["gateways"].GetStore().ListKeys()))
	return k.keep(ctx)
}

// keep looks at all objects after each change.
func (k *keeper) keep(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-again.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gather):
		}
		k.round(ctx)
		again.Stop()
		if wait, more := k.retries.next(time.Now()); more {
			again.Reset(wait)
		}
	}
}

func (k *keeper) onAny() cache.ResourceEventHandler {
	wake := func(any) {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, o any) { wake(o) }, DeleteFunc: wake}
}

func (k *keeper) informer(gv schema.GroupVersion, resource string, of runtime.Object) cache.SharedIndexInformer {
	// Not from the watch cache of the API server, which may lack the last writes of the controller before.
	latest := func(o *metav1.ListOptions) {
		if o.ResourceVersion == "0" {
			o.ResourceVersion = ""
		}
	}
	lw := cache.NewFilteredListWatchFromClient(k.cfg.Client.REST(gv), resource, metav1.NamespaceAll, latest)
	return cache.NewSharedIndexInformer(lw, of, 0, cache.Indexers{})
}

// trim is a cache.TransformFunc.
func trim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

func serviceOfSlice(o any) ([]string, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, fmt.Errorf("%T is no EndpointSlice", o)
	}
	return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
}

// input are the objects as they are.
func (k *keeper) input() *gateway.Objects {
	return &gateway.Objects{
		Classes:   all[*gatewayv1.GatewayClass](k.caches["gatewayclasses"]),
		Gateways:  all[*gatewayv1.Gateway](k.caches["gateways"]),
		TCPRoutes: all[*gatewayv1.TCPRoute](k.caches["tcproutes"]),
		UDPRoutes: all[*gatewayv1.UDPRoute](k.caches["udproutes"]),
		Grants:    all[*gatewayv1.ReferenceGrant](k.caches["referencegrants"]),
		NamespaceLabels: func(name string) map[string]string {
			if ns := named[*corev1.Namespace](k.cfg.Namespaces, name); ns != nil && ns.Labels != nil {
				return ns.Labels
			}
			return nil
		},
		Service: func(namespace, name string) *corev1.Service {
			return named[*corev1.Service](k.cfg.Services, namespace+"/"+name)
		},
		Slices:            k.slicesOf,
		Generated:         k.generated(),
		LoadBalancerClass: k.cfg.Class,
	}
}

// generated are the Services of Gateways as they are.
func (k *keeper) generated() []*corev1.Service {
	return slices.DeleteFunc(all[*corev1.Service](k.cfg.Services), func(s *corev1.Service) bool { return !generated(s) })
}

func (k *keeper) slicesOf(namespace, name string) []*discoveryv1.EndpointSlice {
	list, _ := k.caches["endpointslices"].GetIndexer().ByIndex(bySlice, namespace+"/"+name)
	out := make([]*discoveryv1.EndpointSlice, 0, len(list))
	for _, o := range list {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			out = append(out, s)
		}
	}
	return out
}

// all are the objects of a cache. They must not be changed.
func all[T any](of cache.SharedIndexInformer) (out []T) {
	for _, o := range of.GetStore().List() {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// named is the object of a cache with a key, the zero value for none.
func named[T any](of cache.SharedIndexInformer, key string) (t T) {
	o, _, _ := of.GetStore().GetByKey(key) // an error is that of another kind of store
	t, _ = o.(T)
	return t
}

func values[K comparable, V any](m map[K]V) (out []V) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}
