package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/topology"
)

// follower runs a Source and keeps what it delivers.
type follower struct {
	*kube.Source
	log  *logBuffer
	stop func()

	mu      sync.Mutex
	updates []*discovery.Update
	view    map[discovery.ServiceName]*discovery.Service
	node    *discovery.Node
	synced  bool
}

func follow(t *testing.T, cfg kube.Config) *follower {
	t.Helper()
	f := &follower{view: map[discovery.ServiceName]*discovery.Service{}, log: &logBuffer{}}
	cfg.Log = slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if cfg.Store.NodeName == "" {
		cfg.Store.NodeName = "edge-1"
	}
	var err error
	if f.Source, err = kube.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, f.take) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the source's log:\n%s", f.log)
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *follower) take(up *discovery.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updates = append(f.updates, up)
	for _, s := range up.Put {
		f.view[s.Name] = s
	}
	for _, n := range up.Deleted {
		delete(f.view, n)
	}
	if up.Node != nil {
		f.node = up.Node
	}
	f.synced = up.Synced
}

// delivered is how many Updates have come.
func (f *follower) delivered() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.updates)
}

func (f *follower) service(ns, name string) *discovery.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view[discovery.ServiceName{Namespace: ns, Name: name}]
}

// chosen is what this node would use of a Service's first port: tier and
// addresses.
func (f *follower) chosen(ns, name string) string {
	svc := f.service(ns, name)
	if svc == nil {
		return "no Service"
	}
	f.mu.Lock()
	node := f.node.Node
	f.mu.Unlock()
	if len(svc.Ports) == 0 {
		return "no port"
	}
	eps := svc.Ports[0].Endpoints
	r := topology.Select(svc.Policy, eps, node)
	if r.Cluster == nil {
		return "no cluster policy"
	}
	var addrs []string
	for _, i := range r.Cluster.Endpoints {
		addrs = append(addrs, eps[i].AddrPort.Addr().String())
	}
	return fmt.Sprintf("%s %v", r.Cluster.Tier, addrs)
}

func (f *follower) expect(s *kubetest.Site, what, name, want string) {
	s.Eventually(what, func(context.Context) error {
		if got := f.chosen(s.Namespace, name); got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
		return nil
	})
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}) }

func labels(name string) map[string]string { return map[string]string{"app": name} }

// The life of a Service as the real controllers tell it: KEP-752 (slices),
// KEP-1669 and KEP-1672 (terminating endpoints), KEP-2433, 4444 and 3015
// (hints).
func TestKubeFollowsTheControllers(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	s.Node("edge-1", "zone-a", netip.MustParseAddr("192.0.2.1"))
	s.Node("node-a", "zone-a", netip.Addr{})
	s.Node("node-b", "zone-b", netip.Addr{})
	for i, node := range []string{"edge-1", "node-a", "node-b"} {
		s.RunPod(kubetest.PodSpec{Name: fmt.Sprintf("pod-%d", i+1), Node: node, Labels: labels("web"), Addresses: []netip.Addr{addr(i + 1)}})
	}
	svc := s.Service("web", nil)
	f := follow(t, kube.Config{REST: c.REST(t)})

	f.expect(s, "endpoints of slices", "web", "all [10.244.0.1 10.244.0.2 10.244.0.3]")
	if f.node.Labels[corev1.LabelTopologyZone] != "zone-a" {
		t.Errorf("this node's labels are %v", f.node.Labels)
	}
	got := f.service(s.Namespace, "web")
	if got.Ports[0].NodePort == 0 || got.Ports[0].NodePort != uint16(svc.Spec.Ports[0].NodePort) {
		t.Errorf("node port %d, want %d", got.Ports[0].NodePort, svc.Spec.Ports[0].NodePort)
	}

	same := func(d string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.TrafficDistribution = &d }
	}
	s.EditService("web", same(corev1.ServiceTrafficDistributionPreferSameZone))
	f.expect(s, "PreferSameZone", "web", "same-zone [10.244.0.1 10.244.0.2]")
	s.EditService("web", same(corev1.ServiceTrafficDistributionPreferSameNode))
	f.expect(s, "PreferSameNode", "web", "same-node [10.244.0.1]")

	s.SetReady("pod-1", false)
	f.expect(s, "not ready on this node", "web", "same-zone [10.244.0.2]")
	s.Terminate("pod-2")
	f.expect(s, "terminating while another is ready", "web", "all [10.244.0.3]")
	s.Terminate("pod-3")
	f.expect(s, "all terminating and serving", "web", "terminating [10.244.0.2 10.244.0.3]")
	s.Remove("pod-2")
	s.Remove("pod-3")
	f.expect(s, "gone", "web", "none []")

	if err := s.Client.CoreV1().Services(s.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(s, "deleted", "web", "no Service")
}

// The first Update is everything at once.
func TestKubeTellsNothingBeforeAll(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	const services = 50
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		s.Service(name, func(svc *corev1.Service) { svc.Spec.Selector = nil })
		s.Slice(slice(name, "a", addr(i+1)))
	}
	f := follow(t, kube.Config{REST: c.REST(t)})
	s.Eventually("sync", func(context.Context) error {
		if f.delivered() == 0 {
			return fmt.Errorf("nothing yet: %v", f.Errors())
		}
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.updates[0]
	if !first.Synced || len(first.Put) != services+1 { // default/kubernetes
		t.Fatalf("the first update has %d Services, synced %v", len(first.Put), first.Synced)
	}
	for _, svc := range first.Put {
		if svc.Name.Namespace == s.Namespace && len(svc.Ports[0].Endpoints) != 1 {
			t.Errorf("%v came without its endpoint", svc.Name)
		}
	}
}

func slice(service, suffix string, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	name, port, proto := "http", int32(8080), corev1.ProtocolTCP
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-" + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	for _, a := range addrs {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
	}
	return out
}

// The API server goes and comes back: what is known stays, a repeated list
// tells nothing twice, and what changed since arrives.
func TestKubeStaysWithTheLastViewWhileTheServerIsAway(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	s.Service("web", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	s.Service("gone", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	s.Slice(slice("web", "a", addr(1)))
	f := follow(t, kube.Config{REST: c.REST(t)})
	f.expect(s, "before", "web", "all [10.244.0.1]")
	before := f.delivered()

	c.Stop()
	s.Eventually("the outage is told", func(context.Context) error {
		if errs := f.Errors(); !slices.ContainsFunc(errs, func(e string) bool { return strings.Contains(e, "cannot watch services") }) {
			return fmt.Errorf("errors are %q", errs)
		}
		return nil
	})
	if got := f.chosen(s.Namespace, "web"); got != "all [10.244.0.1]" || f.delivered() != before {
		t.Errorf("while away: %s, %d updates more", got, f.delivered()-before)
	}

	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	s.Slice(slice("web", "b", addr(2)))
	if err := s.Client.CoreV1().Services(s.Namespace).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(s, "after", "web", "all [10.244.0.1 10.244.0.2]")
	f.expect(s, "after", "gone", "no Service")
	s.Eventually("no error is left", func(context.Context) error {
		if errs := f.Errors(); len(errs) > 0 {
			return fmt.Errorf("errors are %q", errs)
		}
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, up := range f.updates[before:] {
		for _, svc := range up.Put {
			if svc.Name.Name != "web" {
				t.Errorf("%v was told again although nothing changed", svc.Name)
			}
		}
		if len(up.Deleted) > 1 {
			t.Errorf("deleted: %v", up.Deleted)
		}
	}
	if f.WatchErrors()["services"] == 0 {
		t.Error("no watch error was counted")
	}
}

// A start while the API server is away serves what an earlier source knew, and
// the first full view replaces it as a whole.
func TestKubeStartsFromTheLastKnownState(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	for _, name := range []string{"web", "gone"} {
		s.Service(name, func(svc *corev1.Service) { svc.Spec.Selector = nil })
		s.Slice(slice(name, "a", addr(1)))
	}
	first := follow(t, kube.Config{REST: c.REST(t)})
	first.expect(s, "first", "web", "all [10.244.0.1]")
	first.expect(s, "first", "gone", "all [10.244.0.1]")
	known := first.Objects()
	first.stop()

	// What changes while nobody looks.
	if err := s.Client.CoreV1().Services(s.Namespace).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rc := c.REST(t)
	c.Stop()
	at := time.Now()
	f := follow(t, kube.Config{REST: rc, LastKnown: known, LastKnownTime: at})
	f.expect(s, "last known", "web", "all [10.244.0.1]")
	f.expect(s, "last known", "gone", "all [10.244.0.1]")
	if when, ok := f.LastKnown(); !ok || !when.Equal(at) {
		t.Errorf("LastKnown is %v, %v", when, ok)
	}
	if f.Objects() != nil {
		t.Error("what was only known last is offered as what is known")
	}

	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	f.expect(s, "replaced", "gone", "no Service")
	f.expect(s, "replaced", "web", "all [10.244.0.1]")
	if _, ok := f.LastKnown(); ok {
		t.Error("still said to be the last known state")
	}
}

// An API server that answers is believed, not the past.
func TestKubeLeavesTheLastKnownStateAloneWhenTheServerAnswers(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{})
	s := kubetest.NewSite(t, c.Client(t))
	s.Service("web", func(svc *corev1.Service) { svc.Spec.Selector = nil })
	old := &kube.Objects{Services: []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "old"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}}}
	f := follow(t, kube.Config{REST: c.REST(t), LastKnown: old, Patience: time.Minute})
	f.expect(s, "now", "web", "none []")
	if f.service(s.Namespace, "old") != nil {
		t.Error("the last known state was served")
	}
}
