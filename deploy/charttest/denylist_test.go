package charttest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Nodes read the ConfigMaps that denyLists name, and no others.
func TestChartDenyListRights(t *testing.T) {
	rules := func(names ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: []string{"list", "watch"}}}
	}
	for name, c := range map[string]struct {
		values string
		want   map[string][]rbacv1.PolicyRule // by namespace
	}{
		"nothing":           {variants["defaults"], map[string][]rbacv1.PolicyRule{}},
		"lists":             {variants["deny lists"], map[string][]rbacv1.PolicyRule{"security": rules("drop", "more"), "other": rules("drop")}},
		"rights of another": {"rbac: {create: false}\nserviceAccount: {create: false, name: mine}\n" + variants["deny lists"], map[string][]rbacv1.PolicyRule{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, bound := map[string][]rbacv1.PolicyRule{}, map[string]bool{}
			for _, o := range mustTemplate(t, c.values) {
				if o.GetName() != "weir-denylist" {
					continue
				}
				switch o.GetKind() {
				case "Role":
					got[o.GetNamespace()] = decoded[*rbacv1.Role](t, o).Rules
				case "RoleBinding":
					b := decoded[*rbacv1.RoleBinding](t, o)
					bound[o.GetNamespace()] = true
					if s := b.Subjects[0]; b.RoleRef.Name != "weir-denylist" || s.Name != "weir" || s.Namespace != namespace {
						t.Errorf("%+v", b)
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			for ns := range c.want {
				if !bound[ns] {
					t.Errorf("the Role of %s is not bound", ns)
				}
			}
		})
	}
}

// The component of kustomize has the rights of the chart.
func TestKustomizeDenyListIsTheCharts(t *testing.T) {
	component, err := kustomizeBuild("../kustomize/denylist")
	if err != nil {
		t.Fatal(err)
	}
	chart := map[string]map[string]any{}
	for _, o := range mustTemplate(t, `config: {denyLists: [{name: a, configMap: `+namespace+`/weir-denylist}]}`) {
		if o.GetName() == "weir-denylist" {
			chart[o.GetKind()] = content(t, o)
		}
	}
	for _, o := range component {
		c := content(t, o)
		want := chart[o.GetKind()]
		if want == nil {
			t.Fatalf("the chart has no %s", o.GetKind())
		}
		delete(want["metadata"].(map[string]any), "labels")
		if diff := cmp.Diff(want, c); diff != "" {
			t.Error(diff)
		}
	}
	if len(component) != len(chart) {
		t.Errorf("%d objects, the chart has %d", len(component), len(chart))
	}
}
