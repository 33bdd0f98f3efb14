package gateways

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
	gone bool // classes are, and the caches do not know it
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
		if w.gone && strings.Contains(r.URL.Path, "gatewayclasses") {
			to.WriteHeader(http.StatusNotFound)
			_, _ = to.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		if r.Method == http.MethodPut {
			_, _ = io.Copy(to, r.Body)
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

// Two controllers with load balancer classes of their own make the Service of a Gateway anew once each, and leave it
// then as the first of them has made it. A Gateway that is made anew has the class of the controller again.
func TestAServiceOfAnotherClassIsMadeAnewOnce(t *testing.T) {
	w := newWrites(t)
	w.is(t, w.cfg.Services, serviceOf("edge", "theirs"))
	r := &gateway.Result{Services: []*corev1.Service{serviceOf("edge", "ours")}}
	now := time.Now()
	round := func(r *gateway.Result) []string {
		w.services(t.Context(), r)
		now = now.Add(lastRetry)
		w.retries.next(now)
		clear(w.retries.anew) // a minute later
		clear(w.retries.until)
		return w.sent(http.MethodDelete)
	}
	if got := round(r); len(got) != 1 {
		t.Fatalf("deleted: %s", got)
	}
	for range 3 {
		if got := round(r); len(got) > 0 || len(w.failed) > 0 {
			t.Errorf("deleted again: %s, %s", got, w.failed)
		}
	}
	round(&gateway.Result{})
	w.retries.next(now) // without the Service
	if got := round(r); len(got) != 1 {
		t.Errorf("deleted for a new Gateway: %s", got)
	}
}

// A controller that starts leaves the Service of another installation with another class, and makes the Service anew
// that its own has made with the class of before.
func TestAServiceOfAnotherInstallationStays(t *testing.T) {
	for made, deleted := range map[string]int{"one/weir": 0, "two/weir": 1, "": 1} {
		w := newWrites(t)
		w.cfg.Installation = "two/weir"
		old := serviceOf("edge", "theirs")
		if made != "" {
			old.Annotations = map[string]string{annotationInstallation: made}
		}
		var log strings.Builder
		w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.is(t, w.cfg.Services, old)
		w.retries.note("Service "+key(old), true, time.Now().Add(-time.Hour)) // an earlier write failed for another reason
		for range 2 {
			w.services(t.Context(), &gateway.Result{Services: []*corev1.Service{serviceOf("edge", "ours")}})
			for object := range w.retries.until {
				w.retries.until[object] = time.Time{} // a minute later
			}
		}
		told := strings.Count(log.String(), "another controller")
		if got := w.sent(http.MethodDelete); len(got) != deleted || len(w.failed) > 0 || told != 1 && deleted == 0 {
			t.Errorf("made by %q: deleted %s, %s, told %d times", made, got, w.failed, told)
		}
	}
	w := newWrites(t)
	w.cfg.Installation = "two/weir"
	if s := w.marked(serviceOf("edge", "ours")); s.Annotations[annotationInstallation] != "two/weir" {
		t.Errorf("a new Service has annotations %v", s.Annotations)
	}
}

// A Service that has no cluster IP is made anew once a minute.
func TestAServiceIsMadeAnewOnceAMinute(t *testing.T) {
	w, now := newWrites(t), time.Now()
	if err := w.retries.makeAnew("a/edge", now, func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := w.retries.makeAnew("a/edge", now.Add(lastRetry/2), func() error { return nil }); err == nil {
		t.Error("made anew twice in a minute")
	}
}

// The first Service of a Gateway is made when the class has the finalizer, and not if the class has gone meanwhile.
func TestAClassIsGuardedBeforeTheFirstService(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w := newWrites(t)
		w.gone = gone
		for resource, of := range map[string]runtime.Object{
			"gatewayclasses": &gatewayv1.GatewayClass{}, "gateways": &gatewayv1.Gateway{}, "tcproutes": &gatewayv1.TCPRoute{},
			"udproutes": &gatewayv1.UDPRoute{}, "referencegrants": &gatewayv1.ReferenceGrant{},
		} {
			w.caches[resource] = cache.NewSharedIndexInformer(&cache.ListWatch{}, of, 0, cache.Indexers{})
		}
		w.cfg.Namespaces = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Namespace{}, 0, cache.Indexers{})
		w.is(t, w.caches["gatewayclasses"], &gatewayv1.GatewayClass{
			ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: gateway.ControllerName},
		})
		w.is(t, w.caches["gateways"], &gatewayv1.Gateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "edge", UID: "1"},
			Spec: gatewayv1.GatewaySpec{GatewayClassName: "c", Listeners: []gatewayv1.Listener{
				{Name: "web", Protocol: gatewayv1.TCPProtocolType, Port: 80},
			}},
		})
		w.round(t.Context())
		const class, service = "PUT /apis/gateway.networking.k8s.io/v1/gatewayclasses/c", "POST /api/v1/namespaces/a/services"
		guarded, made := slices.Index(w.seen, class), slices.Index(w.seen, service)
		if guarded < 0 || !gone && made < guarded || gone && made >= 0 {
			t.Errorf("class gone: %v: %s", gone, w.seen)
		}
	}
}
