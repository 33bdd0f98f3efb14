package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

func TestKubeTakesTheServicesGivenToIt(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	given := func(to string) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": to, "team": "x"}
			if to == "" {
				svc.Labels = map[string]string{"team": "y", corev1.IsHeadlessService: ""} // the label alone means nothing
			}
		}
	}
	s.Node("edge-1", "zone-a", netip.Addr{})
	for name, proxy := range map[string]string{"plain": "", "ours": "weir", "other": "cilium"} {
		s.RunPod(kubetest.PodSpec{Name: name, Node: "edge-1", Labels: labels(name), Addresses: []netip.Addr{addr(1)}})
		s.Service(name, given(proxy))
	}
	s.Service("headless", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ClusterIP = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone
		svc.Labels = map[string]string{corev1.IsHeadlessService: ""}
	})
	for _, tt := range []struct {
		name string
		cfg  kube.Config
		want []string
	}{
		{"as kube-proxy", kube.Config{}, []string{"plain"}},
		{"by proxy name", kube.Config{Store: discovery.Options{ServiceProxyName: "weir"}}, []string{"ours"}},
		{"by selector", kube.Config{LabelSelector: "team=y"}, []string{"plain"}},
		{"by a selector of nothing", kube.Config{LabelSelector: "team=z"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.REST = c.REST(t)
			f := follow(t, tt.cfg)
			s.Eventually("sync", func(context.Context) error {
				if !f.Synced() {
					return fmt.Errorf("not synced: %v", f.Errors())
				}
				return nil
			})
			f.mu.Lock()
			var got []string
			for n := range maps.Keys(f.view) {
				if n.Namespace == s.Namespace {
					got = append(got, n.Name)
				}
			}
			f.mu.Unlock()
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			for _, name := range tt.want {
				f.expect(s, "with endpoints", name, "all [10.244.0.1]")
			}
		})
	}
}

// Endpoints that people write are served where nobody mirrors them.
func TestKubeServesLegacyEndpointsWhereAskedTo(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{NoControllers: true})
	s := kubetest.NewSite(t, c.Client(t))
	s.Service("web", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	write := func(a netip.Addr) *corev1.Endpoints {
		return &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Subsets: []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{{IP: a.String()}},
				Ports:     []corev1.EndpointPort{{Name: "http", Port: 8080}},
			}},
		}
	}
	endpoints := s.Client.CoreV1().Endpoints(s.Namespace)
	if _, err := endpoints.Create(t.Context(), write(addr(1)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	plain := follow(t, kube.Config{REST: c.REST(t)})
	f := follow(t, kube.Config{REST: c.REST(t), LegacyEndpoints: true})
	f.expect(s, "written", "web", "all [10.244.0.1]")
	if _, err := endpoints.Update(t.Context(), write(addr(2)), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(s, "changed", "web", "all [10.244.0.2]")
	if err := endpoints.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(s, "deleted", "web", "none []")
	plain.expect(s, "not asked to", "web", "none []")
	if n := len(f.Objects().Endpoints); n != 0 {
		t.Errorf("%d Endpoints are kept", n)
	}
}

func TestSelectorThatIsNoneIsRefused(t *testing.T) {
	if _, err := kube.New(kube.Config{REST: &rest.Config{}, LabelSelector: "a in"}); err == nil || !strings.Contains(err.Error(), `label selector "a in"`) {
		t.Errorf("got %v", err)
	}
}
