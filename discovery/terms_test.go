package discovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The policy of a Service is compared with that for which it was given its addresses, where the
// status has that.
func TestPolicyOfTheAddresses(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.ServiceExternalTrafficPolicy
		written string
		want    bool
	}{
		{"", "", false}, {"Local", "", false}, {"Cluster", "Cluster", false}, {"", "Cluster", false}, {"Local", "Local", false},
		{"Local", "Cluster", true}, {"Cluster", "Local", true}, {"", "Local", true},
	} {
		s := read(0, given(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, c.policy
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			s.Status.Conditions = []metav1.Condition{{Type: "weir.dev/AddressAllocated", Reason: "Allocated"}}
			if c.written != "" {
				s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: ConditionTerms, Reason: c.written})
			}
		}))
		if s.PolicyChanged != c.want {
			t.Errorf("%q, given for %q: changed %v", c.policy, c.written, s.PolicyChanged)
		}
	}
}

// A change of labels is one of a Service that may be announced by them, and of no other.
func TestLabelsOfTheService(t *testing.T) {
	for _, announced := range []bool{true, false} {
		version := func(tier string) *corev1.Service {
			return given(func(s *corev1.Service) {
				s.Labels["tier"] = tier
				if announced {
					s.Spec.Type = corev1.ServiceTypeLoadBalancer
					s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
				}
			})
		}
		s := NewStore(Options{Supported: ^Feature(0)})
		feed(s, version("front"))
		s.Flush()
		feed(s, version("back"))
		up := s.Flush()
		if (up != nil) != announced {
			t.Errorf("announced %v: %+v", announced, up)
		}
		if announced && web(s).Labels["tier"] != "back" || !announced && web(s).Labels != nil {
			t.Errorf("announced %v: labels %v", announced, web(s).Labels)
		}
	}
}
