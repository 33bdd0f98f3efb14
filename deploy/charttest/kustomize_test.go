package charttest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestKustomizeBaseIsTheChartsDefault(t *testing.T) {
	base, err := kustomizeBuild(kustomizeDir)
	if err != nil {
		t.Fatal(err)
	}
	chart := map[string]any{}
	for _, o := range mustTemplate(t, `{allNodes: false, nodeSelector: {node-role.kubernetes.io/edge: ""}}`) {
		c := content(t, o)
		chart[o.GetKind()+" "+c["metadata"].(map[string]any)["name"].(string)] = c
	}
	kustomize := map[string]any{}
	for _, o := range base {
		if _, err := typed(o); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "Namespace" { // Helm's user makes it
			if o.GetLabels()["pod-security.kubernetes.io/enforce"] != "privileged" {
				t.Error("the namespace does not let the pods in")
			}
			continue
		}
		c := content(t, o)
		kustomize[o.GetKind()+" "+c["metadata"].(map[string]any)["name"].(string)] = c
	}
	if diff := cmp.Diff(chart, kustomize); diff != "" {
		t.Errorf("the chart (-) and the base (+) differ:\n%s", diff)
	}
}

// generated is a name of the ConfigMap, which ends with a hash of the contents.
var generated = regexp.MustCompile(`^weir-[a-z0-9]{10}$`)

// content is an object without the marks of the program that rendered it: Helm's labels, and the
// hash in the ConfigMap's name.
func content(t *testing.T, o *unstructured.Unstructured) map[string]any {
	t.Helper()
	c := o.DeepCopy().Object
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
				delete(v, key)
			}
			for k := range v {
				v[k] = walk(v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case string:
			if generated.MatchString(v) {
				return "weir"
			}
		}
		return v
	}
	walk(c)
	if text, ok, _ := unstructured.NestedString(c, "data", "weir.yaml"); ok {
		var config any
		if err := yaml.Unmarshal([]byte(strings.TrimSpace(text)), &config); err != nil {
			t.Fatal(err)
		}
		c["data"] = map[string]any{"weir.yaml": config}
	}
	return c
}
