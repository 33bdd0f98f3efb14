package gateways

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery/gateway"
	"github.com/weirlb/weir/discovery/kube/client"
)

// writes is a keeper with an API server that refuses to create, and notes requests.
type writes struct {
	*keeper
	mu   sync.Mutex
	seen []string
}

func newWrites(t *testing.T) *writes {
	t.Helper()
	w := &writes{}
	server := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen = append(w.seen, r.Method+" "+r.URL.Path)
		to.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			to.WriteHeader(http.StatusForbidden)
			_, _ = to.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"quota","code":403}`))
			return
		}
		_, _ = to.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	t.Cleanup(server.Close)
	api, err := client.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	store := func(of runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{}, of, 0, cache.Indexers{})
	}
	w.keeper = &keeper{
		cfg:    Config{Client: api, Services: store(&corev1.Service{}), Log: slog.New(slog.DiscardHandler)},
		caches: map[string]cache.SharedIndexInformer{"endpointslices": store(&discoveryv1.EndpointSlice{})}, retries: newRetries(),
	}
	return w
}

// is puts an object into a cache.
func (w *writes) is(t *testing.T, of cache.SharedIndexInformer, o runtime.Object) {
	t.Helper()
	if err := of.GetStore().Add(o); err != nil {
		t.Fatal(err)
	}
}

// sent are the requests since the last call.
func (w *writes) sent(method string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.seen {
		if r[:len(method)] == method {
			out = append(out, r[len(method)+1:])
		}
	}
	slices.Sort(out)
	w.seen = nil
	return out
}

// serviceOf is a Service of Gateway a/edge.
func serviceOf(name, class string) *corev1.Service {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "edge", UID: "1"}}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, Labels: map[string]string{gateway.LabelManagedBy: gateway.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, client.GroupGateway.WithKind("Gateway"))},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class},
	}
}

// A Service that serves a Gateway is not deleted, nor are its slices, before another that takes its place is there.
func TestAServiceStaysUntilTheNextIsThere(t *testing.T) {
	w := newWrites(t)
	w.is(t, w.cfg.Services, serviceOf("old", "c"))
	w.is(t, w.caches["endpointslices"], &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "old-tcp-80", Labels: map[string]string{discoveryv1.LabelServiceName: "old", discoveryv1.LabelManagedBy: gateway.ManagedBy},
	}})
	next := &gateway.Result{Services: []*corev1.Service{serviceOf("new", "c")}}
	for range 2 { // the second has the write wait
		w.services(t.Context(), next)
		w.slices(t.Context(), next)
		if got := w.sent(http.MethodDelete); len(got) > 0 {
			t.Fatalf("deleted: %s", got)
		}
	}
	w.is(t, w.cfg.Services, serviceOf("new", "c"))
	w.retries = newRetries()
	w.services(t.Context(), next)
	w.slices(t.Context(), next)
	want := []string{"/api/v1/namespaces/a/services/old", "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/old-tcp-80"}
	if got := w.sent(http.MethodDelete); !slices.Equal(got, want) {
		t.Errorf("deleted: %s, want %s", got, want)
	}
}

// Two controllers with load balancer classes of their own do not delete the Service of each other without end.
func TestAServiceIsMadeAnewOnceAMinute(t *testing.T) {
	w := newWrites(t)
	w.is(t, w.cfg.Services, serviceOf("edge", "theirs"))
	r := &gateway.Result{Services: []*corev1.Service{serviceOf("edge", "ours")}}
	w.services(t.Context(), r)
	if got := w.sent(http.MethodDelete); len(got) != 1 {
		t.Fatalf("deleted: %s", got)
	}
	w.services(t.Context(), r)
	if got := w.sent(http.MethodDelete); len(got) > 0 || len(w.failed) > 0 {
		t.Errorf("deleted again: %s, %s", got, w.failed)
	}
	now := time.Now().Add(lastRetry)
	if err := w.retries.makeAnew("a/edge", now, func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := w.retries.makeAnew("a/edge", now.Add(lastRetry/2), func() error { return nil }); err == nil {
		t.Error("made anew twice in a minute")
	}
}
