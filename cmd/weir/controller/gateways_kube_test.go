package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery/kube/client"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// gatewayDefinitions are those of the standard channel, from the module.
func gatewayDefinitions(t *testing.T) (out string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"gatewayclasses", "gateways", "tcproutes", "udproutes", "referencegrants"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard", "gateway.networking.k8s.io_"+kind+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		out += string(text) + "\n---\n"
	}
	return out
}

// edge is objects of the Gateway API: NS is the namespace of the Gateway, and NS-db another.
const edge = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: weir}
spec: {controllerName: weir.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.org/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: NS}
spec:
  gatewayClassName: weir
  listeners:
  - {name: web, protocol: TCP, port: 80}
  - {name: db, protocol: TCP, port: 5432}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: theirs, namespace: NS}
spec:
  gatewayClassName: other
  listeners: [{name: web, protocol: TCP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web, namespace: NS}
spec:
  parentRefs: [{name: edge, sectionName: web}]
  rules: [{backendRefs: [{name: v1, port: 80, weight: 7}, {name: v2, port: 80, weight: 3}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: db, namespace: NS}
spec:
  parentRefs: [{name: edge, sectionName: db}]
  rules: [{backendRefs: [{name: db, namespace: NS-db, port: 5432}]}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: NS-db}
spec: {ports: [{port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: NS-db, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: "", port: 5432}]
endpoints: [{addresses: [10.9.0.1]}]
`

const grant = `
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: edge, namespace: NS-db}
spec:
  from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: NS}]
  to: [{group: "", kind: Service, name: db}]
`

// gatewayBed is a bed with objects of the Gateway API, and a controller.
type gatewayBed struct {
	*bed
	apply *kubetest.Applier
	api   *client.Client
}

func (b *gatewayBed) text(text string) string {
	return strings.ReplaceAll(text, "NS", b.site.Namespace)
}

// ports are the endpoints of the slices of a generated Service, with weights, by port.
func (b *gatewayBed) ports(ctx context.Context, service string) (string, error) {
	list, err := b.client.DiscoveryV1().EndpointSlices(b.site.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return "", err
	}
	var out []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			out = append(out, fmt.Sprintf("%s=%s:%d*%s", *s.Ports[0].Name, e.Addresses[0], *s.Ports[0].Port, s.Annotations["weir.dev/weight"]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " "), nil
}

// eventuallyPorts waits for the endpoints of the Gateway.
func (b *gatewayBed) eventuallyPorts(want string) {
	b.t.Helper()
	b.site.Eventually("endpoints", func(ctx context.Context) error {
		if got, err := b.ports(ctx, "edge-weir"); err != nil || got != want {
			return fmt.Errorf("%s, %v, want %s", got, err, want)
		}
		return nil
	})
}

func newGatewayBed(t *testing.T) *gatewayBed {
	t.Helper()
	b := newBedOf(t, kubetest.Options{NoEndpoints: true, Fast: true}, poolYAML("p", "addresses: [192.0.2.1/32]"))
	out := &gatewayBed{bed: b, apply: b.cluster.Applier(t)}
	var err error
	if out.api, err = client.New(b.cluster.REST(t)); err != nil {
		t.Fatal(err)
	}
	return out
}

func (b *gatewayBed) service(name string, addrs ...string) {
	b.t.Helper()
	b.site.Service(name, func(s *corev1.Service) { s.Spec.Type, s.Spec.Selector = corev1.ServiceTypeClusterIP, nil })
	port, http := int32(8080), "http"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	b.site.Slice(s)
}

// condition waits for a condition of an object.
func (b *gatewayBed) condition(what string, read func(context.Context) ([]metav1.Condition, error), kind, want string) {
	b.t.Helper()
	b.site.Eventually(what, func(ctx context.Context) error {
		list, err := read(ctx)
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(list, kind); c == nil || string(c.Status)+" "+c.Reason != want {
			return fmt.Errorf("%+v, want %s %s", c, kind, want)
		}
		return nil
	})
}

func (b *gatewayBed) gateway(kind, want string) {
	b.t.Helper()
	b.condition("Gateway edge", func(ctx context.Context) ([]metav1.Condition, error) {
		g, err := b.api.Gateways(b.site.Namespace).Get(ctx, "edge")
		if err != nil {
			return nil, err
		}
		return g.Status.Conditions, nil
	}, kind, want)
}

func (b *gatewayBed) route(name, kind, want string) {
	b.t.Helper()
	b.condition("TCPRoute "+name, func(ctx context.Context) ([]metav1.Condition, error) {
		r, err := b.api.TCPRoutes(b.site.Namespace).Get(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(r.Status.Parents) != 1 {
			return nil, errors.New("no parent")
		}
		return r.Status.Parents[0].Conditions, nil
	}, kind, want)
}

// The definitions are installed after the controller has started. A Gateway is a Service with an address of
// the pool and weighted endpoints. A reference to another namespace counts with a grant, as long as that is
// there. Objects of others are not touched; a Gateway that is deleted frees the address.
func TestKubeGatewaysAreServed(t *testing.T) {
	b := newGatewayBed(t)
	b.start("--lease", "", "--gateways")
	b.service("v1", "10.0.1.1", "10.0.1.2")
	b.service("v2", "10.0.2.1")
	b.apply.Namespace(b.site.Namespace + "-db")
	b.apply.Definitions(gatewayDefinitions(t))
	b.apply.All(b.text(edge))
	b.gateway("Programmed", "True Programmed")
	b.route("db", "ResolvedRefs", "False RefNotPermitted")
	b.route("web", "Accepted", "True Accepted")
	const web = "tcp-80=10.0.1.1:8080*7 tcp-80=10.0.1.2:8080*7 tcp-80=10.0.2.1:8080*6"
	b.eventuallyPorts(web)
	b.eventually("edge-weir", "192.0.2.1 Allocated")
	g, err := b.api.Gateways(b.site.Namespace).Get(t.Context(), "edge")
	if err != nil {
		t.Fatal(err)
	}
	if l := g.Status.Listeners; len(g.Status.Addresses) != 1 || g.Status.Addresses[0].Value != "192.0.2.1" || len(l) != 2 || l[0].AttachedRoutes != 1 {
		t.Errorf("status %+v", g.Status)
	}

	b.apply.All(b.text(grant))
	b.route("db", "ResolvedRefs", "True ResolvedRefs")
	b.eventuallyPorts("tcp-5432=10.9.0.1:5432* " + web)
	for _, o := range b.apply.Objects(b.text(grant)) {
		b.apply.Delete(o)
	}
	b.route("db", "ResolvedRefs", "False RefNotPermitted")
	b.eventuallyPorts(web)

	// A Gateway that is refused is served as before.
	b.apply.All(strings.Replace(b.text(edge), "  gatewayClassName: weir\n", "  gatewayClassName: weir\n  addresses: [{type: Hostname, value: example.org}]\n", 1))
	b.gateway("Accepted", "False UnsupportedAddress")
	b.eventually("edge-weir", "192.0.2.1 Allocated")
	b.eventuallyPorts(web)
	b.apply.All(b.text(edge))
	b.gateway("Programmed", "True Programmed")

	b.restored()

	// A slice that is changed or deleted by somebody else comes back.
	if err := b.client.DiscoveryV1().EndpointSlices(b.site.Namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=edge-weir"}); err != nil {
		t.Fatal(err)
	}
	b.eventuallyPorts(web)

	theirs, err := b.api.Gateways(b.site.Namespace).Get(t.Context(), "theirs")
	if err != nil || slices.ContainsFunc(theirs.Status.Conditions, func(c metav1.Condition) bool { return c.Reason != string(gatewayv1.GatewayReasonPending) }) {
		t.Errorf("a Gateway of another controller: %+v, %v", theirs, err)
	}
	// The name of the next one's Service is taken by somebody else: that is left alone.
	b.service("second-weir", "10.0.3.1")
	for _, o := range b.apply.Objects(b.text(edge)) {
		if o.GetName() == "edge" {
			b.apply.Delete(o)
			o.SetName("second")
			if err := b.apply.Apply(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.site.Eventually("the Service goes with the Gateway", func(ctx context.Context) error {
		_, err := b.client.CoreV1().Services(b.site.Namespace).Get(ctx, "edge-weir", metav1.GetOptions{})
		if got, _ := b.ports(ctx, "edge-weir"); !apierrors.IsNotFound(err) || got != "" {
			return fmt.Errorf("%v, %s", err, got)
		}
		return nil
	})
	b.condition("Gateway second", func(ctx context.Context) ([]metav1.Condition, error) {
		g, err := b.api.Gateways(b.site.Namespace).Get(ctx, "second")
		if err != nil {
			return nil, err
		}
		return g.Status.Conditions, nil
	}, "Programmed", "False Invalid")
	if s, err := b.client.CoreV1().Services(b.site.Namespace).Get(t.Context(), "second-weir", metav1.GetOptions{}); err != nil || s.Spec.Type != corev1.ServiceTypeClusterIP || len(s.OwnerReferences) > 0 {
		t.Errorf("somebody else's Service: %+v, %v", s, err)
	}
	b.lastGateway()
}

// restored changes the generated Service as somebody else, who exposes more with it, and expects it back as it was.
func (b *gatewayBed) restored() {
	b.t.Helper()
	services := b.client.CoreV1().Services(b.site.Namespace)
	was, err := services.Get(b.t.Context(), "edge-weir", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, patch := range []string{
		`{"spec":{"selector":{"app":"db"},"externalIPs":["203.0.113.9"]}}`,
		`{"spec":{"allocateLoadBalancerNodePorts":true,"externalTrafficPolicy":"Local","loadBalancerSourceRanges":["0.0.0.0/0"],"sessionAffinity":"ClientIP"}}`,
		`{"spec":{"ports":[{"port":80,"protocol":"TCP","nodePort":30080}],"publishNotReadyAddresses":true}}`,
		`{"spec":{"type":"NodePort","loadBalancerClass":null,"allocateLoadBalancerNodePorts":null}}`,
		`{"spec":{"type":"ExternalName","externalName":"example.org","clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,` +
			`"loadBalancerClass":null,"allocateLoadBalancerNodePorts":null,"externalTrafficPolicy":null,"internalTrafficPolicy":null}}`,
	} {
		if _, err := services.Patch(b.t.Context(), "edge-weir", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			b.t.Fatalf("%s: %v", patch, err)
		}
		b.site.Eventually("as before "+patch, func(ctx context.Context) error {
			is, err := services.Get(ctx, "edge-weir", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if strings.Contains(patch, "ExternalName") {
				is.Spec.ClusterIP, is.Spec.ClusterIPs = was.Spec.ClusterIP, was.Spec.ClusterIPs
			}
			if diff := cmp.Diff(was.Spec, is.Spec, cmpopts.EquateEmpty()); diff != "" {
				return errors.New(diff)
			}
			return nil
		})
	}
}

// lastGateway deletes the class, which stays as long as a Gateway has it.
func (b *gatewayBed) lastGateway() {
	b.t.Helper()
	var class, second *unstructured.Unstructured
	for _, o := range b.apply.Objects(b.text(edge)) {
		switch {
		case o.GetKind() == "GatewayClass" && o.GetName() == "weir":
			class = o
		case o.GetKind() == "Gateway" && o.GetName() == "edge":
			second = o
			second.SetName("second")
		}
	}
	b.site.Eventually("the finalizer", func(ctx context.Context) error {
		c, err := b.api.GatewayClasses().Get(ctx, "weir")
		if err == nil && !slices.Contains(c.Finalizers, gatewayv1.GatewayClassFinalizerGatewaysExist) {
			err = fmt.Errorf("finalizers %v", c.Finalizers)
		}
		return err
	})
	b.apply.Delete(class)
	if c, err := b.api.GatewayClasses().Get(b.t.Context(), "weir"); err != nil || c.DeletionTimestamp == nil {
		b.t.Errorf("the class of a Gateway is deleted: %+v, %v", c, err)
	}
	b.apply.Delete(second)
	b.site.Eventually("the class goes with the last Gateway", func(ctx context.Context) error {
		if _, err := b.api.GatewayClasses().Get(ctx, "weir"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the class is still there: %v", err)
		}
		return nil
	})
}
