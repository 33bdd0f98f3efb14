package kube

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"

	"github.com/weirlb/weir/discovery"
)

// labelServiceProxyName names the proxy that serves a Service or slice.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// informer is the informer of a kind with our registration.
type informer struct {
	kind     kind
	resource string
	shared   cache.SharedIndexInformer
	told     cache.ResourceEventHandlerRegistration
}

// serviceSelector is that of kube-proxy, or that of a proxy for named Services, with the
// operator's addition.
func serviceSelector(proxyName, more string) (labels.Selector, error) {
	sel, err := labels.Parse(more)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", more, err)
	}
	return sel.Add(byProxy(proxyName)), nil
}

// withClusterIP leaves out headless Services, as kube-proxy does since 1.37: by the cluster IP, and not
// by a label that anybody may set.
var withClusterIP = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone)

// sliceSelector leaves out slices of headless Services and of other proxies. It cannot select a proxy name of our
// own: hand-written and mirrored slices do not carry their Service's labels.
func sliceSelector(proxyName string) labels.Selector {
	sel := labels.NewSelector().Add(require(corev1.IsHeadlessService, selection.DoesNotExist))
	if proxyName == "" {
		sel = sel.Add(byProxy(""))
	}
	return sel
}

func byProxy(name string) labels.Requirement {
	if name == "" {
		return require(labelServiceProxyName, selection.DoesNotExist)
	}
	return require(labelServiceProxyName, selection.Equals, name)
}

func require(label string, op selection.Operator, values ...string) labels.Requirement {
	r, err := labels.NewRequirement(label, op, values)
	if err != nil {
		// A name that is no label's value selects nothing.
		r, _ = labels.NewRequirement(label, selection.In, []string{""})
	}
	return *r
}

// start starts the informers.
func (s *Source) start(ctx context.Context) (stop func(), err error) {
	core, slices := s.client.REST(corev1.SchemeGroupVersion), sliceSelector(s.cfg.Store.ServiceProxyName)
	list := []informer{
		s.informer(kindService, core, "services", &corev1.Service{}, s.selector, withClusterIP),
		s.informer(kindSlice, s.client.REST(discoveryv1.SchemeGroupVersion), "endpointslices", &discoveryv1.EndpointSlice{}, slices, fields.Everything()),
		s.informer(kindNode, core, "nodes", &corev1.Node{}, labels.Everything(), fields.Everything()),
	}
	if s.cfg.LegacyEndpoints {
		list = append(list, s.informer(kindEndpoints, core, "endpoints", &corev1.Endpoints{}, slices, fields.Everything()))
	}
	for i := range list {
		in := &list[i]
		if err := in.shared.SetTransform(newTrimmer(s.cfg.Store.NodeName).trim); err != nil {
			return nil, err
		}
		if err := in.shared.SetWatchErrorHandlerWithContext(s.watch.watchFailed(in.resource)); err != nil {
			return nil, err
		}
		if in.told, err = in.shared.AddEventHandler(s.handler(in.kind)); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.informers = list
	s.mu.Unlock()
	var tasks sync.WaitGroup
	for i := range list {
		tasks.Go(func() { list[i].shared.RunWithContext(ctx) })
	}
	return tasks.Wait, nil
}

// informer makes an informer of the objects that both selectors select.
func (s *Source) informer(k kind, client cache.Getter, resource string, of runtime.Object, sel labels.Selector, field fields.Selector) informer {
	lw := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = sel.String(), field.String()
	})
	return informer{kind: k, resource: resource, shared: cache.NewSharedIndexInformer(s.watch.observe(resource, lw), of, 0, cache.Indexers{})}
}

// allListed reports whether every informer has delivered the whole first list of the API
// server.
func (s *Source) allListed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.informers {
		if !s.informers[i].told.HasSynced() {
			return false
		}
	}
	return true
}

// handler takes the events of a kind.
func (s *Source) handler(k kind) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.changed(k, nil, o) },
		UpdateFunc: func(old, o any) {
			if !sameVersion(old, o) {
				s.changed(k, old, o)
			}
		},
		DeleteFunc: func(o any) {
			var id string
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				id, o = gone.Key, gone.Obj
			} else {
				id, _ = cache.MetaNamespaceKeyFunc(o)
			}
			s.deleted(k, id, o)
		},
	}
}

// sameVersion is true for objects that a repeated list tells again.
func sameVersion(old, o any) bool {
	a, ok1 := old.(metav1.Object)
	b, ok2 := o.(metav1.Object)
	return ok1 && ok2 && a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion() && a.GetResourceVersion() != ""
}

func (s *Source) changed(k kind, old, o any) {
	obj, ok := o.(runtime.Object)
	m, ok2 := o.(metav1.Object)
	if !ok || !ok2 {
		return
	}
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		if at := triggerTime(slice, old); at.After(s.queue.started) {
			s.queue.trigger(serviceOf(slice), at)
		}
	}
	s.logEvent("changed", k, m.GetNamespace(), m.GetName(), m.GetResourceVersion())
	s.queue.put(key{k, m.GetNamespace(), m.GetName()}, obj)
}

// logEvent logs an event with the time in nanoseconds, to find lost time.
func (s *Source) logEvent(what string, k kind, namespace, name, version string) {
	if now := time.Now(); s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("watch event", "what", what, "kind", k, "namespace", namespace, "name", name,
			"resourceVersion", version, "unixNano", now.UnixNano())
	}
}

func (s *Source) deleted(k kind, id string, last any) {
	namespace, name, err := cache.SplitMetaNamespaceKey(id)
	if err != nil {
		return
	}
	if slice, ok := last.(*discoveryv1.EndpointSlice); ok {
		s.queue.dropTriggers(serviceOf(slice))
	}
	s.logEvent("deleted", k, namespace, name, "")
	s.queue.put(key{k, namespace, name}, nil)
}

func serviceOf(slice *discoveryv1.EndpointSlice) discovery.ServiceName {
	return discovery.ServiceName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

// triggerTime is when that was done which the change of a slice follows, zero
// where the slice does not say.
func triggerTime(slice *discoveryv1.EndpointSlice, old any) time.Time {
	text := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if before, ok := old.(*discoveryv1.EndpointSlice); ok && before.Annotations[corev1.EndpointsLastChangeTriggerTime] == text {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return at
}
