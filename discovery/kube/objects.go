package kube

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube/cluster"
)

// Objects are all objects of a source.
type Objects = cluster.Objects

// each calls f for every object of o.
func each(o *Objects, f func(key, runtime.Object)) {
	for _, n := range o.Nodes {
		f(key{kindNode, "", n.Name}, n)
	}
	for _, s := range o.Services {
		f(key{kindService, s.Namespace, s.Name}, s)
	}
	for _, s := range o.Slices {
		f(key{kindSlice, s.Namespace, s.Name}, s)
	}
	for _, e := range o.Endpoints {
		f(key{kindEndpoints, e.Namespace, e.Name}, e)
	}
}

// Objects returns all that the API server has told, nil before the first full
// view.
func (s *Source) Objects() *Objects {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		return nil
	}
	o := &Objects{Valid: s.store.Valid()}
	for i := range s.informers {
		switch in := &s.informers[i]; in.kind {
		case kindNode:
			o.Nodes = list[*corev1.Node](in)
		case kindService:
			o.Services = list[*corev1.Service](in)
		case kindSlice:
			o.Slices = list[*discoveryv1.EndpointSlice](in)
		case kindEndpoints:
			o.Endpoints = list[*corev1.Endpoints](in)
		}
	}
	return o
}

func list[T any](in *informer) []T {
	all := in.shared.GetStore().List()
	out := make([]T, 0, len(all))
	for _, o := range all {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// service is a Service as last delivered, nil for none.
func (s *Source) service(name discovery.ServiceName) *discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Service(name)
}

// nodes is the number of Nodes of the cluster.
func (s *Source) nodes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.informers {
		if s.informers[i].kind == kindNode {
			return len(s.informers[i].shared.GetStore().ListKeys())
		}
	}
	return 0
}

// object is a Service as the API server has told it, nil when there is none.
func (s *Source) object(name discovery.ServiceName) *corev1.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.informers {
		if s.informers[i].kind != kindService {
			continue
		}
		o, ok, err := s.informers[i].shared.GetStore().GetByKey(cache.NewObjectName(name.Namespace, name.Name).String())
		if svc, is := o.(*corev1.Service); ok && err == nil && is {
			return svc
		}
	}
	return nil
}

// set puts an object into the Store, or takes it out.
func (s *Source) set(k key, o runtime.Object) {
	st := s.store
	switch k.kind {
	case kindNode:
		n, _ := o.(*corev1.Node)
		if k.name == s.node.name {
			s.node.update(n)
		}
		if n == nil {
			st.DeleteNode(k.name)
		} else {
			st.SetNode(n)
		}
	case kindService:
		if svc, ok := o.(*corev1.Service); ok {
			st.SetService(svc)
		} else {
			st.DeleteService(k.namespace, k.name)
		}
	case kindSlice:
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			st.SetSlice(slice)
		} else {
			st.DeleteSlice(k.namespace, k.name)
		}
	case kindEndpoints:
		if e, ok := o.(*corev1.Endpoints); ok {
			st.SetEndpoints(e)
		} else {
			st.DeleteEndpoints(k.namespace, k.name)
		}
	}
}
