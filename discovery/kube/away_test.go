package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

// standIn is an API server that lists the Service default/web, and has no news.
type standIn struct {
	*httptest.Server
	// refuse gives the status of an answer, 0 for a proper one. nil: none is
	// refused.
	refuse func(r *http.Request) int
	hangs  bool // nothing is answered
	quit   chan struct{}
	// services are listed in place of default/web.
	services []corev1.Service
	nodes    []corev1.Node
	// other, if not nil, answers in place of all this if it returns true.
	other func(w http.ResponseWriter, r *http.Request) bool

	mu     sync.Mutex
	events map[string]int // how often each was to be made
	looks  int            // for an Event
}

// event makes an Event, unless it is there.
func (s *standIn) event(w http.ResponseWriter, r *http.Request) {
	var e corev1.Event
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if s.events[e.Name]++; s.events[e.Name] > 1 {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: "Failure", Reason: metav1.StatusReasonAlreadyExists, Code: http.StatusConflict})
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e)
}

// look tells whether an Event is there.
func (s *standIn) look(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if s.looks++; s.events[name] > 0 {
		_ = json.NewEncoder(w).Encode(corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
		return
	}
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
}

func newStandIn(t *testing.T, refuse func(r *http.Request) int) *standIn {
	s := &standIn{refuse: refuse, quit: make(chan struct{}), events: map[string]int{}, services: []corev1.Service{named("web")}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.quit)
		s.Close()
	})
	return s
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wait := func() {
		select {
		case <-r.Context().Done():
		case <-s.quit:
		}
	}
	if s.hangs {
		wait()
		return
	}
	if s.other != nil && s.other(w, r) {
		return
	}
	status := 0
	if s.refuse != nil {
		status = s.refuse(r)
	}
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	if path.Base(r.URL.Path) == "events" {
		s.event(w, r)
		return
	}
	if dir, name := path.Split(r.URL.Path); path.Base(dir) == "events" {
		s.look(w, name)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") != "" {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		wait()
		return
	}
	meta := metav1.ListMeta{ResourceVersion: "1"}
	var list any
	switch path.Base(r.URL.Path) {
	case "services":
		list = corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: meta, Items: s.services}
	case "endpointslices":
		list = discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: meta}
	case "nodes":
		list = corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: meta, Items: s.nodes}
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(list)
}

// withoutWatchList refuses what servers without WatchList do (the default before
// Kubernetes 1.32), and what more refuses.
func withoutWatchList(more func(r *http.Request) int) func(r *http.Request) int {
	return func(r *http.Request) int {
		if r.URL.Query().Get("sendInitialEvents") != "" {
			return http.StatusUnprocessableEntity
		}
		if more != nil {
			return more(r)
		}
		return 0
	}
}

func named(name string) corev1.Service {
	return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "1", UID: "1"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}}}
}

// past is a last known state with the Service default/old.
func past() *kube.Objects {
	old := named("old")
	return &kube.Objects{Services: []*corev1.Service{&old}}
}

// first waits for the first Update with Services, and returns their names.
func (f *follower) first(t *testing.T) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		for _, up := range f.updates {
			var names []string
			for _, s := range up.Put {
				names = append(names, s.Name.Name)
			}
			if len(names) > 0 {
				f.mu.Unlock()
				return strings.Join(names, " ")
			}
		}
		f.mu.Unlock()
	}
	return "nothing"
}

// Who answers is believed, also after it has refused once; who does not answer
// is not waited for where there is something to serve.
func TestFirstUpdateOfAServerThat(t *testing.T) {
	var once sync.Once
	for _, c := range []struct {
		name   string
		server func(t *testing.T) *standIn
		cfg    kube.Config
		want   string
	}{
		{
			name:   "is well",
			server: func(t *testing.T) *standIn { return newStandIn(t, withoutWatchList(nil)) },
			want:   "web",
		},
		{
			name: "refuses one request",
			server: func(t *testing.T) *standIn {
				return newStandIn(t, withoutWatchList(func(*http.Request) (status int) {
					once.Do(func() { status = http.StatusServiceUnavailable })
					return status
				}))
			},
			cfg:  kube.Config{Patience: time.Hour},
			want: "web",
		},
		{
			name: "refuses every request",
			server: func(t *testing.T) *standIn {
				return newStandIn(t, func(*http.Request) int { return http.StatusServiceUnavailable })
			},
			cfg:  kube.Config{Patience: 10 * time.Millisecond},
			want: "old",
		},
		{
			name: "answers nothing",
			server: func(t *testing.T) *standIn {
				s := newStandIn(t, nil)
				s.hangs = true
				return s
			},
			cfg:  kube.Config{Patience: time.Hour},
			want: "old",
		},
		{
			name: "cannot be connected with",
			server: func(t *testing.T) *standIn {
				s := newStandIn(t, nil)
				s.Close()
				return s
			},
			cfg:  kube.Config{Patience: time.Hour, Silence: time.Hour},
			want: "old",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := c.cfg
			cfg.REST, cfg.LastKnown, cfg.LastKnownTime = &rest.Config{Host: c.server(t).URL}, past(), time.Now()
			if got := follow(t, cfg).first(t); got != c.want {
				t.Errorf("first told is %s, want %s", got, c.want)
			}
		})
	}
}

// A server without WatchList is not complained about: client-go lists instead.
func TestServerWithoutWatchListIsWell(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusUnprocessableEntity} {
		server := newStandIn(t, func(r *http.Request) int {
			if r.URL.Query().Get("sendInitialEvents") != "" {
				return status
			}
			return 0
		})
		f := follow(t, kube.Config{REST: &rest.Config{Host: server.URL}})
		if got := f.first(t); got != "web" {
			t.Fatalf("first told is %s", got)
		}
		if text := f.log.String(); strings.Contains(text, "cannot watch") {
			t.Errorf("status %d is complained about:\n%s", status, text)
		}
		for resource, n := range f.WatchErrors() {
			if n > 0 {
				t.Errorf("status %d: %d errors of %s", status, n, resource)
			}
		}
	}
}

// A fleet complains about a Service with one Event, written once, whatever node is started how
// often, and about none that has no frontend.
func TestEventsOfAFleetAreOne(t *testing.T) {
	server := newStandIn(t, withoutWatchList(nil))
	bad, inside := named("bad"), named("inside")
	bad.Annotations = map[string]string{"weir.dev/algorithm": "dice"}
	inside.Annotations = bad.Annotations
	inside.Spec.Type, inside.Spec.Ports = corev1.ServiceTypeClusterIP, []corev1.ServicePort{{Port: 80}}
	server.services = []corev1.Service{bad, inside}
	const starts = 4
	for i := range starts {
		f := follow(t, kube.Config{
			REST: &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Events: true,
			Store:    discovery.Options{NodeName: fmt.Sprintf("edge-%d", i%2)},
			Concerns: func(svc *discovery.Service) bool { return svc.Ports[0].NodePort != 0 },
		})
		f.first(t)
		for _, name := range []string{"inside", "bad"} {
			f.Complain(discovery.ServiceName{Namespace: "default", Name: name}, "InvalidService", "it is wrong")
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			server.mu.Lock()
			made := 0
			for name, n := range server.events {
				made += n
				if !strings.HasPrefix(name, "bad.") {
					t.Errorf("Event %s", name)
				}
			}
			looks := server.looks
			server.mu.Unlock()
			if made > 1 {
				t.Fatalf("%d writes of Events after %d starts", made, i+1)
			}
			if made == 1 && looks == i+1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d writes of Events, %d looks after %d starts", made, looks, i+1)
			}
		}
		f.stop()
	}
}

// An Event that cannot be recorded waits: what is complained about while the last known
// state is served is told once the API server is back, and what it refuses for a moment
// is asked again.
func TestEventsWaitForTheAPIServer(t *testing.T) {
	var away atomic.Bool
	var refused atomic.Int32
	away.Store(true)
	server := newStandIn(t, withoutWatchList(func(r *http.Request) int {
		if away.Load() || path.Base(r.URL.Path) == "events" && refused.Add(1) < 3 {
			return http.StatusServiceUnavailable
		}
		return 0
	}))
	old := named("web")
	f := follow(t, kube.Config{
		REST:   &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
		Events: true, EventRetry: time.Millisecond,
		LastKnown: &kube.Objects{Services: []*corev1.Service{&old}}, LastKnownTime: time.Now(), Patience: time.Millisecond,
	})
	f.first(t)
	f.Complain(discovery.ServiceName{Namespace: "default", Name: "web"}, "InvalidService", "it is wrong")
	away.Store(false) // the informers ask again a second later, and the Service is unknown until then
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		server.mu.Lock()
		n := len(server.events)
		server.mu.Unlock()
		if n == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no Event")
		}
	}
}

// A node that is started again serves the last valid version of a Service that was made invalid
// before, and hands it on to the next start. A node without that history does not know it.
func TestAStartKnowsTheLastValidVersion(t *testing.T) {
	server := newStandIn(t, withoutWatchList(nil))
	valid, invalid := named("web"), named("web")
	valid.Annotations = map[string]string{discovery.AnnotationMaxConnections: "1000"}
	invalid.Annotations = map[string]string{discovery.AnnotationMaxConnections: "1k"}
	server.services = []corev1.Service{invalid}
	for known, want := range map[bool]uint32{true: 1000, false: 0} {
		cfg := kube.Config{REST: &rest.Config{Host: server.URL}}
		if known {
			cfg.LastValid = []*corev1.Service{&valid}
		}
		f := follow(t, cfg)
		f.first(t)
		svc, kept := f.Services()[0], f.Objects().Valid
		if svc.Options.MaxConnections != want || (svc.Unsupported == "") != known || len(svc.Errors) != 1 || (len(kept) == 1) != known {
			t.Errorf("known %v: %+v, unsupported %q, errors %q, kept %v", known, svc.Options, svc.Unsupported, svc.Errors, kept)
		}
	}
}
