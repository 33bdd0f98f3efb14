package controller

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/client"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// apiServer answers as much as a controller asks for. It is of a release that does not list by a watch.
type apiServer struct {
	services []corev1.Service
	cached   []corev1.Service  // what the watch cache has, for lists that allow for it; nil: services
	undo     bool              // another controller removes the addresses at once
	denied   bool              // writes of status are
	pools    []string          // of metallb.io, in JSON
	writes   chan string       // of a status: the name and the addresses
	events   chan string       // the name of the Service and the reason
	last     map[string]string // of newWrite, by Service

	mu       sync.Mutex
	version  int
	versions map[string]string // by name, of Services that changed
	changes  chan *corev1.Service
}

func plainService(name string, created int64, addr string) corev1.Service {
	class := "weir.dev/edge"
	s := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: "u", ResourceVersion: "1", CreationTimestamp: metav1.Unix(created, 0)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	if addr != "" {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
	}
	return s
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case q.Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status"):
		a.update(w, r)
	case r.Method == http.MethodGet && q.Get("watch") != "":
		w.(http.Flusher).Flush()
		changes := a.changes
		if !strings.HasSuffix(r.URL.Path, "/services") {
			changes = nil
		}
		for {
			select {
			case <-r.Context().Done():
				return
			case s := <-changes:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": s})
				w.(http.Flusher).Flush()
			}
		}
	case r.URL.Path == "/api/v1/services":
		items := a.services
		if q.Get("resourceVersion") == "0" && a.cached != nil {
			items = a.cached
		}
		_ = json.NewEncoder(w).Encode(&corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: items})
	case r.URL.Path == "/api/v1/namespaces":
		_ = json.NewEncoder(w).Encode(&corev1.NamespaceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	case strings.HasSuffix(r.URL.Path, "/events"):
		body, _ := io.ReadAll(r.Body)
		if o, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
			e := o.(*corev1.Event)
			select {
			case a.events <- e.InvolvedObject.Name + " " + e.Reason:
			default:
			}
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e","namespace":"x"}}`)
	case r.URL.Path == "/apis/metallb.io/v1beta1" && a.pools != nil:
		fmt.Fprintln(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metallb.io/v1beta1","resources":[{"name":"ipaddresspools","namespaced":true,"kind":"IPAddressPool","verbs":["list","watch"]}]}`)
	case r.URL.Path == "/apis/metallb.io/v1beta1/ipaddresspools":
		fmt.Fprintf(w, `{"kind":"IPAddressPoolList","apiVersion":"metallb.io/v1beta1","metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(a.pools, ","))
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason})
}

// update is a write of a Service's status.
func (a *apiServer) update(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	o, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	s, ok := o.(*corev1.Service)
	if err != nil || !ok {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	text := s.Name + " " + describe(s)
	defer func() { // after it: what the test changes then is later
		if text == "" {
			return
		}
		select {
		case a.writes <- text:
		default: // the test has seen enough
		}
	}()
	if a.denied {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.versions[s.Name]; v != "" && v != s.ResourceVersion {
		text = "" // a refused write is none
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	a.version++
	s.TypeMeta, s.ResourceVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, fmt.Sprint(10+a.version)
	_ = json.NewEncoder(w).Encode(s)
	if a.undo {
		s.Status.LoadBalancer.Ingress = nil
	}
	a.change(s)
}

// change is a change of a Service that the controller is told of. The lock is held.
func (a *apiServer) change(s *corev1.Service) {
	if a.versions == nil {
		a.versions = map[string]string{}
	}
	a.versions[s.Name] = s.ResourceVersion
	a.changes <- s
}

// controls runs a controller of the pool until the test ends.
func controls(t *testing.T, a *apiServer, log io.Writer, poolNamespaces ...string) {
	t.Helper()
	a.changes, a.writes, a.events = make(chan *corev1.Service, 1000), make(chan string, 1000), make(chan string, 1000)
	server := httptest.NewServer(a)
	dir := t.TempDir()
	files := map[string]string{
		"kubeconfig": `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`,
		"pools.yaml": poolYAML("p", "addresses: [192.0.2.1-192.0.2.9]"),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		done <- Run(t.Context(), Options{Kubeconfig: filepath.Join(dir, "kubeconfig"), Files: []string{filepath.Join(dir, "pools.yaml")}, Class: "weir.dev/edge", PoolNamespaces: poolNamespaces},
			slog.New(slog.NewTextHandler(log, nil)))
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
	})
}

func (a *apiServer) written(t *testing.T) string {
	t.Helper()
	select {
	case s := <-a.writes:
		return s
	case <-time.After(patience.For(20 * time.Second)):
		t.Fatal("no status is written")
		return ""
	}
}

// The watch cache of an API server may lack what the controller that led before wrote last. A list
// that is answered from there would have an address given twice.
func TestAStartAdoptsWhatWasWrittenLast(t *testing.T) {
	waits := plainService("waits", 1, "")
	a := &apiServer{
		services: []corev1.Service{waits, plainService("has", 2, "192.0.2.1")},
		cached:   []corev1.Service{waits, plainService("has", 2, "")},
	}
	controls(t, a, io.Discard)
	want := map[string]bool{"waits 192.0.2.2 Allocated": true, "has 192.0.2.1 Allocated": true}
	for range 2 {
		if got := a.written(t); !want[got] {
			t.Errorf("written: %s", got)
		}
	}
}

// Another controller that removes the addresses must not make two writes of each of its own.
func TestAStatusThatIsRemovedAgainAndAgainIsWrittenEverMoreSlowly(t *testing.T) {
	a := &apiServer{services: []corev1.Service{plainService("s", 1, "")}, undo: true}
	controls(t, a, io.Discard)
	a.written(t)
	a.written(t)
	time.Sleep(2 * time.Second)
	if n := len(a.writes); n > 3 {
		t.Errorf("%d further writes in 2 s", n)
	}
}

// watchedLog tells when a line has a text.
type watchedLog struct {
	text string
	seen chan struct{}
	once sync.Once
}

func (l *watchedLog) Write(b []byte) (int, error) {
	if strings.Contains(string(b), l.text) {
		l.once.Do(func() { close(l.seen) })
	}
	return len(b), nil
}

// A controller without the right to write must say so: no Service gets an address.
func TestAStatusThatCannotBeWrittenIsLogged(t *testing.T) {
	a := &apiServer{services: []corev1.Service{plainService("s", 1, "")}, denied: true}
	log := &watchedLog{text: "level=WARN msg=\"a Service's status cannot be written\" service=x/s", seen: make(chan struct{})}
	controls(t, a, log)
	select {
	case <-log.seen:
	case <-time.After(patience.For(10 * time.Second)):
		t.Error("no warning")
	}
}
