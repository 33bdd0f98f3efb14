package kube_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// admissionValues are values of annotations, at the bounds of each rule.
var admissionValues = map[string][]string{
	discovery.AnnotationForwardingMode:      {"", " nat ", "dnat", "l2dsr", "ipip", "gue", "NAT", "x"},
	discovery.AnnotationOnEndpointRemoval:   {"keep", "reset", "drop", "", "Reset"},
	discovery.AnnotationAlgorithm:           {"maglev", "random", "least-conn", " ", "dice"},
	discovery.AnnotationTrafficDistribution: {"PreferSameNode", " PreferSameZone", "PreferClose", "PreferSameRegion", "", "preferclose"},
	discovery.AnnotationMinReadyPercent:     {"0", "100", "+5", " 7 ", "007", "", "-1", "101", "5%", "1000"},
	discovery.AnnotationSlowStart:           {"30s", "1h", "0", "1.5m", ".5s", "1m30s", "100ms", "", "-0s", "1h1s", "-1s", "30", "1d", "9999999999h", "s"},
	discovery.AnnotationHealthCheckFail:     {"open", " closed ", "", "shut"},
	discovery.AnnotationPassiveHealthCheck:  {"auto", "off", "", "on"},
	discovery.AnnotationMaxConnections:      {"0", "1073741824", "0001000", "", "1073741825", "-1", "+1", "1k", "1e3", "99999999999", "1 0"},
	discovery.AnnotationNewConnections:      {"100", "1.5"},
	discovery.AnnotationWeight: {"n1=5", "10.0.0.1=7, 10.0.0.3:8080=8,n = 1000", "a=007", "a=b=1", "", "n1", "=3", " =3", "n1=0", "n1=1001", "a=1,,b=2", "a=1,", "a=x",
		"[2001:db8::1]:80=3"},
	discovery.AnnotationQUICConnectionID: {"0,20", "1,8", " 1 , 8 ", "quic-lb,1", "quic-lb , 15", "", "quic-lb,0", "quic-lb,16", "1,20", "0,0", "1", "1,2,3", "-1,2", "a,b"},
	discovery.AnnotationMSSClamp:         {"auto", "off", "536", "65495", "", "535", "65496", "on", "100000"},
	discovery.AnnotationTopologyKeys: {"kubernetes.io/hostname,topology.kubernetes.io/zone,*", "*", "", " ", "zone", "a,a", "*,zone", "-a", "a b", "a,", "x/y/z", "A.b/c",
		strings.Repeat("k", 63), strings.Repeat("k", 64), "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"},
}

// The admission policy of chart and base refuses the annotations in which a node finds an error, and
// no others. What an update leaves as it was it does not look at.
func TestKubeAdmissionRefusesWhatNodesCannotRead(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{NoControllers: true, NoEndpoints: true, Fast: true})
	client := c.Client(t)
	s := kubetest.NewSite(t, client)
	services := client.CoreV1().Services(s.Namespace)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	service := func(edit func(*corev1.Service)) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{}}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}}
		edit(svc)
		return svc
	}
	with := func(annotation, value string) *corev1.Service {
		return service(func(svc *corev1.Service) { svc.Annotations[annotation] = value })
	}
	many := func(n int) *corev1.Service {
		return service(func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.Ports = corev1.ServiceTypeClusterIP, nil
			for i := range n {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
			}
		})
	}
	// Services of the time before the policy.
	old, large := with(discovery.AnnotationAlgorithm, "dice"), many(1001)
	old.Name, large.Name = "old", "large"
	for _, svc := range []*corev1.Service{old, large} {
		if _, err := services.Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../deploy/kustomize/base/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(text), "\n---\n")
	var policy admissionv1.ValidatingAdmissionPolicy
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	if err := errors.Join(yaml.UnmarshalStrict([]byte(first), &policy), yaml.UnmarshalStrict([]byte(second), &binding)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), &policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the policy is in effect", func(ctx context.Context) error {
		if _, err := services.Create(ctx, many(1001), dry); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "at most 1000 ports") {
			return fmt.Errorf("%w", err)
		}
		return nil
	})
	if _, err := services.Create(t.Context(), many(1000), dry); err != nil {
		t.Error(err)
	}
	try := func(what string, svc *corev1.Service) {
		t.Helper()
		store := discovery.NewStore(discovery.Options{Supported: ^discovery.Feature(0)})
		store.SetService(svc)
		store.Flush()
		faults := store.All()[0].Errors
		_, err := services.Create(t.Context(), svc, dry)
		if (err != nil) != (len(faults) > 0) || err != nil && !strings.Contains(err.Error(), policy.Name) {
			t.Errorf("%s: the API server says %v, a node %q", what, err, faults)
		}
	}
	for annotation, values := range admissionValues {
		for _, value := range values {
			try(fmt.Sprintf("%s: %q", annotation, value), with(annotation, value))
		}
	}
	local := with(discovery.AnnotationTopologyKeys, "*")
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	try("topology keys and Local", local)

	for _, svc := range []*corev1.Service{old, large} {
		now, err := services.Get(t.Context(), svc.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now.Labels = map[string]string{"a": "b"}
		if now, err = services.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s cannot be changed: %v", svc.Name, err)
			continue
		}
		if now.Annotations == nil {
			now.Annotations = map[string]string{}
		}
		now.Annotations[discovery.AnnotationAlgorithm] = "coin"
		if _, err := services.Update(t.Context(), now, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: another mistake is admitted: %v", svc.Name, err)
		}
	}
}
