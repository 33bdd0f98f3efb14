package kube_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// Nodes that see the same change record an Event together, also where their texts differ. The
// API server has a Warning and a Normal Event, and the complaint beside them.
func TestKubeNodesTellAChangeOnce(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	s.Service("web", nil)
	name := discovery.ServiceName{Namespace: s.Namespace, Name: "web"}
	none := kube.Change{Reason: "TierChanged", Warning: true, Identity: "all|none|zone a"}
	again := kube.Change{Reason: "TierChanged", Identity: "none|all|zone a", Text: "tier all, was none"}
	for i := range 2 {
		f := follow(t, kube.Config{REST: c.REST(t), Events: true, Store: discovery.Options{NodeName: fmt.Sprintf("edge-%d", i)}})
		none.Text = fmt.Sprintf("tier none, was all, as edge-%d saw it", i)
		f.Tell(name, none)
		f.Tell(name, again)
		f.Complain(name, "FrontendConflict", "held by another")
	}
	var told []string
	s.Eventually("events", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found := map[string]int{}
		told = nil
		for _, e := range list.Items {
			if e.Source.Component == "weir" {
				found[e.Type+" "+e.Reason]++
				told = append(told, e.Type+" "+e.Message)
			}
		}
		// Two where ten minutes end between the two nodes.
		for _, kind := range []string{corev1.EventTypeWarning + " TierChanged", corev1.EventTypeNormal + " TierChanged", "Warning FrontendConflict"} {
			if found[kind] != 1 && (found[kind] != 2 || time.Now().Unix()%600 > 60) {
				return fmt.Errorf("%q", told)
			}
		}
		return nil
	})
}

// A change is told of a Service with a frontend here alone, and not at all where Events are off.
func TestChangesThatConcernThisNode(t *testing.T) {
	server := newStandIn(t, withoutWatchList(nil))
	inside := named("inside")
	inside.Spec.Type, inside.Spec.Ports = corev1.ServiceTypeClusterIP, []corev1.ServicePort{{Port: 80}}
	server.services = []corev1.Service{named("web"), inside}
	for _, on := range []bool{false, true} {
		f := follow(t, kube.Config{
			REST: &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Events: on,
			Concerns: func(svc *discovery.Service) bool { return svc.Ports[0].NodePort != 0 },
		})
		f.first(t)
		for _, name := range []string{"inside", "web"} {
			f.Tell(discovery.ServiceName{Namespace: "default", Name: name}, kube.Change{Reason: "TierChanged", Identity: fmt.Sprint(on), Text: "tier none"})
		}
		if !on {
			f.stop()
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		server.mu.Lock()
		names := slices.Collect(maps.Keys(server.events))
		server.mu.Unlock()
		if len(names) == 1 {
			if names[0][:4] != "web." {
				t.Errorf("Event %s", names[0])
			}
			return
		}
		if len(names) > 1 || time.Now().After(deadline) {
			t.Fatalf("Events %q", names)
		}
	}
}
