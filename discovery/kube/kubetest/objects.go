package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Within is the time limit of steps that take milliseconds on an idle machine; tests
// share the machine with a whole control plane, and often with more. The slice controller
// backs off for seconds when it finds a stale cache. Tests that also run on an emulated machine
// raise it there, before they begin.
var Within = 90 * time.Second

// Site makes objects in a new namespace.
type Site struct {
	Client    kubernetes.Interface
	Namespace string
	t         testing.TB
}

// NewSite makes a namespace. It is left behind: the cluster goes with it.
func NewSite(t testing.TB, client kubernetes.Interface) *Site {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "site-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &Site{client, ns.Name, t}
}

// Node makes a ready Node in a zone, with an InternalIP if addr is valid.
func (s *Site) Node(name, zone string, addr netip.Addr) *corev1.Node {
	s.t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: zone,
		}},
		Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		},
	}
	if addr.IsValid() {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr.String()}}
	}
	return must(s.Client.CoreV1().Nodes().Create(s.t.Context(), n, metav1.CreateOptions{}))(s.t)
}

// PodSpec is a Pod as a scheduler and a kubelet would leave it.
type PodSpec struct {
	Name, Node string
	Labels     map[string]string
	Addresses  []netip.Addr // the primary address first
	Grace      int64        // terminationGracePeriodSeconds; 0: 30
}

// RunPod makes a Pod that runs and is ready.
func (s *Site) RunPod(p PodSpec) {
	s.t.Helper()
	if p.Grace == 0 {
		p.Grace = 30
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{
			NodeName:                      p.Node,
			TerminationGracePeriodSeconds: &p.Grace,
			Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	must(s.Client.CoreV1().Pods(s.Namespace).Create(s.t.Context(), pod, metav1.CreateOptions{}))(s.t)
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.Addresses[0].String(), Conditions: readiness(true)}
	for _, a := range p.Addresses {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	s.patchStatus(p.Name, status)
}

// SetReady acts as a readiness probe.
func (s *Site) SetReady(pod string, ready bool) {
	s.t.Helper()
	s.patchStatus(pod, corev1.PodStatus{Conditions: readiness(ready)})
}

func readiness(ready bool) []corev1.PodCondition {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	now := metav1.Now()
	return []corev1.PodCondition{
		{Type: corev1.PodReady, Status: status, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: status, LastTransitionTime: now},
	}
}

func (s *Site) patchStatus(pod string, status corev1.PodStatus) {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		s.t.Fatal(err)
	}
	must(s.Client.CoreV1().Pods(s.Namespace).Patch(s.t.Context(), pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(s.t)
}

// Terminate deletes a Pod as kubectl does: it stays, terminating, until
// Remove.
func (s *Site) Terminate(pod string) {
	s.t.Helper()
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(s.t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// Remove takes a Pod away at once.
func (s *Site) Remove(pod string) {
	s.t.Helper()
	zero := int64(0)
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(s.t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		s.t.Fatal(err)
	}
}

// Service creates a Service after edit has changed it.
func (s *Site) Service(name string, edit func(*corev1.Service)) *corev1.Service {
	s.t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeNodePort,
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if edit != nil {
		edit(svc)
	}
	return must(s.Client.CoreV1().Services(s.Namespace).Create(s.t.Context(), svc, metav1.CreateOptions{}))(s.t)
}

// EditService changes a Service.
func (s *Site) EditService(name string, edit func(*corev1.Service)) {
	s.t.Helper()
	s.Eventually("update Service "+name, func(ctx context.Context) error {
		svc, err := s.Client.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		edit(svc)
		_, err = s.Client.CoreV1().Services(s.Namespace).Update(ctx, svc, metav1.UpdateOptions{})
		return err
	})
}

// Slice creates an EndpointSlice of a Service without the controller.
func (s *Site) Slice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.t.Helper()
	return must(s.Client.DiscoveryV1().EndpointSlices(s.Namespace).Create(s.t.Context(), slice, metav1.CreateOptions{}))(s.t)
}

// Eventually tries until f returns nil, and fails the test after Within.
func (s *Site) Eventually(what string, f func(context.Context) error) {
	s.t.Helper()
	if err := Poll(s.t.Context(), f); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// Poll tries until f returns nil, and returns f's last error after Within.
func Poll(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still after %s: %w", Within, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// must fails the test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
