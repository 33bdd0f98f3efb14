package charttest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	chartDir     = "../helm/weir"
	kustomizeDir = "../kustomize/base"
	namespace    = "weir-system"
)

// helmTemplate is `helm template weir deploy/helm/weir -n weir-system` with
// values, YAML, laid over the chart's own. NOTES.txt comes beside the objects.
func helmTemplate(values string) (objects []*unstructured.Unstructured, notes string, err error) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, "", err
	}
	over, err := onAllNodes(values)
	if err != nil {
		return nil, "", err
	}
	caps := common.DefaultCapabilities.Copy()
	if v, err := common.ParseKubeVersion("v1.37.1"); err == nil {
		caps.KubeVersion = *v
	}
	all, err := util.ToRenderValues(chart, over, common.ReleaseOptions{Name: "weir", Namespace: namespace, Revision: 1, IsInstall: true}, caps)
	if err != nil {
		return nil, "", err
	}
	// Strict finds a value that a template misspells; but with it a value that
	// the user takes away with null is an error, too.
	files, err := engine.Engine{Strict: !strings.Contains(values, "null")}.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	for name, text := range files {
		switch path.Ext(name) {
		case ".txt":
			notes = text
		case ".yaml":
			found, err := decode(text)
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w\n%s", name, err, text)
			}
			objects = append(objects, found...)
		}
	}
	order(objects)
	return objects, notes, nil
}

// onAllNodes are values that say which nodes are meant: all, where they do not.
func onAllNodes(values string) (map[string]any, error) {
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &over); err != nil {
		return nil, err
	}
	if _, ok := over["allNodes"]; !ok {
		over["allNodes"] = true
	}
	return over, nil
}

// kustomizeBuild is `kustomize build DIR`.
func kustomizeBuild(dir string) ([]*unstructured.Unstructured, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	text, err := resources.AsYaml()
	if err != nil {
		return nil, err
	}
	objects, err := decode(string(text))
	order(objects)
	return objects, err
}

// decode reads a YAML stream; a key that is given twice is an error.
func decode(text string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	docs := utilyaml.NewYAMLReader(bufioReader(text))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		asJSON, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(bytes.TrimSpace(asJSON), []byte("null")) {
			continue
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(asJSON); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
}

// order sorts as objects are to be created.
func order(objects []*unstructured.Unstructured) {
	first := []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap"}
	rank := func(o *unstructured.Unstructured) int {
		if i := slices.Index(first, o.GetKind()); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.GetKind()+a.GetName(), b.GetKind()+b.GetName())
	})
}

// mustTemplate renders the chart or fails the test.
func mustTemplate(t *testing.T, values string) []*unstructured.Unstructured {
	t.Helper()
	objects, _, err := helmTemplate(values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// find is the object of a kind, or nil; more than one is an error.
func find(t *testing.T, objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	for _, o := range objects {
		if o.GetKind() != kind {
			continue
		}
		if found != nil {
			t.Fatalf("there are two objects of kind %s", kind)
		}
		found = o
	}
	return found
}
