package deploy

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

const namespace = "weir-system"

// rights are the objects of kustomize/base/rbac.yaml.
type rights struct {
	account corev1.ServiceAccount
	role    rbacv1.ClusterRole
	binding rbacv1.ClusterRoleBinding
	own     rbacv1.Role // of the pod's namespace
	bound   rbacv1.RoleBinding
}

func readRights(t *testing.T) *rights {
	t.Helper()
	data, err := os.ReadFile("kustomize/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := &rights{}
	docs := strings.Split(string(data), "\n---\n")
	for i, into := range []any{&r.account, &r.role, &r.binding, &r.own, &r.bound} {
		if err := yaml.UnmarshalStrict([]byte(docs[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// verbs are a role's, by resource, in the form of kube.Allowances.
func verbs(role *rbacv1.ClusterRole) map[string][]string { return verbsOf(role.Rules) }

func verbsOf(rules []rbacv1.PolicyRule) map[string][]string {
	out := map[string][]string{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				name := strings.TrimPrefix(group+"/"+resource, "/")
				out[name] = append(out[name], rule.Verbs...)
				slices.Sort(out[name])
			}
		}
	}
	return out
}

// takeAway is a role without one verb on one resource.
func takeAway(role *rbacv1.ClusterRole, resource, verb string) *rbacv1.ClusterRole {
	less := role.DeepCopy()
	less.Rules = nil
	for name, all := range verbs(role) {
		group, res, ok := strings.Cut(name, "/")
		if !ok {
			group, res = "", name
		}
		if name == resource {
			all = without(all, verb)
		}
		if len(all) == 0 {
			continue // a rule without verbs is not valid
		}
		less.Rules = append(less.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{res}, Verbs: all})
	}
	return less
}

func TestClusterRoleGrantsWhatWeirAsksFor(t *testing.T) {
	want := kube.Allowances(kube.Config{Events: true, DaemonSet: ownSet})
	for _, v := range want {
		slices.Sort(v)
	}
	if diff := cmp.Diff(want, readRights(t).verbs()); diff != "" {
		t.Errorf("asked for (-) and granted (+) differ:\n%s", diff)
	}
}

// site is a cluster that enforces RBAC, with the base's account and rights in it.
type site struct {
	*kubetest.Site
	t       *testing.T
	cluster *kubetest.Cluster
	rights  *rights
	token   string
}

func newSite(t *testing.T, args ...string) *site {
	t.Helper()
	cluster := kubetest.Require(t, kubetest.Options{Authz: "RBAC", Args: args})
	client := cluster.Client(t)
	s := &site{Site: kubetest.NewSite(t, client), t: t, cluster: cluster, rights: readRights(t)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err1 := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	_, err2 := client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &s.rights.account, metav1.CreateOptions{})
	_, err3 := client.RbacV1().ClusterRoles().Create(t.Context(), &s.rights.role, metav1.CreateOptions{})
	_, err4 := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &s.rights.binding, metav1.CreateOptions{})
	_, err5 := client.RbacV1().Roles(namespace).Create(t.Context(), &s.rights.own, metav1.CreateOptions{})
	_, err6 := client.RbacV1().RoleBindings(namespace).Create(t.Context(), &s.rights.bound, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), s.rights.account.Name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.token = answer.Status.Token
	s.until(0)
	return s
}

// rest is the configuration of the account's client.
func (s *site) rest() *rest.Config {
	c := rest.AnonymousClientConfig(s.cluster.REST(s.t))
	c.BearerToken = s.token
	return c
}

// until waits until this many permissions are missing: the authorizer learns
// of a changed role by a watch.
func (s *site) until(missing int) []*kube.Denial {
	s.t.Helper()
	var denials []*kube.Denial
	s.Eventually(fmt.Sprintf("%d permissions missing", missing), func(ctx context.Context) (err error) {
		denials, err = kube.Access(ctx, kube.Config{REST: s.rest(), Events: true, DaemonSet: ownSet})
		if err == nil && len(denials) != missing {
			err = fmt.Errorf("%d are missing: %v", len(denials), denials)
		}
		return err
	})
	return denials
}

// allow replaces the role.
func (s *site) allow(role *rbacv1.ClusterRole) {
	s.t.Helper()
	if _, err := s.Client.RbacV1().ClusterRoles().Update(s.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// Every verb of the role is used, and no other is tried. An API server that
// streams lists (KEP-3157) is only watched; an older one is listed first.
func TestKubeClusterRoleIsUsedInFull(t *testing.T) {
	s := newSite(t, "--feature-gates=WatchList=false")
	r := &record{seen: map[string][]string{}}
	c := s.rest()
	c.Wrap(r.wrap)
	src, err := kube.New(kube.Config{REST: c, Store: discovery.Options{NodeName: "edge-1"}, Events: true, DaemonSet: ownSet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, func(*discovery.Update) {}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	s.daemonSet()
	s.Service("web", nil)
	s.Eventually("the Service is known", func(context.Context) error {
		if len(src.Services()) < 2 { // and the API server's own
			return errors.New("it is not")
		}
		return nil
	})
	src.Complain(discovery.ServiceName{Namespace: s.Namespace, Name: "web"}, "InvalidObject", "cannot be served")
	s.told(1)
	if ends, err := src.NextPod(t.Context()); err != nil || ends != "" {
		t.Errorf("in a rollout: %q, %v", ends, err)
	}
	granted := s.rights.verbs()
	s.Eventually("every verb is used", func(context.Context) error {
		if m := r.missing(granted); len(m) > 0 {
			return fmt.Errorf("not used: %s", strings.Join(m, ", "))
		}
		return nil
	})
	for name, used := range r.seen {
		for _, v := range used {
			if !slices.Contains(granted[name], v) {
				t.Errorf("%s %s is used and not granted", v, name)
			}
		}
	}
}

// told waits until Events on the Service web have been recorded this often.
func (s *site) told(times int32) {
	s.t.Helper()
	s.Eventually(fmt.Sprintf("%d Events", times), func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		if err != nil {
			return err
		}
		var all int32
		for _, e := range list.Items {
			all += e.Count
		}
		if all != times {
			return fmt.Errorf("there are %d", all)
		}
		return nil
	})
}

// inCluster adds to a container what the kubelet gives every pod: the account's
// token and the API server's address. The latter is relayed into the node's
// network namespace.
func (n *node) inCluster(c *sandbox, s *site) {
	n.t.Helper()
	account := filepath.Join(n.Dir(), "account")
	if err := os.MkdirAll(account, 0o755); err != nil {
		n.t.Fatal(err)
	}
	ca := s.cluster.REST(n.t).CAData
	if block, _ := pem.Decode(ca); block == nil {
		n.t.Fatal("the kubeconfig holds no certificate")
	}
	for name, data := range map[string][]byte{"token": []byte(s.token), "ca.crt": ca, "namespace": []byte(namespace)} {
		if err := os.WriteFile(filepath.Join(account, name), data, 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
	c.Mounts = append(c.Mounts, mount{From: account, To: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	at, err := n.Forward(n.Edge.Edge, "127.0.0.1:0", func(net.Conn) (net.Conn, error) {
		return net.Dial("tcp", strings.TrimPrefix(s.cluster.Server, "https://"))
	})
	if err != nil {
		n.t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		n.t.Fatal(err)
	}
	c.Env = append(c.Env, "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT="+port)
}

// The pod, with the base's own configuration, rights and account, serves what
// the cluster's controllers say.
func TestKubePodServesTheCluster(t *testing.T) {
	n := newNode(t)
	s := newSite(t)
	config, err := os.ReadFile("kustomize/base/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.configure(map[string]string{"weir.yaml": string(config)})
	c := n.container(podSpec(t))
	n.inCluster(c, s)

	server, err := workload.Serve(n.ZoneA, "web-1", "[::]:8080")
	if err != nil {
		t.Fatal(err)
	}
	n.OnClose(server.Close)
	s.Node("edge-1", "a", netlab.Host4(netlab.ClientNet, 1))
	s.Node("zonea", "a", netlab.Host4(netlab.FabricNet, 11))
	s.RunPod(kubetest.PodSpec{Name: "web-1", Node: "zonea", Labels: map[string]string{"app": "web"}, Addresses: []netip.Addr{netlab.Host4(netlab.FabricNet, 11)}})
	svc := s.Service("web", func(svc *corev1.Service) { svc.Spec.Ports[0].TargetPort.IntVal = 8080 })

	p := n.start(c)
	n.status(p)
	s.Eventually("a download through the node port", func(context.Context) error {
		return n.download(uint16(svc.Spec.Ports[0].NodePort))
	})
	if err := p.Stop(within); err != nil {
		t.Fatal(err)
	}
	if p.ExitCode() != 0 {
		t.Errorf("exit status %d", p.ExitCode())
	}
	if files, err := os.ReadDir(filepath.Join(n.Dir(), "state")); err != nil || len(files) == 0 {
		t.Errorf("no state is kept: %v, %v", files, err)
	}
}

// A pod whose account lacks a verb says which, and to whom to give it; without
// Events it runs all the same.
func TestKubePodSaysWhatItMayNot(t *testing.T) {
	n := newNode(t)
	s := newSite(t)
	config, err := os.ReadFile("kustomize/base/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.configure(map[string]string{"weir.yaml": string(config)})
	c := n.container(podSpec(t))
	n.inCluster(c, s)
	const user = "system:serviceaccount:" + namespace + ":weir"
	for name, all := range verbs(&s.rights.role) {
		for _, verb := range all {
			t.Run(verb+" "+name, func(t *testing.T) {
				s.allow(takeAway(&s.rights.role, name, verb))
				denial := s.until(1)[0]
				if denial.Optional != (name == "events") {
					t.Errorf("optional: %v", denial.Optional)
				}
				group, resource, ok := strings.Cut(name, "/")
				if ok {
					resource += "." + group
				} else {
					resource = group
				}
				want := fmt.Sprintf("%s may not %s %s", user, verb, resource)
				if denial.Optional {
					if !strings.Contains(denial.Error(), want) {
						t.Errorf("it says %q", denial)
					}
					return
				}
				if said := n.refusal(c); !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			})
		}
	}
	// Nothing at all is granted.
	t.Run("anything", func(t *testing.T) {
		if err := s.Client.RbacV1().ClusterRoleBindings().Delete(t.Context(), s.rights.binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		all := 0
		for _, v := range verbs(&s.rights.role) {
			all += len(v)
		}
		s.until(all)
		if said := n.refusal(c); strings.Count(said, user+" may not") != all {
			t.Errorf("it does not name all %d:\n%s", all, said)
		}
	})
}
