package kubetest

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/metallb.yaml
var metallb string

// Applier applies manifests as an administrator does.
type Applier struct {
	t       testing.TB
	cluster *Cluster
	dynamic dynamic.Interface
}

// Applier is one of this cluster.
func (c *Cluster) Applier(t testing.TB) *Applier {
	t.Helper()
	cfg := c.REST(t)
	cfg.ContentType = ""
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &Applier{t: t, cluster: c, dynamic: d}
}

// MetalLB installs the definitions of MetalLB's resources, and its namespace.
func (a *Applier) MetalLB() {
	a.t.Helper()
	a.Namespace("metallb-system")
	a.Definitions(metallb)
}

// Namespace makes a namespace that is not there.
func (a *Applier) Namespace(name string) {
	a.t.Helper()
	_, err := a.cluster.Client(a.t).CoreV1().Namespaces().Create(a.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		a.t.Fatal(err)
	}
}

// Definitions applies CustomResourceDefinitions, and waits until they are served.
func (a *Applier) Definitions(text string) {
	a.t.Helper()
	for _, o := range a.Objects(text) {
		if err := a.Apply(o); err != nil {
			a.t.Fatalf("%s: %v", o.GetName(), err)
		}
		crds := a.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		err := Poll(a.t.Context(), func(ctx context.Context) error {
			now, err := crds.Get(ctx, o.GetName(), metav1.GetOptions{})
			if err == nil && !(established(now) && a.served(now)) {
				err = fmt.Errorf("it is not served: %v", now.Object["status"])
			}
			return err
		})
		if err != nil {
			a.t.Fatalf("%s: %v", o.GetName(), err)
		}
	}
}

func established(crd *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// served reports whether the API server answers for all versions: it does so a little later.
func (a *Applier) served(crd *unstructured.Unstructured) bool {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if version["served"] == false {
			continue
		}
		if _, err := a.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}).List(a.t.Context(), metav1.ListOptions{Limit: 1}); err != nil {
			return false
		}
	}
	return true
}

// Objects are the documents of a YAML stream, without those that have comments alone.
func (a *Applier) Objects(text string) (out []*unstructured.Unstructured) {
	a.t.Helper()
	for r := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(text)))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(doc, &o.Object)
		}
		if err != nil {
			a.t.Fatal(err)
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

// All applies the documents of a YAML stream, and fails the test at an error.
func (a *Applier) All(text string) {
	a.t.Helper()
	for _, o := range a.Objects(text) {
		if err := a.Apply(o); err != nil {
			a.t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// Apply applies an object as kubectl does: a field that the definition does not have is an error.
func (a *Applier) Apply(o *unstructured.Unstructured) error { return a.patch(o) }

// Status applies the status of an object.
func (a *Applier) Status(o *unstructured.Unstructured) {
	a.t.Helper()
	if err := a.patch(o, "status"); err != nil {
		a.t.Fatal(err)
	}
}

func (a *Applier) patch(o *unstructured.Unstructured, subresources ...string) error {
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	yes := true
	_, err = a.resource(o).Patch(a.t.Context(), o.GetName(), "application/apply-patch+yaml", text,
		metav1.PatchOptions{FieldManager: "kubetest", Force: &yes, FieldValidation: metav1.FieldValidationStrict}, subresources...)
	return err
}

// Delete deletes an object, which need not be there.
func (a *Applier) Delete(o *unstructured.Unstructured) {
	a.t.Helper()
	if err := a.resource(o).Delete(context.WithoutCancel(a.t.Context()), o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		a.t.Fatal(err)
	}
}

// resource is that of an object in a namespace, or of a definition or Node.
func (a *Applier) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	gvk := o.GroupVersionKind()
	r := a.dynamic.Resource(gvk.GroupVersion().WithResource(plural(gvk.Kind)))
	if o.GetNamespace() == "" {
		return r
	}
	return r.Namespace(o.GetNamespace())
}

func plural(kind string) string {
	name := strings.ToLower(kind)
	if stem, ok := strings.CutSuffix(name, "y"); ok && !strings.HasSuffix(stem, "a") {
		return stem + "ies"
	}
	if strings.HasSuffix(name, "s") {
		return name + "es"
	}
	return name + "s"
}
