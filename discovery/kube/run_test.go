package kube

import (
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
