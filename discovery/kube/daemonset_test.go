package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/perf/netlab/patience"
)

var weirSet = types.NamespacedName{Namespace: "weir-system", Name: "weir"}

// owners is an API server with a DaemonSet and the namespace of it.
type owners struct {
	*standIn
	mu  sync.Mutex
	set *appsv1.DaemonSet // nil: there is none
	ns  corev1.Namespace
	// answer, if not nil, answers requests for the DaemonSet.
	answer http.HandlerFunc
	// denied, if not 0, is the status of requests for DaemonSet and namespace; a watch goes on.
	denied  int
	watched chan struct{} // closed with the first watch
	deleted chan struct{} // close: watches tell the deletion
}

func newOwners(t *testing.T) *owners {
	o := &owners{
		set: &appsv1.DaemonSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
			ObjectMeta: metav1.ObjectMeta{Namespace: weirSet.Namespace, Name: weirSet.Name, ResourceVersion: "7", UID: "1"},
		},
		ns:      corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: weirSet.Namespace}},
		watched: make(chan struct{}), deleted: make(chan struct{}),
	}
	o.standIn = newStandIn(t, withoutWatchList(nil))
	o.other = o.serve
	return o
}

func (o *owners) serve(w http.ResponseWriter, r *http.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	set := strings.Contains(r.URL.Path, "/daemonsets")
	switch {
	case r.URL.Query().Get("watch") != "" && set:
		o.mu.Unlock()
		defer o.mu.Lock()
		o.watch(w, r)
	case o.denied != 0 && (set || r.URL.Path == "/api/v1/namespaces/"+weirSet.Namespace):
		refuse(w, o.denied, metav1.StatusReasonForbidden)
	case set && o.answer != nil:
		o.answer(w, r)
	case r.URL.Path == "/apis/apps/v1/namespaces/weir-system/daemonsets/weir" && o.set != nil:
		answerWith(w, o.set)
	case set:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Path == "/api/v1/namespaces/weir-system":
		answerWith(w, &o.ns)
	default:
		return false
	}
	return true
}

// watch checks the selector without which a Role for a single object grants nothing.
func (o *owners) watch(w http.ResponseWriter, r *http.Request) {
	if q := r.URL.Query(); q.Get("fieldSelector") != "metadata.name=weir" || q.Get("resourceVersion") != "7" {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	select {
	case <-o.watched:
	default:
		close(o.watched)
	}
	select {
	case <-r.Context().Done():
		return
	case <-o.quit:
		return
	case <-o.deleted:
	}
	o.mu.Lock()
	last, _ := json.Marshal(o.set)
	o.mu.Unlock()
	_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: "DELETED", Object: runtime.RawExtension{Raw: last}})
	w.(http.Flusher).Flush()
	<-o.quit
}

func answerWith(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "refused",
		Details: &metav1.StatusDetails{Name: "weir", Kind: "daemonsets"},
	})
}

func (o *owners) config() kube.Config {
	return kube.Config{REST: &rest.Config{Host: o.URL}, DaemonSet: weirSet}
}

// asked is the answer to a source that has not run.
func (o *owners) asked(t *testing.T, limit time.Duration) (string, error) {
	t.Helper()
	src, err := kube.New(o.config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return src.NextPod(ctx)
}

func TestNextPodByTheAnswer(t *testing.T) {
	now := metav1.Now()
	for _, tt := range []struct {
		name string
		edit func(*owners)
		want string
	}{
		{"a rollout", func(*owners) {}, ""},
		{"created again", func(o *owners) { o.set.UID = "2" }, ""},
		{"deleted", func(o *owners) { o.set = nil }, "DaemonSet weir-system/weir is deleted"},
		{"being deleted", func(o *owners) { o.set.DeletionTimestamp = &now }, "DaemonSet weir-system/weir is being deleted"},
		{"namespace being deleted", func(o *owners) { o.ns.DeletionTimestamp = &now }, "namespace weir-system is being deleted"},
		{"namespace unreadable", func(o *owners) { o.ns.Name, o.ns.Kind = "", "" }, ""},
		{"a node of unknown labels", func(o *owners) {
			o.set.Spec.Template.Spec.NodeSelector = map[string]string{"edge": ""}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOwners(t)
			tt.edit(o)
			ends, err := o.asked(t, patience.For(30*time.Second))
			if err != nil || ends != tt.want {
				t.Errorf("got %q, %v, want %q", ends, err, tt.want)
			}
		})
	}
}

// Nothing but the API server's own word for the object is an end.
func TestNextPodIsUnknown(t *testing.T) {
	status := func(code int) func(*owners) {
		return func(o *owners) {
			o.answer = func(w http.ResponseWriter, _ *http.Request) { refuse(w, code, metav1.StatusReasonUnknown) }
		}
	}
	for _, tt := range []struct {
		name string
		edit func(*owners)
		want string
	}{
		{"401", status(http.StatusUnauthorized), "refused"},
		{"403", func(o *owners) { o.denied = http.StatusForbidden }, "refused"},
		{"500", status(http.StatusInternalServerError), "refused"},
		{"503", status(http.StatusServiceUnavailable), "refused"},
		{"a proxy's 404", func(o *owners) {
			o.answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no backend", http.StatusNotFound) }
		}, "could not find the requested resource"},
		{"noise", func(o *owners) {
			o.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) }
		}, ""},
		{"no answer", func(o *owners) { o.hangs = true }, "deadline exceeded"},
		{"no server", func(o *owners) { o.Close() }, "connection refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOwners(t)
			tt.edit(o)
			ends, err := o.asked(t, 300*time.Millisecond)
			if err == nil || ends != "" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, %v, want an error with %q", ends, err, tt.want)
			}
		})
	}
}

// A server that is back in time is believed.
func TestNextPodAsksAgain(t *testing.T) {
	o, asked := newOwners(t), 0
	o.answer = func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return
		}
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	if ends, err := o.asked(t, patience.For(30*time.Second)); err != nil || ends == "" {
		t.Errorf("got %q, %v", ends, err)
	}
}

func TestNextPodWithoutADaemonSet(t *testing.T) {
	src, err := kube.New(kube.Config{REST: &rest.Config{Host: "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := src.NextPod(t.Context()); !errors.Is(err, kube.ErrNoDaemonSet) {
		t.Errorf("got %v", err)
	}
}

// An uninstall takes the right to ask away, before the Pod ends or just after: the watch
// has the deletion all the same.
func TestNextPodOfAnUninstallThatRevokesTheRights(t *testing.T) {
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		o := newOwners(t)
		src := follow(t, o.config())
		<-o.watched
		o.mu.Lock()
		o.denied = code
		o.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if ends, err := src.NextPod(ctx); err == nil || ends != "" {
			t.Errorf("%d without a deletion: %q, %v", code, ends, err)
		}
		cancel()
		time.AfterFunc(150*time.Millisecond, func() { close(o.deleted) }) // while it is asked
		ctx, cancel = context.WithTimeout(t.Context(), patience.For(30*time.Second))
		if ends, err := src.NextPod(ctx); err != nil || ends != "DaemonSet weir-system/weir is deleted" {
			t.Errorf("%d with the deletion: %q, %v", code, ends, err)
		}
		cancel()
		src.stop()
	}
}

// The node decides, too: labels by the DaemonSet's selectors, and the deletion of the node.
func TestNextPodByTheNode(t *testing.T) {
	now := metav1.Now()
	affinity := func(op corev1.NodeSelectorOperator) func(*owners) {
		return func(o *owners) {
			o.set.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "edge", Operator: op}}},
				}},
			}}
		}
	}
	const unselected = "DaemonSet weir-system/weir does not select node edge-1 any more"
	for _, tt := range []struct {
		name string
		edit func(*owners)
		want string
	}{
		{"selected", func(o *owners) { o.set.Spec.Template.Spec.NodeSelector = map[string]string{"edge": "yes"} }, ""},
		{"label taken away", func(o *owners) { o.set.Spec.Template.Spec.NodeSelector = map[string]string{"edge": "no"} }, unselected},
		{"affinity", affinity(corev1.NodeSelectorOpExists), ""},
		{"affinity that excludes", affinity(corev1.NodeSelectorOpDoesNotExist), unselected},
		{"affinity of an unknown kind", affinity("Near"), ""},
		{"node being deleted", func(o *owners) { o.nodes[0].DeletionTimestamp = &now }, "node edge-1 is being deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOwners(t)
			o.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", ResourceVersion: "1", Labels: map[string]string{"edge": "yes"}}}}
			tt.edit(o)
			src := follow(t, o.config())
			src.first(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(30*time.Second))
			defer cancel()
			if ends, err := src.NextPod(ctx); err != nil || ends != tt.want {
				t.Errorf("got %q, %v, want %q", ends, err, tt.want)
			}
		})
	}
}
