package denylists

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// mapSite is a cluster with an account that may read the ConfigMap drop alone.
type mapSite struct {
	*kubetest.Site
	t       *testing.T
	cluster *kubetest.Cluster
	cfg     *config.Configuration
}

func newMapSite(t *testing.T) *mapSite {
	t.Helper()
	c := kubetest.Require(t, kubetest.Options{Authz: "RBAC", NoControllers: true})
	s := &mapSite{Site: kubetest.NewSite(t, c.Client(t)), t: t, cluster: c}
	verbs := kube.Allowances(kube.Config{ConfigMaps: []types.NamespacedName{{Namespace: s.Namespace, Name: "drop"}}})["configmaps"]
	file, _ := s.Account(c, "weir", []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"drop"}, Verbs: verbs,
	}})
	s.cfg = &config.Configuration{
		Discovery: config.Discovery{Kubernetes: &config.Kubernetes{Kubeconfig: file}}, StateDir: t.TempDir(),
		DenyLists: []config.DenyList{{Name: "drop", ConfigMap: s.Namespace + "/drop"}, {Name: "other", ConfigMap: s.Namespace + "/other"}},
	}
	return s
}

// put makes or changes the ConfigMap drop.
func (s *mapSite) put(data map[string]string) {
	s.t.Helper()
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "drop"}, Data: data}
	_, err := maps.Update(s.t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		_, err = maps.Create(s.t.Context(), o, metav1.CreateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// follower is a process that follows the lists.
type follower struct {
	*mapSite
	stop     func()
	mu       sync.Mutex
	drop     []netip.Prefix
	problems []problem.Problem
}

func (s *mapSite) follow() *follower {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	l, lists, err := Read(ctx, s.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	f := &follower{mapSite: s, drop: lists[0].Prefixes}
	deny := func(i int, list []netip.Prefix) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if i != 0 {
			s.t.Errorf("list %d has changed", i)
		}
		f.drop = list
		return nil
	}
	complain := func(list []problem.Problem) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.problems = list
	}
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx, deny, complain) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(f.stop)
	return f
}

// expect waits for a list and a problem with it; "" is none.
func (f *follower) expect(what, list, problem string) {
	f.t.Helper()
	f.Eventually(what, func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var about, all string
		for _, p := range f.problems {
			if line := p.Line(); strings.HasPrefix(line, "denyLists[0]") {
				about = line
			}
			all += p.String() + "\n"
		}
		if got := fmt.Sprint(f.drop); got != list || (problem == "") != (about == "") || !strings.Contains(about, problem) {
			return fmt.Errorf("the list is %s, want %s; want problem %q of:\n%s", got, list, problem, all)
		}
		if !strings.Contains(all, "denyLists[1].configMap: deny list other: ") || !strings.Contains(all, "the list is empty") {
			return fmt.Errorf("no problem with the list that is forbidden:\n%s", all)
		}
		return nil
	})
}

// A ConfigMap is a list from its creation on, and stays the last good list while it has an error, is gone, or
// the API server is away, also at a start. The rights that are needed name it.
func TestKubeDenyListOfAConfigMap(t *testing.T) {
	s := newMapSite(t)
	f := s.follow()
	f.expect("no ConfigMap", "[]", "there is none: the list is empty")
	s.put(map[string]string{"b": "2001:db8::/32", "a": "192.0.2.0/24 ; SBL1\n198.51.100.7\n"})
	f.expect("a ConfigMap", "[192.0.2.0/24 198.51.100.7/32 2001:db8::/32]", "")
	s.put(map[string]string{"a": "203.0.113.0/24\nexample.org\n"})
	f.expect("an error", "[192.0.2.0/24 198.51.100.7/32 2001:db8::/32]", `data[a]: line 2: "example.org" is no prefix, such as 192.0.2.0/24, and no address: the last list goes on`)
	if _, errs, err := Check(t.Context(), s.cfg); err != nil || errs[0] == nil || errors.Is(errs[0], ErrUnread) || !errors.Is(errs[1], ErrUnread) {
		t.Errorf("a check finds %v, %v", errs, err)
	}
	s.put(map[string]string{"a": "203.0.113.0/24"})
	f.expect("another list", "[203.0.113.0/24]", "")
	f.Eventually("the list is kept", func(context.Context) error {
		files, err := os.ReadDir(s.cfg.StateDir)
		if err == nil && len(files) != 1 {
			err = fmt.Errorf("%d files", len(files))
		}
		return err
	})

	s.cluster.Stop()
	f.Eventually("the outage is told", func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.problems {
			if p.Kind == problem.APIServer && strings.HasSuffix(p.Field, "/drop") {
				return nil
			}
		}
		return fmt.Errorf("problems %v", f.problems)
	})
	f.expect("without an API server", "[203.0.113.0/24]", "")
	f.stop()
	f = s.follow()
	if fmt.Sprint(f.drop) != "[203.0.113.0/24]" {
		t.Errorf("a start without an API server has %v", f.drop)
	}
	if err := s.cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	s.Client = s.cluster.Client(t)
	s.put(nil)
	f.expect("an empty ConfigMap", "[]", "")
	s.put(map[string]string{"a": "2001:db8::7"})
	f.expect("an address", "[2001:db8::7/128]", "")
	if err := s.Client.CoreV1().ConfigMaps(s.Namespace).Delete(t.Context(), "drop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect("a ConfigMap that is gone", "[2001:db8::7/128]", "there is none: the last list goes on")
}

// A list of another cluster is not used.
func TestKeptListOfAnotherCluster(t *testing.T) {
	c := &configMap{maps: &maps{dir: t.TempDir(), cluster: "a"}, text: []byte("192.0.2.1\n"), fresh: true}
	if err := c.taken(); err != nil {
		t.Fatal(err)
	}
	if list, err := c.kept(); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	c.maps.cluster = "b"
	if list, err := c.kept(); err == nil || !strings.Contains(err.Error(), "of another cluster") {
		t.Errorf("%v, %v", list, err)
	}
}
