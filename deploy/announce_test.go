package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery/kube"
)

// The component grants what nodes ask for to read the objects of the announcement, and no more.
func TestAnnounceComponentGrantsWhatWeirAsksFor(t *testing.T) {
	text, err := os.ReadFile("kustomize/announce/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(string(text), "\n---\n")
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	for i, into := range []any{&role, &binding} {
		if err := yaml.UnmarshalStrict([]byte(docs[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	want := kube.Allowances(kube.Config{ObjectNamespaces: []string{""}})
	for name := range kube.Allowances(kube.Config{}) {
		delete(want, name) // of the base
	}
	for _, verbs := range want {
		slices.Sort(verbs)
	}
	if diff := cmp.Diff(want, verbs(&role)); diff != "" {
		t.Errorf("asked for (-) and granted (+) differ:\n%s", diff)
	}
	if binding.RoleRef.Name != role.Name || cmp.Diff(binding.Subjects, readRights(t).binding.Subjects) != "" {
		t.Errorf("%+v", binding)
	}
}
