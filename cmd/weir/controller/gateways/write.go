package gateways

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery/gateway"
)

// writers are how many writes, which wait for the API server, go at once.
const writers = 8

// round makes all objects as they should be, except for those whose writes failed lately.
func (k *keeper) round(ctx context.Context) {
	in := k.input()
	r := gateway.Translate(in)
	k.guard(ctx, in, r)
	k.services(ctx, r)
	k.slices(ctx, r)
	k.statuses(ctx, in, r)
}

// try writes an object, unless that failed lately: then it does nothing, and is false.
func (k *keeper) try(ctx context.Context, object string, write func() error) (tried bool, err error) {
	if !k.retries.due(object, time.Now()) {
		return false, nil
	}
	err = write()
	if ctx.Err() != nil {
		return true, err
	}
	k.retries.note(object, err != nil, time.Now())
	if errors.Is(err, errClass) && !k.retries.tell(object) {
		return true, err // it stays so
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // else the cache is behind
		k.cfg.Log.Warn("an object of a Gateway cannot be written", "object", object, "err", err)
	}
	return true, err
}

// each calls do for all, some at once, and waits.
func each[T any](list []T, do func(T)) {
	var work sync.WaitGroup
	places := make(chan struct{}, writers)
	for _, o := range list {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			do(o)
		})
	}
	work.Wait()
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// guard gives classes the finalizer. A Gateway whose class has none yet gets no Service: the class could go in
// between, or has gone.
func (k *keeper) guard(ctx context.Context, in *gateway.Objects, r *gateway.Result) {
	open, had := map[gatewayv1.ObjectName]bool{}, map[string]int{}
	for _, c := range in.Classes {
		had[c.Name] = len(c.Finalizers)
	}
	for _, c := range r.Classes {
		if len(c.Finalizers) <= had[c.Name] {
			continue
		}
		var missing bool
		tried, err := k.try(ctx, "finalizers of GatewayClass "+c.Name, func() error {
			err := k.finalizers(ctx, c)
			missing = apierrors.IsNotFound(err)
			return ignoreMissing(err)
		})
		if !tried || err != nil || missing {
			open[gatewayv1.ObjectName(c.Name)] = true
		}
	}
	k.unguarded = map[types.UID]bool{}
	for _, g := range r.Gateways {
		if open[g.Spec.GatewayClassName] {
			k.unguarded[g.UID] = true
		}
	}
}

// finalizers writes the finalizers of a class, and makes the object fit for a write of the status.
func (k *keeper) finalizers(ctx context.Context, c *gatewayv1.GatewayClass) error {
	next, err := k.cfg.Client.GatewayClasses().Update(ctx, c.DeepCopy())
	if err == nil {
		c.ResourceVersion = next.ResourceVersion
	}
	return err
}

const noFinalizer = "the finalizer of the GatewayClass is not written"

// services writes the generated Services, and deletes those of Gateways that have none any more.
func (k *keeper) services(ctx context.Context, r *gateway.Result) {
	var mu sync.Mutex
	failed, wanted := map[string]string{}, map[string]bool{}
	missing := map[types.UID]bool{} // Gateways whose Services are not there yet, or not as they should be
	for _, s := range r.Services {
		wanted[key(s)] = true
	}
	each(r.Services, func(s *corev1.Service) {
		if owner := metav1.GetControllerOf(s); k.unguarded[owner.UID] && named[*corev1.Service](k.cfg.Services, key(s)) == nil {
			mu.Lock()
			defer mu.Unlock()
			missing[owner.UID], failed[key(s)] = true, noFinalizer
			return
		}
		tried, err := k.try(ctx, "Service "+key(s), func() error { return k.service(ctx, s) })
		if owner := metav1.GetControllerOf(s); !tried || err != nil || named[*corev1.Service](k.cfg.Services, key(s)) == nil {
			mu.Lock()
			missing[owner.UID] = true
			mu.Unlock()
		}
		text := k.failed[key(s)] // of the last try
		if tried {
			text = ""
			if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, errAnew) && !errors.Is(err, errClass) { // also of a name that is taken: slices would be that Service's
				text = err.Error()
			}
		}
		if text != "" {
			mu.Lock()
			failed[key(s)] = text
			mu.Unlock()
		}
	})
	k.failed, k.spared = failed, map[string]bool{}
	for _, s := range k.generated() {
		switch {
		case wanted[key(s)] || s.DeletionTimestamp != nil:
		case missing[metav1.GetControllerOf(s).UID]: // this one serves the Gateway meanwhile
			k.spared[key(s)] = true
		default:
			_, _ = k.try(ctx, "Service "+key(s), func() error {
				k.cfg.Log.Info("a Service is deleted: no Gateway of this controller has it any more", "service", key(s))
				return ignoreMissing(k.cfg.Client.Services(s.Namespace).Delete(ctx, s))
			})
		}
	}
}

// service writes a Service.
func (k *keeper) service(ctx context.Context, s *corev1.Service) error {
	client, old := k.cfg.Client.Services(s.Namespace), named[*corev1.Service](k.cfg.Services, key(s))
	if old == nil {
		_, err := client.Create(ctx, k.marked(s))
		return err
	}
	if of := old.Annotations[annotationInstallation]; hasOtherClass(old, s) && of != "" && k.cfg.Installation != "" && of != k.cfg.Installation {
		return errClass
	}
	next, changed := changedService(old, s)
	switch {
	case !changed:
		return nil
	case isFinal(old, s):
		// It comes back when the cache has seen that.
		again := k.retries.makeAnew
		if hasOtherClass(old, s) {
			again = k.retries.makeClass
		}
		return again("Service "+key(s), time.Now(), func() error { return client.Delete(ctx, old) })
	}
	_, err := client.Update(ctx, next)
	return err
}

// annotationInstallation has Config.Installation of the controller that made a Service. It stays: controllers with the
// same class would write it in turn.
const annotationInstallation = gateway.ManagedBy + "/installation"

// marked is a new Service with the installation that makes it.
func (k *keeper) marked(s *corev1.Service) *corev1.Service {
	if k.cfg.Installation == "" {
		return s
	}
	s = s.DeepCopy()
	set(&s.Annotations, map[string]string{annotationInstallation: k.cfg.Installation})
	return s
}

// generated reports whether a Service is that of a Gateway.
func generated(s *corev1.Service) bool {
	owner := metav1.GetControllerOf(s)
	return s.Labels[gateway.LabelManagedBy] == gateway.ManagedBy && owner != nil && owner.Kind == "Gateway" &&
		strings.HasPrefix(owner.APIVersion, gatewayv1.GroupName+"/")
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// changedService is a Service with all that a Gateway asks for and nothing else, and whether that differs. Labels and
// annotations of others stay, and so do addresses and families that the API server has given.
func changedService(old, want *corev1.Service) (*corev1.Service, bool) {
	next := old.DeepCopy()
	maps.DeleteFunc(next.Annotations, func(name, _ string) bool {
		_, wanted := want.Annotations[name]
		return strings.HasPrefix(name, "weir.dev/") && !wanted
	})
	set(&next.Labels, want.Labels)
	set(&next.Annotations, want.Annotations)
	want.Spec.DeepCopyInto(&next.Spec)
	next.Spec.ClusterIP, next.Spec.ClusterIPs, next.Spec.IPFamilies = old.Spec.ClusterIP, old.Spec.ClusterIPs, old.Spec.IPFamilies
	if old.Spec.Type == corev1.ServiceTypeExternalName {
		next.Spec.ClusterIPs, next.Spec.IPFamilies = nil, nil
	}
	return next, !equality.Semantic.DeepEqual(old.Spec, next.Spec) || !equality.Semantic.DeepEqual(old.Labels, next.Labels) ||
		!equality.Semantic.DeepEqual(old.Annotations, next.Annotations)
}

// isFinal reports whether a Service has a value that no update can take back: a class, or no cluster IP.
func isFinal(old, want *corev1.Service) bool {
	return old.Spec.ClusterIP == corev1.ClusterIPNone || hasOtherClass(old, want)
}

func hasOtherClass(old, want *corev1.Service) bool {
	return old.Spec.Type == corev1.ServiceTypeLoadBalancer && !equality.Semantic.DeepEqual(old.Spec.LoadBalancerClass, want.Spec.LoadBalancerClass)
}

func set(to *map[string]string, want map[string]string) {
	if *to == nil && len(want) > 0 {
		*to = map[string]string{}
	}
	maps.Copy(*to, want)
}

// slices writes the slices of generated Services. Those that end are deleted last: an endpoint that moves
// to another slice is in one at any time.
func (k *keeper) slices(ctx context.Context, r *gateway.Result) {
	wanted := map[string]bool{}
	for _, s := range r.Slices {
		wanted[key(s)] = true
	}
	each(r.Slices, func(s *discoveryv1.EndpointSlice) {
		if k.failed[s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName]] == "" {
			_, _ = k.try(ctx, "EndpointSlice "+key(s), func() error { return k.slice(ctx, s) })
		}
	})
	for _, s := range all[*discoveryv1.EndpointSlice](k.caches["endpointslices"]) {
		if s.Labels[discoveryv1.LabelManagedBy] == gateway.ManagedBy && !wanted[key(s)] && s.DeletionTimestamp == nil && !k.spared[s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName]] {
			_, _ = k.try(ctx, "EndpointSlice "+key(s), func() error {
				return ignoreMissing(k.cfg.Client.EndpointSlices(s.Namespace).Delete(ctx, s))
			})
		}
	}
}

var errForeign = errors.New("a slice of this name is not the controller's")

// slice writes a slice.
func (k *keeper) slice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	client, old := k.cfg.Client.EndpointSlices(s.Namespace), named[*discoveryv1.EndpointSlice](k.caches["endpointslices"], key(s))
	switch {
	case old == nil:
		_, err := client.Create(ctx, s)
		return err
	case old.Labels[discoveryv1.LabelManagedBy] != gateway.ManagedBy:
		return errForeign
	case old.AddressType != s.AddressType || !equality.Semantic.DeepEqual(old.OwnerReferences, s.OwnerReferences):
		// The type of a slice cannot change; the owner of another Gateway of the name is gone.
		if err := client.Delete(ctx, old); err != nil {
			return err
		}
		_, err := client.Create(ctx, s)
		return err
	}
	if equality.Semantic.DeepEqual(old.Endpoints, s.Endpoints) && equality.Semantic.DeepEqual(old.Ports, s.Ports) &&
		equality.Semantic.DeepEqual(old.Labels, s.Labels) && equality.Semantic.DeepEqual(old.Annotations, s.Annotations) {
		return nil
	}
	next := old.DeepCopy()
	next.Endpoints, next.Ports, next.Labels, next.Annotations = s.Endpoints, s.Ports, s.Labels, s.Annotations
	_, err := client.Update(ctx, next)
	return err
}

// statuses writes the statuses that differ.
func (k *keeper) statuses(ctx context.Context, in *gateway.Objects, r *gateway.Result) {
	client := k.cfg.Client
	// Those that were added are written before the Services.
	write(ctx, k, "finalizers of GatewayClass ", r.Classes, in.Classes, func(a, b *gatewayv1.GatewayClass) bool { return len(b.Finalizers) >= len(a.Finalizers) }, func(o *gatewayv1.GatewayClass) error {
		return k.finalizers(ctx, o)
	})
	write(ctx, k, "GatewayClass ", r.Classes, in.Classes, func(a, b *gatewayv1.GatewayClass) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }, func(o *gatewayv1.GatewayClass) error {
		_, err := client.GatewayClasses().UpdateStatus(ctx, o)
		return err
	})
	of := map[string]string{} // Services of Gateways
	for _, s := range r.Services {
		of[s.Namespace+"/"+metav1.GetControllerOf(s).Name] = key(s)
	}
	for _, g := range r.Gateways {
		if text := k.failed[of[key(g)]]; text != "" {
			gateway.SetNotProgrammed(g, "the Service cannot be written: "+text)
		}
	}
	write(ctx, k, "Gateway ", r.Gateways, in.Gateways, func(a, b *gatewayv1.Gateway) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }, func(o *gatewayv1.Gateway) error {
		_, err := client.Gateways(o.Namespace).UpdateStatus(ctx, o)
		return err
	})
	write(ctx, k, "TCPRoute ", r.TCPRoutes, in.TCPRoutes, func(a, b *gatewayv1.TCPRoute) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }, func(o *gatewayv1.TCPRoute) error {
		_, err := client.TCPRoutes(o.Namespace).UpdateStatus(ctx, o)
		return err
	})
	write(ctx, k, "UDPRoute ", r.UDPRoutes, in.UDPRoutes, func(a, b *gatewayv1.UDPRoute) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }, func(o *gatewayv1.UDPRoute) error {
		_, err := client.UDPRoutes(o.Namespace).UpdateStatus(ctx, o)
		return err
	})
}

// write calls update for the objects that differ from those as they are.
func write[T metav1.Object](ctx context.Context, k *keeper, kind string, want, is []T, same func(a, b T) bool, update func(T) error) {
	before := make(map[string]T, len(is))
	for _, o := range is {
		before[key(o)] = o
	}
	each(want, func(o T) {
		if !same(before[key(o)], o) {
			_, _ = k.try(ctx, kind+key(o), func() error { return ignoreMissing(update(o)) })
		}
	})
}
