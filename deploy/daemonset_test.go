package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// ownSet is the DaemonSet of the base.
var ownSet = types.NamespacedName{Namespace: namespace, Name: "weir"}

// verbs are those of ClusterRole and Role.
func (r *rights) verbs() map[string][]string {
	out := verbs(&r.role)
	maps.Copy(out, verbsOf(r.own.Rules))
	return out
}

// daemonSet makes the DaemonSet of the base. Nothing in this cluster makes Pods of it.
func (s *site) daemonSet() {
	s.t.Helper()
	data, err := os.ReadFile("kustomize/base/daemonset.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	var ds appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(data, &ds); err != nil {
		s.t.Fatal(err)
	}
	labels := map[string]string{"app.kubernetes.io/name": "weir"} // which kustomize adds
	ds.Spec.Selector.MatchLabels, ds.Spec.Template.Labels = labels, labels
	if _, err := s.Client.AppsV1().DaemonSets(namespace).Create(s.t.Context(), &ds, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// uninstall deletes what `helm uninstall` does, in its order (helm.sh/helm, UninstallOrder).
func (s *site) uninstall() {
	s.t.Helper()
	ctx, o := s.t.Context(), metav1.DeleteOptions{}
	rbac := s.Client.RbacV1()
	if err := errors.Join(
		s.Client.AppsV1().DaemonSets(namespace).Delete(ctx, ownSet.Name, o),
		rbac.RoleBindings(namespace).Delete(ctx, s.rights.bound.Name, o),
		rbac.Roles(namespace).Delete(ctx, s.rights.own.Name, o),
		rbac.ClusterRoleBindings().Delete(ctx, s.rights.binding.Name, o),
		rbac.ClusterRoles().Delete(ctx, s.rights.role.Name, o),
		s.Client.CoreV1().ServiceAccounts(namespace).Delete(ctx, s.rights.account.Name, o),
	); err != nil {
		s.t.Fatal(err)
	}
}

// follow runs a source of the account, whose requests r notes.
func (s *site) follow(r *record) *kube.Source {
	s.t.Helper()
	c := s.rest()
	c.Wrap(r.wrap)
	src, err := kube.New(kube.Config{REST: c, Store: discovery.Options{NodeName: "edge-1"}, DaemonSet: ownSet, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, func(*discovery.Update) {}) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	return src
}

// watched waits until the DaemonSet is watched.
func (s *site) watched(r *record) {
	s.t.Helper()
	s.Eventually("the DaemonSet is watched", func(context.Context) error {
		if m := r.missing(map[string][]string{"apps/daemonsets": {"get", "watch"}}); len(m) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// ended is the answer of a source within the daemon's limit.
func ended(t *testing.T, src *kube.Source) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return src.NextPod(ctx)
}

// The rights are for the pod's own DaemonSet and namespace, and for no other object.
func TestKubeRoleIsForASingleDaemonSet(t *testing.T) {
	s := newSite(t)
	s.daemonSet()
	client, err := kubernetes.NewForConfig(s.rest())
	if err != nil {
		t.Fatal(err)
	}
	ctx, o := t.Context(), metav1.GetOptions{}
	sets := client.AppsV1().DaemonSets(namespace)
	if _, err := sets.Get(ctx, ownSet.Name, o); err != nil {
		t.Error(err)
	}
	denied := map[string]error{}
	_, denied["another DaemonSet"] = sets.Get(ctx, "other", o)
	_, denied["a DaemonSet elsewhere"] = client.AppsV1().DaemonSets("kube-system").Get(ctx, ownSet.Name, o)
	_, denied["a list"] = sets.List(ctx, metav1.ListOptions{})
	_, denied["a watch of all"] = sets.Watch(ctx, metav1.ListOptions{})
	_, denied["another namespace"] = client.CoreV1().Namespaces().Get(ctx, "kube-system", o)
	_, denied["pods"] = client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	_, denied["secrets"] = client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	denied["a deletion"] = sets.Delete(ctx, ownSet.Name, metav1.DeleteOptions{})
	for name, err := range denied {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each verb of the Role is asked for at the start, and named where it is missing.
func TestKubeEachVerbOfTheRoleIsAskedFor(t *testing.T) {
	s := newSite(t)
	for i, rule := range s.rights.own.Rules {
		for _, verb := range rule.Verbs {
			less := s.rights.own.DeepCopy()
			if less.Rules[i].Verbs = without(rule.Verbs, verb); len(less.Rules[i].Verbs) == 0 {
				less.Rules = slices.Delete(less.Rules, i, i+1)
			}
			s.allowOwn(less)
			d := s.until(1)[0]
			if !d.Optional || d.Verb != verb || !strings.Contains(d.Error(), "in a Role of namespace "+namespace) {
				t.Errorf("without %s %v: %v", verb, rule.Resources, d)
			}
		}
	}
}

// allowOwn replaces the Role.
func (s *site) allowOwn(role *rbacv1.Role) {
	s.t.Helper()
	if _, err := s.Client.RbacV1().Roles(namespace).Update(s.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// Helm deletes the rights right after the DaemonSet, and garbage collection the pods later.
func TestKubeUninstallIsNoRollout(t *testing.T) {
	for name, remove := range map[string]func(*site) error{
		"helm uninstall": func(s *site) error { s.uninstall(); return nil },
		"kubectl delete namespace": func(s *site) error {
			return s.Client.CoreV1().Namespaces().Delete(s.t.Context(), namespace, metav1.DeleteOptions{})
		},
		"orphans": func(s *site) error {
			orphan := metav1.DeletePropagationOrphan
			return s.Client.AppsV1().DaemonSets(namespace).Delete(s.t.Context(), ownSet.Name, metav1.DeleteOptions{PropagationPolicy: &orphan})
		},
		"foreground": func(s *site) error {
			foreground := metav1.DeletePropagationForeground
			return s.Client.AppsV1().DaemonSets(namespace).Delete(s.t.Context(), ownSet.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newSite(t), &record{seen: map[string][]string{}}
			s.daemonSet()
			src := s.follow(r)
			s.watched(r)
			if ends, err := ended(t, src); err != nil || ends != "" {
				t.Fatalf("before: %q, %v", ends, err)
			}
			if err := remove(s); err != nil {
				t.Fatal(err)
			}
			ends, err := ended(t, src)
			if err != nil || !strings.Contains(ends, "delete") {
				t.Errorf("after: %q, %v", ends, err)
			}
			t.Log(ends)
		})
	}
}

// The account loses the rights, and the DaemonSet stays: that is no uninstall.
func TestKubeLostRightsAreNoUninstall(t *testing.T) {
	s, r := newSite(t), &record{seen: map[string][]string{}}
	s.daemonSet()
	src := s.follow(r)
	s.watched(r)
	if err := s.Client.RbacV1().RoleBindings(namespace).Delete(t.Context(), s.rights.bound.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if ends, err := src.NextPod(ctx); !apierrors.IsForbidden(err) || ends != "" {
		t.Errorf("got %q, %v", ends, err)
	}
}

// The pod, with the base's own configuration, rights and environment: a connection
// outlives SIGTERM of a rollout, and nothing is left on the node after the DaemonSet is deleted.
func TestKubePodKnowsARolloutFromAnUninstall(t *testing.T) {
	n := newNode(t)
	s := newSite(t)
	config, err := os.ReadFile("kustomize/base/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.configure(map[string]string{"weir.yaml": string(config)})
	c := n.container(podSpec(t))
	n.inCluster(c, s)
	s.daemonSet()
	before, err := netlab.StateOf(n.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	echo, err := n.ZoneA.Listen("tcp", netip.AddrPortFrom(netlab.Host4(netlab.FabricNet, 11), 8080).String())
	if err != nil {
		t.Fatal(err)
	}
	n.OnClose(echo.Close)
	go echoes(echo)
	node := s.Node("edge-1", "a", netlab.Host4(netlab.ClientNet, 1))
	node.Labels["node-role.kubernetes.io/edge"], node.Labels[corev1.LabelOSStable] = "", "linux"
	if _, err := s.Client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Node("zonea", "a", netlab.Host4(netlab.FabricNet, 11))
	s.RunPod(kubetest.PodSpec{Name: "web-1", Node: "zonea", Labels: map[string]string{"app": "web"}, Addresses: []netip.Addr{netlab.Host4(netlab.FabricNet, 11)}})
	svc := s.Service("web", func(svc *corev1.Service) { svc.Spec.Ports[0].TargetPort.IntVal = 8080 })
	target := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), uint16(svc.Spec.Ports[0].NodePort)).String()

	p := n.start(c)
	n.status(p)
	var conn net.Conn
	s.Eventually("a connection through the node port", func(ctx context.Context) (err error) {
		if conn, err = n.Client.DialContext(ctx, "tcp", target); err != nil {
			return err
		}
		return workload.PingPong(conn, "hello", within)
	})
	defer conn.Close()
	n.term(p, "SIGTERM is a restart")
	p = n.start(c)
	n.status(p)
	if err := workload.PingPong(conn, "still here", within); err != nil {
		t.Errorf("after the rollout: %v", err)
	}
	conn.Close() // else the drain takes 45 s
	if err := s.Client.AppsV1().DaemonSets(namespace).Delete(t.Context(), ownSet.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.term(p, "SIGTERM is a stop")
	after, err := netlab.StateOf(n.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// term sends SIGTERM, waits for the end, and checks that the log has a text.
func (n *node) term(p *netlab.Process, text string) {
	n.t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(2 * within):
		n.t.Fatal("it does not end")
	}
	said, err := os.ReadFile(n.log)
	if err != nil {
		n.t.Fatal(err)
	}
	if p.ExitCode() != 0 || !strings.Contains(string(said), text) {
		n.t.Fatal(fmt.Errorf("exit status %d, and a log without %q:\n%s", p.ExitCode(), text, said))
	}
}

// echoes answers every connection with the bytes of it.
func echoes(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
