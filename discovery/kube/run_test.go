package kube

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
)

// Who follows an update knows of it before the objects are merged, until it is delivered.
func TestTheMergeIsPartOfAnUpdate(t *testing.T) {
	var steps []string
	var s *Source
	s, err := New(Config{REST: &rest.Config{}, Log: slog.New(slog.DiscardHandler), Working: func() func() {
		if s.Stats().Services > 0 {
			t.Error("the objects are merged before")
		}
		steps = append(steps, "begin")
		return func() { steps = append(steps, "end") }
	}})
	if err != nil {
		t.Fatal(err)
	}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	web.Spec.ClusterIP, web.Spec.Ports = "10.0.0.1", []corev1.ServicePort{{Port: 80}}
	s.synced = true
	s.apply(changes{objects: map[key]runtime.Object{{kindService, "default", "web"}: web}}, func(up *discovery.Update) {
		steps = append(steps, up.Put[0].Name.Name)
	})
	if want := []string{"begin", "web", "end"}; !slices.Equal(steps, want) {
		t.Errorf("%v, want %v", steps, want)
	}
}

// late are Names whose answers come while a start waits for them.
type late struct {
	discovery.NoNames
	settled bool
}

func (l *late) Settle() bool {
	l.settled = true
	return true
}

func (l *late) Answer(string, discovery.NameQuestion) (a discovery.NameAnswer) {
	if l.settled {
		a.Targets = []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:0")}
	}
	return a
}

// The first update has the endpoints of names for whose answers it has waited.
func TestTheFirstUpdateHasEndpointsByName(t *testing.T) {
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	web.Spec.ClusterIP, web.Spec.Ports = "10.0.0.1", []corev1.ServicePort{{Port: 80}}
	number := int32(8080)
	named := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeFQDN, Ports: []discoveryv1.EndpointPort{{Port: &number}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"web.example.com"}}},
	}
	objects := map[key]runtime.Object{{kindService, "default", "web"}: web, {kindSlice, "default", "web-1"}: named}
	for name, start := range map[string]func(*Source, func(*discovery.Update)){
		"of the API server": func(s *Source, deliver func(*discovery.Update)) { s.apply(changes{objects: objects}, deliver) },
		"of what was known": func(s *Source, deliver func(*discovery.Update)) {
			s.cfg.LastKnown = &Objects{Services: []*corev1.Service{web}, Slices: []*discoveryv1.EndpointSlice{named}}
			s.tellLastKnown(deliver)
		},
	} {
		s, err := New(Config{REST: &rest.Config{}, Log: slog.New(slog.DiscardHandler), Store: discovery.Options{Names: &late{}}})
		if err != nil {
			t.Fatal(err)
		}
		updates := 0
		start(s, func(up *discovery.Update) {
			if updates++; len(up.Put) != 1 || len(up.Put[0].Ports[0].Endpoints) != 1 {
				t.Errorf("%s: %+v", name, up.Put)
			}
		})
		if updates != 1 {
			t.Errorf("%s: %d updates", name, updates)
		}
	}
}
