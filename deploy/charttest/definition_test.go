package charttest

import (
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// The chart has the definitions where Helm leaves them at an upgrade and an uninstall, and kustomize
// apart from the base: whoever deletes them deletes their objects.
func TestDefinitionsAreApartFromTheRelease(t *testing.T) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	if list := chart.CRDObjects(); len(list) != 1 {
		t.Fatalf("%d files", len(list))
	}
	crds, err := kustomizeBuild("../kustomize/crds")
	if err != nil || len(crds) != 5 {
		t.Fatalf("%d objects, %v", len(crds), err)
	}
	base, err := kustomizeBuild(kustomizeDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range append(base, mustTemplate(t, variants["everything"])...) {
		if o.GetKind() == "CustomResourceDefinition" {
			t.Errorf("%s is in the release", o.GetName())
		}
	}
}
