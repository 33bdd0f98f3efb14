package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// asController makes this binary a controller, so that a test can kill it.
const asController = "WEIR_TEST_CONTROLLER"

func TestMain(m *testing.M) {
	if os.Getenv(asController) == "" {
		os.Exit(m.Run())
	}
	cmd := Command()
	cmd.SetArgs(os.Args[1:])
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bed is an API server, and controllers of its own.
type bed struct {
	t       *testing.T
	cluster *kubetest.Cluster
	client  kubernetes.Interface
	site    *kubetest.Site
	pools   string
}

func newBed(t *testing.T, pools string) *bed {
	t.Helper()
	return newBedOf(t, kubetest.Options{NoControllers: true, NoEndpoints: true, Fast: true}, pools)
}

// newBedOf is newBed with another API server.
func newBedOf(t *testing.T, o kubetest.Options, pools string) *bed {
	t.Helper()
	c := kubetest.Require(t, o)
	b := &bed{t: t, cluster: c, client: c.Client(t), pools: filepath.Join(t.TempDir(), "pools.yaml")}
	b.site = kubetest.NewSite(t, b.client)
	b.setPools(pools)
	return b
}

func (b *bed) setPools(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.pools, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// start starts a controller as a process; kill kills it.
func (b *bed) start(args ...string) (kill func()) {
	b.t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"--kubeconfig", b.cluster.Kubeconfig, "--pools", b.pools}, args...)...)
	cmd.Env = append(os.Environ(), asController+"=1")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	b.t.Cleanup(func() {
		kill()
		if b.t.Failed() {
			b.t.Logf("a controller's log ends so:\n%s", log.String()[max(0, log.Len()-3000):])
		}
	})
	return kill
}

// service makes a Service of the controller's class.
func (b *bed) service(name string, edit func(*corev1.Service)) {
	b.t.Helper()
	b.site.Service(name, func(s *corev1.Service) {
		class, ports := "weir.dev/edge", false
		s.Spec.Type, s.Spec.LoadBalancerClass, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &class, &ports
		if edit != nil {
			edit(s)
		}
	})
}

// state is the addresses of a Service, and the reason of the condition.
func (b *bed) state(name string) (string, *corev1.Service) {
	b.t.Helper()
	s, err := b.client.CoreV1().Services(b.site.Namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error(), nil
	}
	return describe(s), s
}

func describe(s *corev1.Service) string {
	var out []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		out = append(out, i.IP)
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, condition); c != nil {
		out = append(out, c.Reason)
	}
	return strings.Join(out, " ")
}

func (b *bed) eventually(name, want string) *corev1.Service {
	b.t.Helper()
	var got string
	for end := time.Now().Add(patience.For(30 * time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var s *corev1.Service
		if got, s = b.state(name); got == want {
			return s
		}
	}
	b.t.Fatalf("Service %s: %s, want %s", name, got, want)
	return nil
}

func poolYAML(name, spec string) string {
	return "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata:\n  name: " + name + "\n  namespace: metallb-system\nspec:\n  " + spec + "\n---\n"
}

func TestKubeControllerServesServicesByTheirClassAndType(t *testing.T) {
	b := newBed(t, poolYAML("p", "addresses: [192.0.2.1-192.0.2.2]"))
	// Two Services with an address are found at the start.
	b.service("old", nil)
	time.Sleep(1100 * time.Millisecond) // the age is in seconds
	b.service("young", nil)
	b.setStatus("old", "192.0.2.1")
	b.setStatus("young", "192.0.2.1")
	b.site.Service("other-class", func(s *corev1.Service) {
		class := "example.com/other"
		s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	})
	b.start("--lease", "")
	b.eventually("old", "192.0.2.1 Allocated")
	b.eventuallyEvent("young", addresspool.ReasonConflict)
	b.eventually("young", "192.0.2.2 Allocated")
	if got := b.eventually("young", "192.0.2.2 Allocated").Status.LoadBalancer.Ingress[0].IPMode; got == nil || *got != corev1.LoadBalancerIPModeVIP {
		t.Errorf("ipMode %v", got)
	}
	b.service("third", nil)
	b.eventually("third", "PoolExhausted")
	b.eventuallyEvent("third", addresspool.ReasonExhausted)
	if got, _ := b.state("other-class"); got != "" {
		t.Errorf("a Service of another class: %s", got)
	}
	// Another type frees the address, and a Service that asks for it by name gets it at once.
	b.site.EditService("old", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerClass, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil, nil
	})
	b.eventually("old", "")
	b.site.EditService("third", func(s *corev1.Service) { s.Annotations = map[string]string{"metallb.io/loadBalancerIPs": "192.0.2.1"} })
	b.eventually("third", "192.0.2.1 Allocated")
	// The pool goes away: everything stays.
	b.setPools(poolYAML("q", "addresses: [198.51.100.1/32]"))
	b.eventually("third", "192.0.2.1 OutsideOfPools")
	b.service("fourth", nil)
	b.eventually("fourth", "198.51.100.1 Allocated")
	// Deleted: gone from the pool, and the Service that waits gets it after the rest, see addresspool.
	b.service("wrong", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "nonsense" })
	b.eventually("wrong", "InvalidRequest")
}

func (b *bed) setStatus(name, addr string) {
	b.t.Helper()
	s, err := b.client.CoreV1().Services(b.site.Namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		_, err = b.client.CoreV1().Services(b.site.Namespace).UpdateStatus(b.t.Context(), s, metav1.UpdateOptions{})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) eventuallyEvent(service, reason string) {
	b.t.Helper()
	b.site.Eventually("Event "+reason+" of "+service, func(ctx context.Context) error {
		list, err := b.client.CoreV1().Events(b.site.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == service && e.Reason == reason }) {
			return nil
		}
		return errors.New("not there")
	})
}

// history follows the addresses of all Services.
type history struct {
	mu    sync.Mutex
	last  map[string]string // by UID
	moved []string
}

func (h *history) follow(t *testing.T, b *bed) {
	w, err := b.client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			s, ok := e.Object.(*corev1.Service)
			if !ok {
				continue
			}
			now := ""
			if in := s.Status.LoadBalancer.Ingress; len(in) > 0 {
				now = in[0].IP
			}
			h.mu.Lock()
			if was := h.last[string(s.UID)]; was != "" && was != now {
				h.moved = append(h.moved, fmt.Sprintf("%s from %s to %q", s.Name, was, now))
			}
			h.last[string(s.UID)] = now
			h.mu.Unlock()
		}
	}()
}

// The controller is killed again and again while Services come and go. No address
// moves, none is given twice.
func TestKubeKilledControllerMovesNoAddress(t *testing.T) {
	const services = 1000
	b := newBed(t, poolYAML("p", "addresses: [10.64.0.0/21]"))
	h := &history{last: map[string]string{}}
	h.follow(t, b)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range services {
		b.service(fmt.Sprintf("s%d", i), nil)
	}
	begin := time.Now()
	kill := b.start("--lease", "")
	for round := range 12 {
		time.Sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
		kill()
		kill = b.start("--lease", "")
		for range 5 {
			name := fmt.Sprintf("s%d", rng.IntN(services))
			err := b.client.CoreV1().Services(b.site.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		b.service(fmt.Sprintf("r%d", round), nil)
	}
	b.allAllocated()
	t.Logf("12 kills within the allocation of %d Services: %.1f s", services, time.Since(begin).Seconds())
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.moved) > 0 {
		t.Errorf("%d addresses moved: %s", len(h.moved), strings.Join(h.moved[:min(5, len(h.moved))], "; "))
	}
}

// allAllocated waits until every Service has an address, and checks that none is given twice.
func (b *bed) allAllocated() {
	b.t.Helper()
	b.site.Eventually("addresses of all Services", func(ctx context.Context) error {
		list, err := b.client.CoreV1().Services(b.site.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		given := map[string]string{}
		for _, s := range list.Items {
			if len(s.Status.LoadBalancer.Ingress) == 0 {
				return fmt.Errorf("%s has none", s.Name)
			}
			addr := s.Status.LoadBalancer.Ingress[0].IP
			if o, twice := given[addr]; twice {
				b.t.Fatalf("%s is given to %s and %s", addr, o, s.Name)
			}
			given[addr] = s.Name
		}
		return nil
	})
}

func TestKubeControllerAllocatesAThousandServices(t *testing.T) {
	b := newBed(t, poolYAML("p", "addresses: [10.64.0.0/21]"))
	for i := range 1000 {
		b.service(fmt.Sprintf("s%d", i), nil)
	}
	begin := time.Now()
	b.start("--lease", "")
	b.allAllocated()
	t.Logf("1,000 Services have addresses %.1f s after the start of the controller", time.Since(begin).Seconds())
}

// Of two controllers the holder of the Lease allocates; the other takes over when it is killed.
func TestKubeAnotherControllerTakesOver(t *testing.T) {
	b := newBed(t, poolYAML("p", "addresses: [192.0.2.1-192.0.2.2]"))
	b.service("one", nil)
	kill := b.start("--namespace", b.site.Namespace, "--identity", "first")
	b.eventually("one", "192.0.2.1 Allocated")
	b.start("--namespace", b.site.Namespace, "--identity", "second")
	kill()
	b.service("two", nil)
	b.eventually("two", "192.0.2.2 Allocated")
	lease, err := b.client.CoordinationV1().Leases(b.site.Namespace).Get(t.Context(), "weir-controller", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "second" {
		t.Errorf("lease %+v, %v", lease.Spec, err)
	}
	b.eventually("one", "192.0.2.1 Allocated")
}

// Pools are MetalLB's objects in the API server; no webhook of MetalLB is there.
func TestKubePoolsAreMetalLBsObjects(t *testing.T) {
	b := newBed(t, "")
	plain := b.cluster.REST(t)
	plain.ContentType = ""
	dyn, err := dynamic.NewForConfig(plain)
	if err != nil {
		t.Fatal(err)
	}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "ipaddresspools.metallb.io"},
		"spec": map[string]any{
			"group": "metallb.io", "scope": "Namespaced",
			"names": map[string]any{"kind": "IPAddressPool", "plural": "ipaddresspools", "singular": "ipaddresspool", "listKind": "IPAddressPoolList"},
			"versions": []any{map[string]any{"name": "v1beta1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
	definitions := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pool := func(name, addresses string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"addresses": []any{addresses}},
		}}
	}
	pools := dyn.Resource(schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}).Namespace(b.site.Namespace)
	b.site.Eventually("create a pool", func(ctx context.Context) error {
		_, err := pools.Create(ctx, pool("first", "192.0.2.1/32"), metav1.CreateOptions{})
		return err
	})
	b.service("one", nil)
	b.service("two", nil)
	b.start("--lease", "", "--pool-namespaces", b.site.Namespace)
	b.site.Eventually("an address of the pool", func(context.Context) error {
		one, _ := b.state("one")
		two, _ := b.state("two")
		if one+"|"+two != "192.0.2.1 Allocated|PoolExhausted" && two+"|"+one != "192.0.2.1 Allocated|PoolExhausted" {
			return errors.New(one + "|" + two)
		}
		return nil
	})
	if _, err := pools.Create(t.Context(), pool("second", "192.0.2.2/32"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.allAllocated()
}
