package kube

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
)

// trimmer removes unused fields from the objects, before they are kept, and shares the
// memory of equal strings. Trimming is idempotent.
type trimmer struct {
	self string // this node, whose taints are read

	mu      sync.Mutex
	strings map[string]*string
	hints   map[string]*discoveryv1.EndpointHints
}

func newTrimmer(node string) *trimmer {
	return &trimmer{self: node, strings: map[string]*string{}, hints: map[string]*discoveryv1.EndpointHints{}}
}

// maxShared bounds the strings that are shared.
const maxShared = 1 << 16

// trim is a cache.TransformFunc.
func (t *trimmer) trim(o any) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o := o.(type) {
	case *corev1.Service:
		created := o.CreationTimestamp
		t.meta(&o.ObjectMeta)
		o.CreationTimestamp = created // says which of two has a frontend
		o.Spec.Selector = t.selector(o.Spec.Selector)
		o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type != discovery.ConditionTerms })
		for i := range o.Status.Conditions {
			o.Status.Conditions[i].Message = ""
		}
	case *discoveryv1.EndpointSlice:
		t.meta(&o.ObjectMeta)
		t.slice(o)
	case *corev1.Node:
		created := o.CreationTimestamp
		t.meta(&o.ObjectMeta)
		o.CreationTimestamp = created // decides between two Nodes with the same address
		t.node(o)
	case *corev1.Endpoints:
		t.meta(&o.ObjectMeta)
		for i := range o.Subsets {
			s := &o.Subsets[i]
			t.addresses(s.Addresses)
			t.addresses(s.NotReadyAddresses)
		}
	}
	return o, nil
}

// meta keeps name, version, labels, and the annotations that are read.
func (t *trimmer) meta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.OwnerReferences, m.Finalizers = nil, nil, nil
	m.GenerateName, m.SelfLink, m.Generation = "", "", 0
	m.CreationTimestamp, m.DeletionGracePeriodSeconds = metav1.Time{}, nil
	m.Namespace = *t.share(&m.Namespace)
	maps.DeleteFunc(m.Annotations, func(k, _ string) bool { return !isRead(k) })
	if len(m.Annotations) == 0 {
		m.Annotations = nil
	}
	if len(m.Labels) > 0 {
		labels := make(map[string]string, len(m.Labels))
		for k, v := range m.Labels {
			labels[*t.share(&k)] = *t.share(&v)
		}
		m.Labels = labels
	}
}

// isRead reports whether an annotation means something to Weir.
func isRead(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	switch annotation {
	case corev1.AnnotationLoadBalancerSourceRangesKey,
		corev1.EndpointsLastChangeTriggerTime,
		corev1.EndpointsOverCapacity,
		"control-plane.alpha.kubernetes.io/leader":
		return true
	}
	return domain == "weir.dev"
}

// selector is read only for its presence.
func (t *trimmer) selector(sel map[string]string) map[string]string {
	if len(sel) == 0 {
		return nil
	}
	return someSelector
}

var someSelector = map[string]string{"weir.dev/selector": "some"}

func (t *trimmer) slice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		s.Ports[i].Name = t.share(s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.TargetRef, e.Hostname = nil, nil
		if len(e.Addresses) > 2 {
			e.Addresses = slices.Clone(e.Addresses[:2]) // the first counts, the second is warned of
		}
		e.NodeName, e.Zone = t.share(e.NodeName), t.share(e.Zone)
		c := &e.Conditions
		c.Ready, c.Serving, c.Terminating = shareBool(c.Ready), shareBool(c.Serving), shareBool(c.Terminating)
		e.Hints = t.shareHints(e.Hints)
	}
}

// shareHints is hints that equal h and are kept once: there are about as many
// different ones as zones, or nodes.
func (t *trimmer) shareHints(h *discoveryv1.EndpointHints) *discoveryv1.EndpointHints {
	if h == nil {
		return nil
	}
	var key strings.Builder
	for _, z := range h.ForZones {
		key.WriteString(z.Name + "\x00")
	}
	key.WriteByte(1)
	for _, n := range h.ForNodes {
		key.WriteString(n.Name + "\x00")
	}
	if shared, ok := t.hints[key.String()]; ok {
		return shared
	}
	if len(t.hints) >= maxShared {
		clear(t.hints)
	}
	t.hints[key.String()] = h
	return h
}

// node keeps labels and addresses, and of this node whether it is being taken
// away.
func (t *trimmer) node(n *corev1.Node) {
	status := corev1.NodeStatus{}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			status.Addresses = append(status.Addresses, a)
		}
	}
	n.Status = status
	spec := corev1.NodeSpec{}
	if n.Name == t.self {
		spec.Unschedulable = n.Spec.Unschedulable
		for _, taint := range n.Spec.Taints {
			if taint.Key == taintToBeDeleted {
				spec.Taints = append(spec.Taints, taint)
			}
		}
	}
	n.Spec = spec
}

func (t *trimmer) addresses(as []corev1.EndpointAddress) {
	for i := range as {
		as[i].TargetRef, as[i].Hostname = nil, ""
		as[i].NodeName = t.share(as[i].NodeName)
	}
}

// share is a string that equals *s and is kept once.
func (t *trimmer) share(s *string) *string {
	if s == nil {
		return nil
	}
	if p, ok := t.strings[*s]; ok {
		return p
	}
	if len(t.strings) >= maxShared {
		clear(t.strings)
	}
	p := new(string)
	*p = *s
	t.strings[*p] = p
	return p
}

var yes, no = true, false

func shareBool(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
