package charttest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Nodes read the objects of the announcement in the namespaces that the configuration names, and the
// named Secrets there. Without the configuration they may read neither.
func TestChartAnnounceRights(t *testing.T) {
	rules := func(secrets ...string) []rbacv1.PolicyRule {
		out := []rbacv1.PolicyRule{
			{
				APIGroups: []string{"metallb.io"}, Verbs: []string{"list", "watch"},
				Resources: []string{"addresspools", "bfdprofiles", "bgpadvertisements", "bgppeers", "communities", "ipaddresspools", "l2advertisements"},
			},
			{APIGroups: []string{"weir.dev"}, Resources: []string{"addresspools", "bfdprofiles", "bgpadvertisements", "bgppeers", "communities"}, Verbs: []string{"list", "watch"}},
		}
		if len(secrets) > 0 {
			out = append(out, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: secrets, Verbs: []string{"list", "watch"}})
		}
		return out
	}
	for name, c := range map[string]struct {
		values string
		want   map[string][]rbacv1.PolicyRule // by kind and namespace
	}{
		"nothing":           {variants["defaults"], map[string][]rbacv1.PolicyRule{}},
		"prepared":          {`config: {announce: {objectNamespaces: [a], objectSecrets: [key]}}`, map[string][]rbacv1.PolicyRule{}},
		"another speaker":   {`config: {announce: {speaker: kernel}}`, map[string][]rbacv1.PolicyRule{}},
		"namespaces":        {`config: {announce: {speaker: bgp, objectNamespaces: [a, b]}}`, map[string][]rbacv1.PolicyRule{"Role a": rules(), "Role b": rules()}},
		"Secrets":           {variants["announced objects"], map[string][]rbacv1.PolicyRule{"Role metallb-system": rules("router-a", "router-b")}},
		"all":               {`config: {announce: {speaker: bgp, objectNamespaces: ["*"]}}`, map[string][]rbacv1.PolicyRule{"ClusterRole ": rules()}},
		"Secrets of all":    {`config: {announce: {speaker: bgp, objectNamespaces: ["*"], objectSecrets: [key]}}`, map[string][]rbacv1.PolicyRule{"ClusterRole ": rules()}},
		"rights of another": {"rbac: {create: false}\nserviceAccount: {create: false, name: mine}\nconfig: {announce: {speaker: bgp, objectNamespaces: [a]}}", map[string][]rbacv1.PolicyRule{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string][]rbacv1.PolicyRule{}
			var bound []string
			for _, o := range mustTemplate(t, c.values) {
				if o.GetName() != "weir-announce" {
					continue
				}
				switch o.GetKind() {
				case "Role":
					got["Role "+o.GetNamespace()] = decoded[*rbacv1.Role](t, o).Rules
				case "ClusterRole":
					got["ClusterRole "] = decoded[*rbacv1.ClusterRole](t, o).Rules
				case "RoleBinding":
					b := decoded[*rbacv1.RoleBinding](t, o)
					bound = append(bound, b.RoleRef.Kind+" "+o.GetNamespace())
					if s := b.Subjects[0]; s.Name != "weir" || s.Namespace != namespace {
						t.Errorf("bound to %+v", s)
					}
				case "ClusterRoleBinding":
					bound = append(bound, decoded[*rbacv1.ClusterRoleBinding](t, o).RoleRef.Kind+" ")
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			for role := range c.want {
				if !slices.Contains(bound, role) {
					t.Errorf("%s is not bound: %v", role, bound)
				}
			}
		})
	}
}

// The component of kustomize has the rights of the chart.
func TestKustomizeAnnounceIsTheCharts(t *testing.T) {
	component, err := kustomizeBuild("../kustomize/announce")
	if err != nil {
		t.Fatal(err)
	}
	var want []rbacv1.PolicyRule
	for _, o := range mustTemplate(t, `config: {announce: {speaker: bgp, objectNamespaces: ["*"]}}`) {
		if o.GetKind() == "ClusterRole" && o.GetName() == "weir-announce" {
			want = decoded[*rbacv1.ClusterRole](t, o).Rules
		}
	}
	if diff := cmp.Diff(want, decoded[*rbacv1.ClusterRole](t, find(t, component, "ClusterRole")).Rules); diff != "" || len(want) == 0 {
		t.Error(diff)
	}
}
