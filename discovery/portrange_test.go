package discovery

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPortRange(t *testing.T) {
	for _, test := range []struct {
		value  string
		target intstr.IntOrString
		ports  int
		want   PortRange
		error  string
	}{
		{"80-90", intstr.IntOrString{}, 1, PortRange{80, 90}, ""},
		{" 1 - 65535 ", intstr.FromInt32(80), 1, PortRange{1, 65535}, ""},
		{"", intstr.FromInt32(8080), 2, PortRange{}, ""},
		{"80", intstr.IntOrString{}, 1, PortRange{}, "must be FIRST-LAST"},
		{"80-80", intstr.IntOrString{}, 1, PortRange{}, "must be FIRST-LAST"},
		{"0-80", intstr.IntOrString{}, 1, PortRange{}, "must be FIRST-LAST"},
		{"80-65536", intstr.IntOrString{}, 1, PortRange{}, "must be FIRST-LAST"},
		{"81-90", intstr.IntOrString{}, 1, PortRange{}, "must contain the port of the Service, 80"},
		{"70-79", intstr.IntOrString{}, 1, PortRange{}, "must contain the port of the Service, 80"},
		{"80-90", intstr.FromInt32(8080), 1, PortRange{}, "needs a targetPort that is the port, 80, or left out, not 8080"},
		{"80-90", intstr.FromString("web"), 1, PortRange{}, "not web"},
		{"80-90", intstr.IntOrString{}, 2, PortRange{}, "needs a Service with a single port, not 2"},
	} {
		svc := read(^Feature(0), given(func(s *corev1.Service) {
			s.Annotations[AnnotationPortRange] = test.value
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, TargetPort: test.target}, {Name: "b", Port: 81}}[:test.ports]
		}))
		if svc.Options.PortRange != test.want {
			t.Errorf("%q: %v, want %v", test.value, svc.Options.PortRange, test.want)
		}
		if test.error == "" {
			wantErrors(t, svc.Errors)
		} else {
			wantErrors(t, svc.Errors, test.error)
		}
	}
}

// A range of a Service without load balancer addresses has no effect, and that is said.
func TestPortRangeOfOtherTypes(t *testing.T) {
	for kind, warned := range map[corev1.ServiceType]bool{
		corev1.ServiceTypeLoadBalancer: false, corev1.ServiceTypeNodePort: true, corev1.ServiceTypeClusterIP: true,
	} {
		svc := read(^Feature(0), given(func(s *corev1.Service) {
			s.Spec.Type = kind
			s.Annotations[AnnotationPortRange] = "80-90"
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}}
		}))
		if got := strings.Contains(strings.Join(svc.Warnings, ";"), AnnotationPortRange); got != warned {
			t.Errorf("%s: %q", kind, svc.Warnings)
		}
	}
}
