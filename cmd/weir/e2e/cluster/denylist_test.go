package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Clients on the list of a ConfigMap are denied, also by a Weir that starts while the API server is away.
func TestKubeWireDenyListOfAConfigMap(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	config, err := os.ReadFile(f.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config = fmt.Appendf(config, "denyLists: [{name: drop, configMap: %s/drop}]\n", f.Site.Namespace)
	if err := os.WriteFile(f.path("config.yaml"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	f.runPod("one", "node-a", "web", 101)
	target := f.web("web")
	f.start()
	f.reaches("no ConfigMap", target, "one")
	f.Eventually("the ConfigMap is missed", f.hasProblem("there is none: the list is empty"))

	maps := f.Site.Client.CoreV1().ConfigMaps(f.Site.Namespace)
	drop := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "drop"}, Data: map[string]string{"list": netlab.Host4(netlab.ClientNet, 0).String() + "/24\n"}}
	if _, err := maps.Create(t.Context(), drop, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.reaches("a denied client", target)
	f.Eventually("the list is kept", func(context.Context) error {
		files, err := os.ReadDir(f.path("state"))
		for _, file := range files {
			if strings.HasPrefix(file.Name(), "denylist-") {
				return nil
			}
		}
		return fmt.Errorf("files %v, %w", files, err)
	})
	f.Eventually("the Services are kept", func(context.Context) error {
		_, err := os.Stat(f.path("state/cluster.state"))
		return err
	})
	f.cluster.Stop()
	if err := f.weir.Stop(patience.For(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.reaches("a denied client after a start without an API server", target)
	if err := f.cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	f.Site.Client = f.cluster.Client(t)
	if err := f.Site.Client.CoreV1().ConfigMaps(f.Site.Namespace).Delete(t.Context(), "drop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Eventually("a ConfigMap that is gone", f.hasProblem("there is none: the last list goes on"))
	f.reaches("a client of the last list", target)
	drop.Data = nil
	if _, err := f.Site.Client.CoreV1().ConfigMaps(f.Site.Namespace).Create(t.Context(), drop, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.reaches("an empty list", target, "one")
}

// hasProblem is a condition: a problem with this in the reason.
func (f *fixture) hasProblem(text string) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if strings.Contains(p.Reason, text) {
				return nil
			}
		}
		return fmt.Errorf("problems %v", s.Problems)
	}
}
