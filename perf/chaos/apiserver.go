package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// apiServer answers what Weir asks of a cluster, as an API server with a watch cache does:
// lists, watches that begin with a list, and "expired" to a watch that begins before the
// history. It speaks TLS and HTTP/2 through a gate.
type apiServer struct {
	*httptest.Server
	gate *gate

	mu      sync.Mutex
	version int
	objects map[string]map[string]object // by resource and name
	history []event
	news    chan struct{} // closed at the next event
}

// object is a Kubernetes object as JSON has it.
type object map[string]any

type event struct {
	version  int
	resource string
	kind     string // ADDED, MODIFIED
	object   object
}

// mostHistory is how many events the watch cache has: those of seconds, so that a watch which
// is away for longer has to list again.
const mostHistory = 1000

func newAPIServer(g *gate) *apiServer {
	a := &apiServer{gate: g, objects: map[string]map[string]object{}, news: make(chan struct{})}
	a.Server = httptest.NewUnstartedServer(a)
	_ = a.Listener.Close() // it is outside the lab
	a.Listener, a.EnableHTTP2 = g, true
	a.StartTLS()
	return a
}

// Close ends the server with every connection, whatever the gate does.
func (a *apiServer) Close() error {
	a.gate.open()
	a.CloseClientConnections()
	a.Server.Close()
	return nil
}

// put makes or replaces objects, which are YAML documents.
func (a *apiServer) put(resource string, documents ...[]byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range documents {
		var o object
		if err := yaml.Unmarshal(d, &o); err != nil {
			return fmt.Errorf("%s: %w", resource, err)
		}
		a.version++
		m, ok := o["metadata"].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: an object without metadata", resource)
		}
		name := fmt.Sprint(m["name"])
		m["resourceVersion"], m["uid"] = strconv.Itoa(a.version), resource+"-"+name
		e := event{a.version, resource, "MODIFIED", o}
		if a.objects[resource] == nil {
			a.objects[resource] = map[string]object{}
		}
		if a.objects[resource][name] == nil {
			e.kind = "ADDED"
		}
		a.objects[resource][name] = o
		a.history = append(a.history, e)
	}
	if n := len(a.history) - mostHistory; n > 0 {
		a.history = append([]event(nil), a.history[n:]...)
	}
	close(a.news)
	a.news = make(chan struct{})
	return nil
}

// all are the objects of a resource and their version.
func (a *apiServer) all(resource string) (list []object, version int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list = []object{}
	for _, o := range a.objects[resource] {
		list = append(list, o)
	}
	return list, a.version
}

// since are the events of a resource after a version; ok is false if the history begins later.
// news is closed when there are more.
func (a *apiServer) since(resource string, version int) (list []event, now int, news <-chan struct{}, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.history) > 0 && version < a.history[0].version-1 {
		return nil, 0, nil, false
	}
	for _, e := range a.history {
		if e.version > version && e.resource == resource {
			list = append(list, e)
		}
	}
	return list, a.version, a.news, true
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch resource := path.Base(r.URL.Path); {
	case r.Method == http.MethodPost:
		a.create(w, resource)
	case served[resource].kind == "":
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, resource)
	default:
		list, version := a.all(resource)
		k := served[resource]
		answer(w, object{"apiVersion": k.version, "kind": k.kind + "List",
			"metadata": object{"resourceVersion": strconv.Itoa(version)}, "items": list})
	}
}

// served are the resources that there are.
var served = map[string]struct{ version, kind string }{
	"services":       {"v1", "Service"},
	"nodes":          {"v1", "Node"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
}

// create answers questions about permissions, and takes Events.
func (a *apiServer) create(w http.ResponseWriter, resource string) {
	switch resource {
	case "selfsubjectreviews":
		answer(w, object{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
			"status": object{"userInfo": object{"username": "weir"}}})
	case "selfsubjectaccessreviews":
		answer(w, object{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": object{}, "status": object{"allowed": true}})
	case "events":
		w.WriteHeader(http.StatusCreated)
		answer(w, corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}})
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// watch sends events until the time of the request is over, or the history begins later than
// the client has come to.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	q, out := r.URL.Query(), json.NewEncoder(w)
	version, _ := strconv.Atoi(q.Get("resourceVersion"))
	send := func(kind string, o object) error { return out.Encode(object{"type": kind, "object": o}) }
	if q.Get("sendInitialEvents") == "true" {
		var list []object
		list, version = a.all(resource)
		for _, o := range list {
			if send("ADDED", o) != nil {
				return
			}
		}
		end := object{"resourceVersion": strconv.Itoa(version), "annotations": object{metav1.InitialEventsAnnotationKey: "true"}}
		k := served[resource]
		if send("BOOKMARK", object{"apiVersion": k.version, "kind": k.kind, "metadata": end}) != nil {
			return
		}
	} else if _, _, _, ok := a.since(resource, version); !ok {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	over := time.After(max(time.Second, time.Duration(seconds)*time.Second))
	for {
		list, now, news, ok := a.since(resource, version)
		if !ok {
			return // the client was too slow
		}
		for _, e := range list {
			if send(e.kind, e.object) != nil {
				return
			}
		}
		version = now
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-over:
			return
		case <-news:
		}
	}
}

func answer(w http.ResponseWriter, o any) { _ = json.NewEncoder(w).Encode(o) }

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
}
