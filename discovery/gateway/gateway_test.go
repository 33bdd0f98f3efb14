package gateway

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

// read reads objects; their references are found among them.
func read(t *testing.T, text []byte) *Objects {
	t.Helper()
	services, slicesOf, labels := map[string]*corev1.Service{}, map[string][]*discoveryv1.EndpointSlice{}, map[string]map[string]string{}
	in := &Objects{
		NamespaceLabels:   func(name string) map[string]string { return labels[name] },
		Service:           func(ns, name string) *corev1.Service { return services[ns+"/"+name] },
		Slices:            func(ns, name string) []*discoveryv1.EndpointSlice { return slicesOf[ns+"/"+name] },
		LoadBalancerClass: "weir.dev/edge",
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var head metav1.TypeMeta
		into := func(o any) {
			if err := yaml.UnmarshalStrict(doc, o); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		switch head.Kind {
		case "GatewayClass":
			o := new(gatewayv1.GatewayClass)
			into(o)
			in.Classes = append(in.Classes, o)
		case "Gateway":
			o := new(gatewayv1.Gateway)
			into(o)
			in.Gateways = append(in.Gateways, o)
		case "TCPRoute":
			o := new(gatewayv1.TCPRoute)
			into(o)
			in.TCPRoutes = append(in.TCPRoutes, o)
		case "UDPRoute":
			o := new(gatewayv1.UDPRoute)
			into(o)
			in.UDPRoutes = append(in.UDPRoutes, o)
		case "ReferenceGrant":
			o := new(gatewayv1.ReferenceGrant)
			into(o)
			in.Grants = append(in.Grants, o)
		case "Namespace":
			o := new(corev1.Namespace)
			into(o)
			labels[o.Name] = o.Labels
		case "Service":
			o := new(corev1.Service)
			into(o)
			services[o.Namespace+"/"+o.Name] = o
			if o.Labels[LabelManagedBy] == ManagedBy && metav1.GetControllerOf(o) != nil {
				in.Generated = append(in.Generated, o)
			}
		case "EndpointSlice":
			o := new(discoveryv1.EndpointSlice)
			into(o)
			name := o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
			slicesOf[name] = append(slicesOf[name], o)
		default:
			t.Fatalf("kind %q", head.Kind)
		}
	}
	return in
}

// render is a result for readers.
func render(r *Result) string {
	var b strings.Builder
	conditions := func(list []metav1.Condition) {
		for _, c := range list {
			fmt.Fprintf(&b, "  %s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)
			if c.ObservedGeneration != 1 {
				fmt.Fprintf(&b, " (generation %d)", c.ObservedGeneration)
			}
			b.WriteString("\n")
		}
	}
	for _, c := range r.Classes {
		fmt.Fprintf(&b, "class %s %v\n", c.Name, c.Finalizers)
		conditions(c.Status.Conditions)
	}
	for _, g := range r.Gateways {
		fmt.Fprintf(&b, "gateway %s/%s", g.Namespace, g.Name)
		for _, a := range g.Status.Addresses {
			fmt.Fprintf(&b, " %s", a.Value)
		}
		b.WriteString("\n")
		conditions(g.Status.Conditions)
		for _, l := range g.Status.Listeners {
			fmt.Fprintf(&b, " listener %s: %d attached, kinds", l.Name, l.AttachedRoutes)
			for _, k := range l.SupportedKinds {
				fmt.Fprintf(&b, " %s", k.Kind)
			}
			b.WriteString("\n")
			conditions(l.Conditions)
		}
	}
	route := func(kind string, m *metav1.ObjectMeta, s *gatewayv1.RouteStatus) {
		fmt.Fprintf(&b, "%s %s/%s\n", kind, m.Namespace, m.Name)
		for _, p := range s.Parents {
			fmt.Fprintf(&b, " parent %s %s %d of %s\n", p.ParentRef.Name, value(p.ParentRef.SectionName), value(p.ParentRef.Port), p.ControllerName)
			conditions(p.Conditions)
		}
	}
	for _, r := range r.TCPRoutes {
		route("TCPRoute", &r.ObjectMeta, &r.Status.RouteStatus)
	}
	for _, r := range r.UDPRoutes {
		route("UDPRoute", &r.ObjectMeta, &r.Status.RouteStatus)
	}
	for _, s := range r.Services {
		fmt.Fprintf(&b, "service %s/%s", s.Namespace, s.Name)
		for _, p := range s.Spec.Ports {
			fmt.Fprintf(&b, " %s=%s:%d", p.Name, p.Protocol, p.Port)
		}
		fmt.Fprintf(&b, " owner %s %v %v\n", s.OwnerReferences[0].Name, s.Labels, s.Annotations)
	}
	names := map[string]bool{}
	for _, s := range r.Slices {
		if names[s.Name] {
			fmt.Fprintf(&b, "twice: %s\n", s.Name)
		}
		names[s.Name] = true
		fmt.Fprintf(&b, "slice %s of %s, port %s:%d, weight %q:", s.Name, s.Labels[discoveryv1.LabelServiceName], *s.Ports[0].Name, *s.Ports[0].Port, s.Annotations["weir.dev/weight"])
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, " %s", e.Addresses[0])
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestTranslate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, golden := render(Translate(read(t, text))), strings.TrimSuffix(file, ".yaml")+".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
			// The order in which objects come must not matter, nor may a second look change anything.
			in := read(t, text)
			slices.Reverse(in.TCPRoutes)
			slices.Reverse(in.UDPRoutes)
			slices.Reverse(in.Classes)
			again := Translate(in)
			in.Gateways, in.TCPRoutes, in.UDPRoutes = again.Gateways, again.TCPRoutes, again.UDPRoutes
			again = Translate(in)
			slices.Reverse(again.TCPRoutes)
			slices.Reverse(again.UDPRoutes)
			slices.Reverse(again.Classes)
			if len(again.Gateways) == len(read(t, text).Gateways) {
				if diff := cmp.Diff(string(want), render(again)); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}
