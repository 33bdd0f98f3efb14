package discovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kube-proxy has one proxier per address family, which looks at a Service only
// when that is of its family (proxyutil.GetClusterIPByFamily), and then at
// addresses and slices of that family.
func TestServiceHasNothingOfAnotherFamily(t *testing.T) {
	const v4, v6 = "IPv4", "IPv6"
	families := func(f ...corev1.IPFamily) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.IPFamilies = f }
	}
	for _, test := range []struct {
		name    string
		f       func(*corev1.Service)
		want    string
		lb      int
		warning []string
	}{
		{"not said", nil, "http: 10.0.0.1:8080 [fd00::1]:8080", 2, nil},
		{"both", families(v6, v4), "http: 10.0.0.1:8080 [fd00::1]:8080", 2, nil},
		{"IPv4", families(v4), "http: 10.0.0.1:8080", 1, []string{
			"status.loadBalancer.ingress[1].ip: 2001:db8::1: passed over, the Service is of IPv4 only",
			"IPv6 endpoints: passed over, the Service is of IPv4 only"}},
		{"IPv6", families(v6), "http: [fd00::1]:8080", 1, []string{
			"status.loadBalancer.ingress[0].ip: 192.0.2.1: passed over, the Service is of IPv6 only",
			"IPv4 endpoints: passed over, the Service is of IPv6 only"}},
		{"by a cluster IP", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.1" }, "http: 10.0.0.1:8080", 1, []string{
			"ingress[1].ip: 2001:db8::1: passed over", "IPv6 endpoints: passed over"}},
		{"by cluster IPs", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "fd96::1"} },
			"http: 10.0.0.1:8080 [fd00::1]:8080", 2, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := aService("web", "http:80")
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
			if test.f != nil {
				test.f(svc)
			}
			s := load(svc, aSlice("web-4", "web", "http:8080", "10.0.0.1"), aSlice("web-6", "web", "http:8080", "fd00::1"))
			wantWeb(t, s, test.want)
			if n := len(web(s).LoadBalancerIPs); n != test.lb {
				t.Errorf("%d load balancer IPs", n)
			}
			wantErrors(t, web(s).Errors)
			wantErrors(t, web(s).Warnings, test.warning...)
		})
	}

	svc := aService("web", "http:80")
	svc.Spec.IPFamilies = []corev1.IPFamily{"IPv5"}
	wantErrors(t, web(load(svc)).Errors, `spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`)
}

func TestMirroredEndpointsAreOfTheServicesFamily(t *testing.T) {
	svc := selectorless(aService("web", "http:80"))
	svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	s := load(svc, someEndpoints("web", "10.0.0.1 fd00::1 http:8080"))
	wantWeb(t, s, "http: [fd00::1]:8080")
	svc = svc.DeepCopy()
	svc.Spec.IPFamilies = nil
	feed(s, svc)
	wantWeb(t, s, "http: 10.0.0.1:8080 [fd00::1]:8080")
}
