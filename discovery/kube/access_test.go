package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// rules are all that Weir needs, but for one verb of one resource.
func rules(withoutVerb, withoutResource string) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for name, verbs := range kube.Allowances(kube.Config{Events: true}) {
		group, resource := "", name
		if i := strings.IndexByte(name, '/'); i >= 0 {
			group, resource = name[:i], name[i+1:]
		}
		if resource == withoutResource {
			verbs = slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return v == withoutVerb })
		}
		if len(verbs) > 0 {
			out = append(out, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
		}
	}
	return out
}

// Each verb is needed, and one that is missing is named.
func TestKubeAccessNamesEachMissingVerb(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{Authz: "RBAC"})
	s := kubetest.NewSite(t, c.Client(t))
	file, set := s.Account(c, "weir", nil)
	rc, err := kube.ClientConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg := kube.Config{REST: rc, Events: true}
	user := "system:serviceaccount:" + s.Namespace + ":weir"
	expect := func(what string, want ...string) {
		t.Helper()
		s.Eventually(what, func(ctx context.Context) error { // the authorizer has a cache
			denials, err := kube.Access(ctx, cfg)
			if err != nil {
				return err
			}
			var got []string
			for _, d := range denials {
				got = append(got, d.Error())
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("got\n%s", strings.Join(got, "\n"))
			}
			return nil
		})
	}
	line := func(verb, resource string) string {
		without := ""
		switch verb + " " + resource {
		case "create events":
			without = " (without it Services get no Events)"
		case "get events":
			without = " (without it each node writes an Event that is there already)"
		}
		return fmt.Sprintf("kubernetes: %s may not %s %s: grant the verb in a ClusterRole%s", user, verb, resource, without)
	}
	expect("without any", line("list", "services"), line("watch", "services"),
		line("list", "endpointslices.discovery.k8s.io"), line("watch", "endpointslices.discovery.k8s.io"),
		line("list", "nodes"), line("watch", "nodes"), line("create", "events"), line("get", "events"))
	for _, tt := range []struct{ verb, resource, as string }{
		{"list", "services", "services"}, {"watch", "nodes", "nodes"},
		{"watch", "endpointslices", "endpointslices.discovery.k8s.io"}, {"create", "events", "events"},
	} {
		set(rules(tt.verb, tt.resource))
		expect("without "+tt.verb+" "+tt.resource, line(tt.verb, tt.as))
	}
	set(rules("", ""))
	expect("with all")

	// And with these rights, no more, it works: the list is complete.
	s.Service("web", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	s.Slice(slice("web", "a", addr(1)))
	f := follow(t, kube.Config{REST: rc, Events: true})
	f.expect(s, "least privilege", "web", "all [10.244.0.1]")
	if errs := f.Errors(); len(errs) > 0 {
		t.Errorf("errors: %q", errs)
	}
}

func TestKubeAccessRefusesUnknownCredentials(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	rc := c.REST(t)
	rc.BearerToken = "nobody"
	_, err := kube.Access(t.Context(), kube.Config{REST: rc})
	if !errors.Is(err, kube.ErrCredentials) || !strings.Contains(err.Error(), c.Server) {
		t.Errorf("got %v", err)
	}
}

func TestAccessOfAServerThatIsAwayIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = kube.Access(t.Context(), kube.Config{REST: &rest.Config{Host: "http://" + l.Addr().String()}})
	if err == nil || !strings.Contains(err.Error(), "ask http://"+l.Addr().String()) {
		t.Errorf("got %v", err)
	}
	var denial *kube.Denial
	if errors.As(err, &denial) {
		t.Errorf("%v is a denial", err)
	}
}

// A Service that cannot be served gets one Event per complaint.
func TestKubeEventsTellWhatIsWrong(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	f := follow(t, kube.Config{REST: c.REST(t), Events: true})
	s.Service("bad", func(svc *corev1.Service) {
		svc.Annotations = map[string]string{"weir.dev/topology-keys": "*,kubernetes.io/hostname"}
	})
	s.Service("affine", func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	s.Service("good", nil)
	complain := func(name, reason, text string) {
		f.Complain(discovery.ServiceName{Namespace: s.Namespace, Name: name}, reason, text)
	}
	wrong := strings.Join(errorsOf(f, s, "bad"), "; ")
	complain("affine", "FrontendConflict", "held by Service other")
	complain("bad", "InvalidObject", wrong)
	complain("good", "", "")
	want := []string{"affine FrontendConflict held by Service other", "bad InvalidObject " + wrong}
	var got []string
	events := func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		got = nil
		for _, e := range list.Items {
			if e.Source.Component == "weir" {
				got = append(got, fmt.Sprintf("%s %s %s", e.InvolvedObject.Name, e.Reason, e.Message))
				if e.Type != corev1.EventTypeWarning || e.Source.Host != "edge-1" || e.InvolvedObject.UID == "" {
					t.Errorf("event %+v", e)
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got  %q\nwant %q", got, want)
		}
		return nil
	}
	s.Eventually("events", events)
	// The same is not told again: the Event of what comes after it is there first.
	complain("bad", "InvalidObject", wrong)
	complain("good", "NoNodePort", "no number")
	want = append(want, "good NoNodePort no number")
	s.Eventually("events", events)
	list, err := s.Client.CoreV1().Events(s.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=bad"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Count > 1 {
		t.Errorf("%d events, count %v, %v", len(list.Items), list.Items, err)
	}
}

// errorsOf waits for a Service with errors.
func errorsOf(f *follower, s *kubetest.Site, name string) (errs []string) {
	s.Eventually("errors", func(context.Context) error {
		svc := f.service(s.Namespace, name)
		if svc == nil || len(svc.Errors) == 0 {
			return errors.New("no errors")
		}
		errs = svc.Errors
		return nil
	})
	return errs
}

// What cloud controllers and the autoscaler say of a node (KEP-3836).
func TestKubeNodeEligible(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	s.Service("web", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	f := follow(t, kube.Config{REST: c.REST(t)})
	f.expect(s, "sync", "web", "none []")
	expect := func(what, want string) {
		t.Helper()
		s.Eventually(what, func(context.Context) error {
			if ok, reason := f.NodeEligible(); reason != want || ok != (want == "") {
				return fmt.Errorf("%v %q", ok, reason)
			}
			return nil
		})
	}
	expect("a node that the cluster does not know", "")
	s.Node("edge-1", "zone-a", addr(9))
	edit := func(f func(n *corev1.Node)) {
		t.Helper()
		s.Eventually("edit the Node", func(ctx context.Context) error {
			n, err := s.Client.CoreV1().Nodes().Get(ctx, "edge-1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			f(n)
			_, err = s.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
			return err
		})
	}
	edit(func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	})
	expect("taint", "node edge-1 has the taint ToBeDeletedByClusterAutoscaler")
	for _, cordoned := range []bool{true, false} {
		edit(func(n *corev1.Node) { n.Spec.Unschedulable = cordoned })
		s.Eventually("cordon", func(context.Context) error {
			if f.NodeCordoned() != cordoned {
				return fmt.Errorf("cordoned %v", !cordoned)
			}
			return nil
		})
	}
	edit(func(n *corev1.Node) {
		n.Spec.Taints = nil
		n.Labels[corev1.LabelNodeExcludeBalancers] = "true"
	})
	expect("a label for controllers of load balancers, as on control-plane nodes of kubeadm", "")
	edit(func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	})
	expect("taint and label", "node edge-1 has the taint ToBeDeletedByClusterAutoscaler")
	edit(func(n *corev1.Node) {
		n.Spec.Taints = nil
		delete(n.Labels, corev1.LabelNodeExcludeBalancers)
		n.Finalizers = []string{"weir.dev/test"}
	})
	expect("none", "")
	if err := s.Client.CoreV1().Nodes().Delete(t.Context(), "edge-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("deletion", "node edge-1 is being deleted")
	edit(func(n *corev1.Node) { n.Finalizers = nil })
	expect("gone", "node edge-1 is deleted")
}
