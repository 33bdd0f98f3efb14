package kube

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/discovery"
)

func ptr[T any](v T) *T { return &v }

// untrimmed is a small cluster as an API server tells of it, with a bit of
// everything that is read, and much that is not.
func untrimmed() (*corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node, *corev1.Endpoints) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 4096))}}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1700000000, 0), ManagedFields: managed,
			Labels: map[string]string{"team": "x"},
			Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": "{}", discovery.AnnotationTopologyKeys: "topology.kubernetes.io/zone,*",
				corev1.AnnotationLoadBalancerSourceRangesKey: "192.0.2.0/24",
			}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, ClusterIPs: []string{"10.96.0.1"},
			LoadBalancerClass: ptr("weir.dev/weir"), Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}},
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	svc.Status.Conditions = []metav1.Condition{{Type: "weir.dev/AddressAllocated", Reason: "Allocated"}, {Type: discovery.ConditionTerms, Reason: "Local", Message: "198.51.100.1"}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "v", ResourceVersion: "8", ManagedFields: managed,
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T12:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Service", Name: "web"}}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	for i := range 20 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.0.0.%d", i+1), "10.9.9.9"},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(i%3 > 0), Serving: ptr(true), Terminating: ptr(i%3 == 0)},
			NodeName:   ptr(fmt.Sprintf("node-%d", i%2)), Zone: ptr("zone-a"), Hostname: ptr("host"),
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-0"}}},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprint(i))},
		})
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-0", ManagedFields: managed, Annotations: map[string]string{"volumes": "many"},
			Labels: map[string]string{corev1.LabelTopologyZone: "zone-a", corev1.LabelHostname: "node-0", "rack": "r1"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Taints: []corev1.Taint{{Key: "other"}, {Key: taintToBeDeleted}}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "node-0"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.10"}},
			Images:    []corev1.ContainerImage{{Names: []string{"an image"}}},
		},
	}
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "legacy", ManagedFields: managed},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.10", Hostname: "h", TargetRef: &corev1.ObjectReference{Name: "p"}}},
			Ports:     []corev1.EndpointPort{{Name: "http", Port: 80}},
		}},
	}
	return svc, slice, node, endpoints
}

// told is what a Store makes of the objects, trimmed so many times.
func told(t *testing.T, trims int) *discovery.Update {
	t.Helper()
	svc, slice, node, endpoints := untrimmed()
	legacy := svc.DeepCopy()
	legacy.Name, legacy.Spec.Selector, legacy.Annotations = "legacy", nil, nil
	tr := newTrimmer("node-0")
	for range trims {
		for _, o := range []any{svc, legacy, slice, node, endpoints} {
			if _, err := tr.trim(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	if trims > 0 {
		if svc.ManagedFields != nil || slice.Endpoints[0].TargetRef != nil || node.Status.Images != nil || endpoints.Subsets[0].Addresses[0].TargetRef != nil {
			t.Error("nothing was trimmed")
		}
		if slice.Endpoints[0].NodeName != slice.Endpoints[2].NodeName {
			t.Error("equal strings are not shared")
		}
		if r := notEligible(node); r == "" {
			t.Error("the taint is lost")
		}
		if triggerTime(slice, nil).IsZero() || svc.UID != "u" || svc.ResourceVersion != "7" {
			t.Error("metadata that is read is lost")
		}
	}
	st := discovery.NewStore(discovery.Options{NodeName: "node-0"})
	st.SetNode(node)
	st.SetService(svc)
	st.SetService(legacy)
	st.SetSlice(slice)
	st.SetEndpoints(endpoints)
	return st.Flush()
}

// Nothing is taken away that is read.
func TestTrimmedObjectsMakeTheSameServices(t *testing.T) {
	want := told(t, 0)
	if len(want.Put) != 2 || len(want.Put[1].Ports[0].Endpoints) != 20 || len(want.Put[0].Ports[0].Endpoints) != 1 || len(want.Put[1].Policy.TopologyKeys) != 2 || !want.Put[1].PolicyChanged {
		t.Fatalf("the objects do not make what they should: %+v", want.Put)
	}
	for trims := 1; trims <= 2; trims++ {
		if diff := cmp.Diff(want, told(t, trims), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("trimmed %d times: -untrimmed +trimmed:\n%s", trims, diff)
		}
	}
}

func TestTrimTakesWhatItDoesNotKnowAsItIs(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: []metav1.ManagedFieldsEntry{{}}}}
	got, err := newTrimmer("n").trim(pod)
	if err != nil || got != any(pod) || len(pod.ManagedFields) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// What a trimmed slice keeps of the heap, per endpoint.
func BenchmarkTrimmedSlice(b *testing.B) {
	for _, trimmed := range []bool{false, true} {
		b.Run(fmt.Sprintf("trimmed=%v", trimmed), func(b *testing.B) {
			b.ReportAllocs()
			_, slice, _, _ := untrimmed()
			data, err := slice.Marshal()
			if err != nil {
				b.Fatal(err)
			}
			tr := newTrimmer("n")
			kept := make([]*discoveryv1.EndpointSlice, b.N)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range b.N {
				s := &discoveryv1.EndpointSlice{}
				if err := s.Unmarshal(data); err != nil {
					b.Fatal(err)
				}
				if trimmed {
					if _, err := tr.trim(s); err != nil {
						b.Fatal(err)
					}
				}
				kept[i] = s
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N*len(slice.Endpoints)), "heap-B/endpoint")
			runtime.KeepAlive(kept)
		})
	}
}
