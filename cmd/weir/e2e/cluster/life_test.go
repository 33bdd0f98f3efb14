package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// From a Pod's readiness to a TCP connection that reaches it, and what topology
// and termination make of it.
func TestKubeWireConnectionsFollowTheCluster(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.runPod("here", "edge-1", "web", 101)
	f.runPod("same-zone", "node-a", "web", 102)
	f.runPod("far", "node-b", "web", 103)
	target := f.web("web")
	f.start()
	f.reaches("all Pods", target, "here", "same-zone", "far")

	prefer := func(d string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.TrafficDistribution = &d }
	}
	f.EditService("web", prefer(corev1.ServiceTrafficDistributionPreferSameZone))
	f.reaches("PreferSameZone", target, "here", "same-zone")
	f.EditService("web", prefer(corev1.ServiceTrafficDistributionPreferSameNode))
	f.reaches("PreferSameNode", target, "here")
	f.EditService("web", func(s *corev1.Service) { s.Spec.TrafficDistribution = nil })
	f.reaches("no preference", target, "here", "same-zone", "far")

	f.Terminate("here")
	f.reaches("terminating while others are ready", target, "same-zone", "far")
	f.SetReady("same-zone", false)
	f.Terminate("far")
	f.reaches("only terminating ones serve", target, "here", "far")
	f.SetReady("same-zone", true)
	f.reaches("a ready one again", target, "same-zone")
	f.Remove("here")
	f.Remove("far")
	f.Remove("same-zone")
	f.reaches("nobody", target)
	f.Eventually("Events of the tiers", f.tierEvents("web", map[string]string{
		"tier same-zone, was all;": corev1.EventTypeNormal, "tier terminating, was all;": corev1.EventTypeWarning, "tier none, was": corev1.EventTypeWarning,
	}))
}

// tierEvents waits for Kubernetes Events of other tiers, by text.
func (f *fixture) tierEvents(service string, want map[string]string) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := f.Site.Client.CoreV1().Events(f.Site.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + service})
		if err != nil {
			return err
		}
		var told []string
		found := map[string]string{}
		for _, e := range list.Items {
			told = append(told, e.Type+" "+e.Reason+": "+e.Message)
			for text := range want {
				if e.Reason == "TierChanged" && strings.Contains(e.Message, text) {
					found[text] = e.Type
				}
			}
		}
		if !maps.Equal(found, want) {
			return fmt.Errorf("%q", told)
		}
		return nil
	}
}

// The API server is killed under load: nothing is lost. What changes after its
// return arrives. A Weir that starts while it is away serves what was known
// last, and says so.
func TestKubeWireServesWhileTheServerIsAway(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.runPod("one", "node-a", "web", 101)
	target := f.web("web")
	f.start()
	f.reaches("before", target, "one")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := f.load(target)
	l.Pause = 5 * time.Millisecond
	done := make(chan error, 1)
	go func() {
		r, err := l.Run(ctx)
		t.Logf("%d connections under load", r.Requests())
		done <- errors.Join(err, r.Err())
	}()
	f.cluster.Stop()
	f.Eventually("the outage is told", f.statusHas("cannot be watched"))
	if err := f.cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	f.runPod("two", "node-a", "web", 102)
	f.reaches("after the return", target, "one", "two")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("connections were lost: %v", err)
	}

	f.Eventually("the state is kept", func(context.Context) error {
		info, err := os.Stat(f.path("state/cluster.state"))
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("its mode is %v", info.Mode())
		}
		return err
	})
	if err := f.weir.Stop(patience.For(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	f.cluster.Stop()
	f.start()
	f.reaches("last known", target, "one", "two")
	f.lastKnown(true)
	if err := f.cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	f.Remove("one")
	f.reaches("replaced by the first view", target, "two")
	f.lastKnown(false)
}

// Packets to the API server vanish: what was known last is served before any
// request has been given up, and replaced when the server is heard again.
func TestKubeWireServesWhileTheServerIsSilent(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.runPod("one", "node-a", "web", 101)
	target := f.web("web")
	f.start()
	f.reaches("before", target, "one")
	if err := f.weir.Stop(patience.For(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	f.silent.Store(true)
	f.start() // until it serves
	if n := f.held.Load(); n == 0 {
		t.Error("requests were given up before anything was served")
	}
	f.reaches("last known", target, "one")
	f.lastKnown(true)
	f.silent.Store(false)
	f.Eventually("the first view replaces it", func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && s.Discovery.LastKnown != nil {
			err = errors.New("the last known state is served")
		}
		return err
	})
	f.reaches("the server is heard again", target, "one")
}

// statusHas waits for an error in the status.
func (f *fixture) statusHas(text string) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		if !strings.Contains(strings.Join(s.Discovery.Errors, "\n"), text) {
			return errors.New("the status has no such error")
		}
		return nil
	}
}

// lastKnown checks that status and metrics say whether the last known state is
// served.
func (f *fixture) lastKnown(want bool) {
	f.t.Helper()
	s, err := f.admin.Status(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if got := s.Discovery.LastKnown != nil; got != want {
		f.t.Errorf("status: last known %v, want %v", got, want)
	}
	line := "weir_discovery_stale 0"
	if want {
		line = "weir_discovery_stale 1"
	}
	if m := f.metrics(); !strings.Contains(m, "\n"+line+"\n") {
		f.t.Errorf("metrics do not have %q", line)
	}
}
