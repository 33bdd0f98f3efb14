package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// Ten thousand writes as fast as the API server takes them: what is told in
// the end is what stands in the cluster, and far fewer Updates than writes tell
// it.
func TestKubeStormEndsInTheStateOfTheCluster(t *testing.T) {
	const (
		services, perSlice, writers = 40, 50, 8
		total                       = 10000
	)
	c := kubetest.Require(t, kubetest.Options{NoEndpoints: true, Fast: true})
	s := kubetest.NewSite(t, c.Client(t))
	addrs := func(service, round int) []netip.Addr {
		out := make([]netip.Addr, perSlice)
		for i := range out {
			out[i] = netip.AddrFrom4([4]byte{10, byte(service), byte(round), byte(1 + i)})
		}
		return out
	}
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		s.Service(name, func(svc *corev1.Service) { svc.Spec.Selector = nil })
		s.Slice(slice(name, "a", addrs(i, 0)...))
	}
	m := &measure{}
	f := follow(t, kube.Config{REST: c.REST(t), Measure: m})
	s.Eventually("sync", func(context.Context) error {
		if f.service(s.Namespace, "svc-0") == nil {
			return errors.New("not synced")
		}
		return nil
	})
	before, start := f.delivered(), time.Now()
	var wait sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		wait.Go(func() {
			for n := 0; n < total/writers && errs[w] == nil; n++ {
				i := (n*writers + w) % services // each Service has one writer
				_, errs[w] = s.Client.DiscoveryV1().EndpointSlices(s.Namespace).Update(t.Context(),
					slice(fmt.Sprintf("svc-%d", i), "a", addrs(i, 1+n*writers/services%255)...), metav1.UpdateOptions{})
			}
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	last := (total/writers - 1) * writers / services % 255
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		s.Eventually(name, func(context.Context) error {
			eps := f.service(s.Namespace, name).Ports[0].Endpoints
			if want := addrs(i, 1+last); len(eps) != perSlice || eps[0].AddrPort.Addr() != want[0] || eps[perSlice-1].AddrPort.Addr() != want[perSlice-1] {
				return fmt.Errorf("%d endpoints from %v, want them from %v", len(eps), eps[0].AddrPort, want[0])
			}
			return nil
		})
	}
	t.Logf("%d writes in %.1f s (%.0f per second), %d updates; event to delivery at most %v", total, took.Seconds(), total/took.Seconds(), f.delivered()-before, m.most())
}

// measure keeps the longest delivery.
type measure struct {
	mu  sync.Mutex
	max time.Duration
}

func (m *measure) Programmed(time.Duration) {}

func (m *measure) Delivered(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.max = max(m.max, d)
}

func (m *measure) most() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.max
}

// The slice controller says when a Pod became ready; the latency until it is
// told is measured, for changes since the start alone.
func TestKubeMeasuresNetworkProgramming(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{NoEndpoints: true})
	s := kubetest.NewSite(t, c.Client(t))
	s.Node("edge-1", "zone-a", netip.Addr{})
	s.RunPod(kubetest.PodSpec{Name: "old", Node: "edge-1", Labels: labels("web"), Addresses: []netip.Addr{addr(1)}})
	s.Service("web", nil)
	s.Eventually("slices", func(ctx context.Context) error {
		list, err := s.Client.DiscoveryV1().EndpointSlices(s.Namespace).List(ctx, metav1.ListOptions{})
		if err == nil && (len(list.Items) == 0 || len(list.Items[0].Endpoints) == 0) {
			err = errors.New("none yet")
		}
		return err
	})
	time.Sleep(1100 * time.Millisecond) // trigger times have the precision of a second
	m := &programmed{}
	f := follow(t, kube.Config{REST: c.REST(t), Measure: m})
	f.expect(s, "sync", "web", "all [10.244.0.1]")
	if n, _ := m.get(); n != 0 {
		t.Errorf("%d changes from before the start were counted", n)
	}
	time.Sleep(1100 * time.Millisecond)
	s.RunPod(kubetest.PodSpec{Name: "new", Node: "edge-1", Labels: labels("web"), Addresses: []netip.Addr{addr(2)}})
	f.expect(s, "new Pod", "web", "all [10.244.0.1 10.244.0.2]")
	s.Eventually("latency", func(context.Context) error {
		n, d := m.get()
		if n == 0 {
			return errors.New("nothing was measured")
		}
		if d < 0 || d > kubetest.Within {
			t.Errorf("latency %v", d)
		}
		t.Logf("network programming latency %v", d)
		return nil
	})
}

type programmed struct {
	mu   sync.Mutex
	n    int
	last time.Duration
}

func (p *programmed) Delivered(time.Duration) {}

func (p *programmed) Programmed(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	p.last = d
}

func (p *programmed) get() (int, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n, p.last
}
