package controller

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// send tells the controller of a changed Service.
func (a *apiServer) send(s corev1.Service, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.ResourceVersion = version
	a.change(&s)
}

// newWrite is the next write of a status that does not repeat the last of that Service, as happens
// before the watch brings it.
func (a *apiServer) newWrite(t *testing.T) string {
	t.Helper()
	if a.last == nil {
		a.last = map[string]string{}
	}
	for {
		got := a.written(t)
		if name, _, _ := strings.Cut(got, " "); a.last[name] != got {
			a.last[name] = got
			return got
		}
	}
}

// saidOf waits for an Event of a reason on a Service.
func (a *apiServer) saidOf(t *testing.T, service, reason string) {
	t.Helper()
	deadline := time.After(patience.For(20 * time.Second))
	for {
		select {
		case e := <-a.events:
			if e == service+" "+reason {
				return
			}
		case <-deadline:
			t.Fatalf("no Event %s of %s", reason, service)
		}
	}
}

func ofClass(s corev1.Service, class string) corev1.Service {
	s.Spec.LoadBalancerClass = &class
	return s
}

// metallb#2635: two controllers give addresses of the same pools, each to Services of its class.
// Neither touches the Services of the other, nor gives their addresses. Where the other does, the
// Service keeps its address and says so, until the other has let go.
func TestTwoControllersOfAPool(t *testing.T) {
	const other = "example.com/other"
	a := &apiServer{services: []corev1.Service{
		ofClass(plainService("theirs", 1, "192.0.2.1"), other), ofClass(plainService("waits", 1, ""), other), plainService("ours", 2, ""),
	}}
	controls(t, a, io.Discard)
	if got := a.newWrite(t); got != "ours 192.0.2.2 Allocated" {
		t.Fatalf("written: %s", got)
	}
	a.send(ofClass(plainService("waits", 1, "192.0.2.2"), other), "100")
	if got := a.newWrite(t); got != "ours 192.0.2.2 "+addresspool.ReasonClaimed {
		t.Fatalf("written: %s", got)
	}
	a.saidOf(t, "ours", addresspool.ReasonClaimed)
	a.send(ofClass(plainService("waits", 1, "192.0.2.3"), other), "101")
	if got := a.newWrite(t); got != "ours 192.0.2.2 Allocated" {
		t.Fatalf("written: %s", got)
	}
	a.send(plainService("late", 3, ""), "102")
	if got := a.newWrite(t); got != "late 192.0.2.4 Allocated" {
		t.Fatalf("written: %s", got)
	}
}

// A Service of the class with a status that this controller has not written is left alone, and told
// so.
func TestAForeignStatusIsLeftAlone(t *testing.T) {
	named := plainService("named", 1, "")
	named.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
	a := &apiServer{services: []corev1.Service{named, plainService("plain", 2, "")}}
	controls(t, a, io.Discard)
	a.saidOf(t, "named", reasonForeign)
	if got := a.newWrite(t); got != "plain 192.0.2.1 Allocated" {
		t.Errorf("written: %s", got)
	}
	a.send(plainService("named", 1, ""), "100") // the other controller has let go
	if got := a.newWrite(t); got != "named 192.0.2.2 Allocated" {
		t.Errorf("written: %s", got)
	}
}

// metallb#190: a Service that is no load balancer any more loses its address, also where the API
// server leaves that in the status. Who asks for the address gets it.
func TestAnotherTypeReleasesTheAddress(t *testing.T) {
	for name, clears := range map[string]bool{"cleared by the API server": true, "left by the API server": false} {
		t.Run(name, func(t *testing.T) {
			a := &apiServer{services: []corev1.Service{plainService("was", 1, "192.0.2.1")}}
			controls(t, a, io.Discard)
			if got := a.newWrite(t); got != "was 192.0.2.1 Allocated" {
				t.Fatalf("written: %s", got)
			}
			wants := plainService("wants", 2, "")
			wants.Spec.LoadBalancerIP = "192.0.2.1"
			a.send(wants, "100")
			if got := a.newWrite(t); got != "wants "+addresspool.ReasonAddressInUse {
				t.Fatalf("written: %s", got)
			}
			was := plainService("was", 1, "192.0.2.1")
			was.Spec.Type, was.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
			was.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: addresspool.ReasonAllocated}}
			want := []string{"wants 192.0.2.1 Allocated", "was "}
			if clears {
				was.Status, want = corev1.ServiceStatus{}, want[:1]
			}
			a.send(was, "101")
			for range want {
				if got := a.newWrite(t); !slices.Contains(want, got) {
					t.Errorf("written: %q, want %q", got, want)
				}
			}
		})
	}
}

// A range of ports takes each of its ports from those who share the address, for nodes give the more
// specific frontend a port that both have. One that nodes refuse takes none.
func TestARangeOfPortsSharesWithNoneOfItsPorts(t *testing.T) {
	ranged := func(name, namespace string, created int64, port int32, value string) corev1.Service {
		s := plainService(name, created, "")
		s.Namespace, s.Annotations = namespace, map[string]string{"metallb.io/allow-shared-ip": "key", "weir.dev/port-range": value}
		s.Spec.Ports[0].Port = port
		return s
	}
	target := ranged("target", "d", 6, 20300, "20000-20300")
	target.Spec.Ports[0].TargetPort = intstr.FromInt32(80)
	a := &apiServer{services: []corev1.Service{
		ranged("range", "a", 1, 20010, "20000-20099"), ranged("within", "b", 2, 20057, ""), ranged("narrower", "b", 3, 20060, "20058-20099"),
		ranged("beside", "c", 4, 20100, "20100-20199"), ranged("refused", "d", 5, 20200, "20000-20099"), target,
	}}
	controls(t, a, io.Discard)
	want := []string{
		"range 192.0.2.1 Allocated", "within 192.0.2.2 Allocated", "narrower 192.0.2.2 Allocated",
		"beside 192.0.2.1 Allocated", "refused 192.0.2.1 Allocated", "target 192.0.2.1 Allocated",
	}
	for range want {
		if got := a.newWrite(t); !slices.Contains(want, got) {
			t.Errorf("written: %s", got)
		}
	}
	wider := ranged("beside", "c", 4, 20100, "20090-20199")
	wider.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	a.send(wider, "101")
	if got := a.newWrite(t); !strings.HasPrefix(got, "beside 192.0.2.3 ") {
		t.Errorf("written for a wider range: %s", got)
	}
}

// Services of two namespaces have no pods in common: with externalTrafficPolicy Local a node that
// serves one of them need not serve the other, and would announce the address for neither.
func TestLocalServicesOfTwoNamespacesShareNoAddress(t *testing.T) {
	local := func(name, namespace, addr string, created int64, port int32) corev1.Service {
		s := plainService(name, created, addr)
		s.Namespace, s.Annotations = namespace, map[string]string{"metallb.io/allow-shared-ip": "key"}
		s.Spec.ExternalTrafficPolicy, s.Spec.Selector = corev1.ServiceExternalTrafficPolicyLocal, map[string]string{"app": "web"}
		s.Spec.Ports[0].Port = port
		return s
	}
	a := &apiServer{services: []corev1.Service{local("one", "x", "192.0.2.1", 1, 80), local("same", "x", "192.0.2.1", 2, 81), local("other", "y", "", 3, 82)}}
	controls(t, a, io.Discard)
	want := []string{"one 192.0.2.1 Allocated", "same 192.0.2.1 Allocated", "other 192.0.2.2 Allocated"}
	for range want {
		if got := a.newWrite(t); !slices.Contains(want, got) {
			t.Errorf("written: %s", got)
		}
	}
}
