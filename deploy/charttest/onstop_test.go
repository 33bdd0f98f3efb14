package charttest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// A pod knows the DaemonSet by name, and may read that and nothing else of its namespace.
func TestChartPodMayAskForItsDaemonSet(t *testing.T) {
	for variant, name := range map[string]string{"defaults": "weir", "another name": "edge-lb", "everything": "weir"} {
		t.Run(variant, func(t *testing.T) {
			objects := mustTemplate(t, variants[variant])
			ds := daemonSet(t, objects)
			if ds.Name != name {
				t.Fatalf("the DaemonSet is %s, want %s", ds.Name, name)
			}
			env := ds.Spec.Template.Spec.Containers[0].Env
			at := func(name string) corev1.EnvVar {
				i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == name })
				if i < 0 {
					t.Fatalf("%s is not set", name)
				}
				return env[i]
			}
			if got := at("DAEMONSET_NAME").Value; got != name {
				t.Errorf("DAEMONSET_NAME is %q", got)
			}
			if from := at("POD_NAMESPACE").ValueFrom; from == nil || from.FieldRef == nil || from.FieldRef.FieldPath != "metadata.namespace" {
				t.Errorf("POD_NAMESPACE comes from %v", from)
			}
			role := decoded[*rbacv1.Role](t, find(t, objects, "Role"))
			want := []rbacv1.PolicyRule{
				{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: []string{name}, Verbs: []string{"get", "watch"}},
				{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
			}
			if diff := cmp.Diff(want, role.Rules); diff != "" {
				t.Error(diff)
			}
			binding := decoded[*rbacv1.RoleBinding](t, find(t, objects, "RoleBinding"))
			subject := rbacv1.Subject{Kind: "ServiceAccount", Name: ds.Spec.Template.Spec.ServiceAccountName, Namespace: namespace}
			if diff := cmp.Diff([]rbacv1.Subject{subject}, binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
				t.Errorf("%s is bound to %v", binding.RoleRef.Name, binding.Subjects)
			}
		})
	}
	if find(t, mustTemplate(t, variants["own account"]), "Role") != nil {
		t.Error("there is a Role without rbac.create")
	}
}
