package charttest

import (
	"bufio"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

func bufioReader(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }

// known knows every kind that the chart can render.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// typed decodes an object into its Go type; a field that the type does not
// have is an error.
func typed(o *unstructured.Unstructured) (runtime.Object, error) {
	data, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(known, serializer.EnableStrict)
	obj, _, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	return obj, err
}

// daemonSet is the DaemonSet among objects.
func daemonSet(t *testing.T, objects []*unstructured.Unstructured) *appsv1.DaemonSet {
	t.Helper()
	o := find(t, objects, "DaemonSet")
	if o == nil {
		t.Fatal("there is no DaemonSet")
	}
	obj, err := typed(o)
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*appsv1.DaemonSet)
}

// decoded is an object as its Go type.
func decoded[T runtime.Object](t *testing.T, o *unstructured.Unstructured) T {
	t.Helper()
	if o == nil {
		t.Fatalf("there is no %T", *new(T))
	}
	obj, err := typed(o)
	if err != nil {
		t.Fatal(err)
	}
	return obj.(T)
}
