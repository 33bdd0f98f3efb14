package kubetest

import (
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// Account makes a ServiceAccount with these rules in a ClusterRole, and
// returns a kubeconfig for it and the function that replaces the rules.
func (s *Site) Account(c *Cluster, name string, rules []rbacv1.PolicyRule) (kubeconfig string, set func([]rbacv1.PolicyRule)) {
	s.t.Helper()
	ctx := s.t.Context()
	must(s.Client.CoreV1().ServiceAccounts(s.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(s.t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-" + name}, Rules: rules}
	must(s.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))(s.t)
	must(s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.Namespace, Name: name}},
	}, metav1.CreateOptions{}))(s.t)
	token := must(s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(s.t)
	kubeconfig = filepath.Join(s.t.TempDir(), "kubeconfig-"+name)
	c.writeKubeconfig(s.t, kubeconfig, token.Status.Token)
	return kubeconfig, func(rules []rbacv1.PolicyRule) {
		s.t.Helper()
		role := must(s.Client.RbacV1().ClusterRoles().Get(ctx, s.Namespace+"-"+name, metav1.GetOptions{}))(s.t)
		role.Rules = rules
		must(s.Client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}))(s.t)
	}
}

// writeKubeconfig is the administrator's kubeconfig with another token.
func (c *Cluster) writeKubeconfig(t testing.TB, file, token string) {
	t.Helper()
	cfg, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range cfg.AuthInfos {
		user.Token = token
	}
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
}
