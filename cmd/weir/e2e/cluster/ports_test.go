package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// A tenant has Services of thousands of ports, and changes them all the time. An endpoint change of
// another tenant takes effect as before, the address stays announced, a Service beyond the
// limits is left to the kernel with a problem, and a restart serves.
func TestKubeWireServiceOfThousandsOfPorts(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.extra(`announce: {speaker: kernel, prefixes: [203.0.113.0/24], settleSeconds: 0, drainSeconds: 0}
`)
	f.runPod("one", "node-a", "web", 101)
	f.runPod("two", "node-a", "web", 102)
	target := f.web("web")
	address := netip.MustParseAddr("203.0.113.80")
	f.EditService("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	f.ingress(f.Site, "web", address)
	f.start()
	f.reaches("both Pods", target, "one", "two")
	f.announced(address)
	t.Logf("an endpoint change takes %v", f.changeTime(target))
	restart := f.restart(address)
	t.Logf("a restart takes %v", restart)

	tenant := kubetest.NewSite(t, f.Site.Client)
	touch := f.thousandsOfPorts(tenant)
	ctx, cancel := context.WithCancel(t.Context())
	var touched atomic.Int32
	var touching sync.WaitGroup
	touching.Go(func() {
		for ctx.Err() == nil {
			touch(ctx, int(touched.Add(1)))
			time.Sleep(100 * time.Millisecond) // the API server shares the CPUs
		}
	})
	defer touching.Wait()
	defer cancel()
	f.Eventually("the Service of 8,000 ports is served", func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && s.Frontends < 8000 {
			err = fmt.Errorf("%d frontends", s.Frontends)
		}
		return err
	})
	f.Eventually("a Service beyond the limits has a problem", func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && s.ProblemCounts[problem.OverLimit] != 1 {
			err = fmt.Errorf("problems: %v", s.ProblemCounts)
		}
		return err
	})
	f.Eventually("endpoints that nothing here needs are shown", func(ctx context.Context) error {
		list, err := f.admin.Endpoints(ctx, tenant.Namespace+"/half")
		if err == nil && len(list.Endpoints) != 8000 {
			err = fmt.Errorf("%d endpoints", len(list.Endpoints))
		}
		return err
	})
	for range 3 {
		before := touched.Load()
		t.Logf("beside these, an endpoint change takes %v", f.changeTime(target))
		f.announced(address)
		f.Eventually("the tenant goes on", func(context.Context) error {
			if touched.Load() == before {
				return errors.New("no change since")
			}
			return nil
		})
	}
	f.announced(address)
	cancel()
	touching.Wait()
	t.Logf("the tenant has made %d rounds of changes", touched.Load())
	t.Logf("a restart takes %v more", f.restart(address)-restart)
	f.reaches("both Pods, after a restart", target, "one", "two")
}

// ingress gives a Service an address.
func (f *fixture) ingress(s *kubetest.Site, name string, a ...netip.Addr) {
	f.t.Helper()
	f.Eventually("status of Service "+name, func(ctx context.Context) error {
		svc, err := s.Client.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		svc.Status.LoadBalancer.Ingress = nil
		for _, a := range a {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
		}
		_, err = s.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, svc, metav1.UpdateOptions{})
		return err
	})
}

// announced waits until an address is announced. Then it must have been all the time since the
// call before.
func (f *fixture) announced(a netip.Addr) {
	f.t.Helper()
	f.Eventually("announced", func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for _, x := range s.Announce.Addresses {
			if x.Address == a && x.Announced {
				if f.announcedSince.IsZero() {
					f.announcedSince = x.Since
				}
				if !x.Since.Equal(f.announcedSince) {
					f.t.Errorf("%s was withdrawn meanwhile: announced since %v, before since %v", a, x.Since, f.announcedSince)
				}
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// changeTime is the time from the end of a Pod's readiness until all new connections go to the
// other, and back.
func (f *fixture) changeTime(target netip.AddrPort) time.Duration {
	f.t.Helper()
	start := time.Now()
	f.SetReady("one", false)
	f.reaches("the other Pod", target, "two")
	took := time.Since(start)
	f.SetReady("one", true)
	f.reaches("both Pods again", target, "one", "two")
	return took
}

// restart stops Weir, and returns the time from the next start until the address is announced.
func (f *fixture) restart(a netip.Addr) time.Duration {
	f.t.Helper()
	if err := f.weir.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
	select {
	case <-f.weir.Done():
	case <-time.After(patience.For(20 * time.Second)):
		f.t.Fatal("weir does not end")
	}
	f.announcedSince = time.Time{}
	start := time.Now()
	f.start()
	f.announced(a)
	return time.Since(start)
}

// thousandsOfPorts makes Services of a tenant: a ClusterIP Service of 8,000 ports, a slice of
// 8,000 other names, another of 16,000 ports of which its Pod has half, another of 8,000 ports that is
// served, and a Service beyond the limits. touch changes a slice of each that has some.
func (f *fixture) thousandsOfPorts(s *kubetest.Site) (touch func(ctx context.Context, n int)) {
	var slices []*discoveryv1.EndpointSlice
	for _, c := range []struct {
		name      string
		ports     int
		named     string // of the slice, where the ports of the Service are p
		kind      corev1.ServiceType
		addresses []netip.Addr
	}{
		{"other-names", 8000, "other", corev1.ServiceTypeClusterIP, nil},
		{"half", 16000, "", corev1.ServiceTypeClusterIP, nil},
		{"served", 8000, "p", corev1.ServiceTypeLoadBalancer, []netip.Addr{netip.MustParseAddr("203.0.113.10")}},
		{"too-large", 16000, "p", corev1.ServiceTypeLoadBalancer, []netip.Addr{netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.12")}},
	} {
		s.Service(c.name, func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.Ports, svc.Spec.Selector = c.kind, nil, nil
			if c.kind == corev1.ServiceTypeLoadBalancer {
				no := false
				svc.Spec.AllocateLoadBalancerNodePorts = &no
			}
			for i := range c.ports {
				p := corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)}
				if c.named == "" {
					svc.Spec.Selector = map[string]string{"app": "half"}
					p.TargetPort = intstr.FromInt32(80)
					if i%2 == 0 {
						p.TargetPort = intstr.FromString("absent")
					}
				}
				svc.Spec.Ports = append(svc.Spec.Ports, p)
			}
		})
		if c.named == "" {
			s.RunPod(kubetest.PodSpec{Name: "half", Node: "node-a", Labels: map[string]string{"app": "half"}, Addresses: []netip.Addr{netlab.Host4(netlab.FabricNet, 200)}})
			continue
		}
		slices = append(slices, f.sliceOfPorts(s, c.name, c.named, min(c.ports, 8000)))
		if len(c.addresses) > 0 {
			f.ingress(s, c.name, c.addresses...)
		}
	}
	return func(ctx context.Context, n int) {
		for _, slice := range slices {
			ready := n%2 == 0
			slice.Endpoints[0].Conditions.Ready = &ready
			_, _ = s.Client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
		}
	}
}

// sliceOfPorts makes a slice of many ports and two endpoints.
func (f *fixture) sliceOfPorts(s *kubetest.Site, service, named string, n int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range n {
		name, port := fmt.Sprint(named, i), int32(i+1)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	for host := range 2 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netlab.Host4(netlab.FabricNet, byte(201+host)).String()}})
	}
	s.Slice(slice)
	return slice
}
