package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// cut answers 200 with the first half of a list.
func cut(w http.ResponseWriter, kind string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"2"},"items":[`, kind)
}

// until polls for a state of a source.
func (f *follower) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience.For(30 * time.Second)); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: faults %v, contacts %v, errors %v\n%s", what, f.Faults(), f.Contacts(), f.WatchErrors(), f.log.String())
		}
	}
}

func (f *follower) contact(resource string) (out kube.Contact) {
	for _, c := range f.Contacts() {
		if c.Resource == resource {
			out = c
		}
	}
	return out
}

func (f *follower) connected(resource string) bool { return f.contact(resource).Connected }

// An API server that answers 200 and does not send what was asked for is at fault, whatever it is that
// breaks off.
func TestAnswerWithoutItsContentsIsAFault(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"a list that is cut short": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				return false
			}
			cut(w, "EndpointSliceList")
			return true
		},
		"a list that cannot be decoded": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","items":[{"endpoints":7}]}`)
			return true
		},
		"a list of events that ends early": func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"type":"ADDED","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"namespace":"default","name":"web-1","resourceVersion":"2"}}}`)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newStandIn(t, withoutWatchList(nil))
			server.other = func(w http.ResponseWriter, r *http.Request) bool {
				if path.Base(r.URL.Path) != "endpointslices" || !strings.Contains(name, "events") && r.URL.Query().Get("sendInitialEvents") != "" {
					return false
				}
				return answer(w, r)
			}
			f := follow(t, kube.Config{REST: &rest.Config{Host: server.URL}})
			f.until(t, "no fault", func() bool {
				return len(f.Faults()) == 1 && f.Faults()[0].Resource == "endpointslices" && f.WatchErrors()["endpointslices"] > 0 &&
					f.connected("services")
			})
			if f.connected("endpointslices") || len(f.Errors()) == 0 || !f.GoodAt().IsZero() {
				t.Errorf("contacts %v, errors %v, good at %v", f.Contacts(), f.Errors(), f.GoodAt())
			}
		})
	}
}

// A source that was current is so as of the last list that was completed or event that was decoded.
// A watch that opens proves nothing, a bookmark does.
func TestSourceIsCurrentAsOfTheLastListOrEvent(t *testing.T) {
	t.Parallel()
	const well, broken, silent, bookmarks = 0, 1, 2, 3
	var mode atomic.Int32
	opened, expire := make(chan struct{}, 100), make(chan struct{})
	server := newStandIn(t, withoutWatchList(nil))
	server.other = func(w http.ResponseWriter, r *http.Request) bool {
		if path.Base(r.URL.Path) != "endpointslices" || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		if r.URL.Query().Get("watch") == "" {
			if mode.Load() == broken {
				cut(w, "EndpointSliceList")
				return true
			}
			return false
		}
		event := func(kind string, object any) {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Content-Type", "application/json")
		if mode.Load() == silent {
			mode.Store(bookmarks)
			w.WriteHeader(http.StatusTooManyRequests) // the informer watches again, without a list
			return true
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		opened <- struct{}{}
		select {
		case <-expire:
		case <-r.Context().Done():
			return true
		case <-server.quit:
			return true
		}
		if mode.Load() == bookmarks {
			event("BOOKMARK", map[string]any{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": map[string]any{"resourceVersion": "9"}})
			<-server.quit
			return true
		}
		event("ERROR", map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410})
		return true
	}
	f := follow(t, kube.Config{REST: &rest.Config{Host: server.URL}})
	f.until(t, "not in sync", func() bool { return f.Synced() && len(f.Faults()) == 0 })
	opens := func() { // each watch is waited for: one that opens late would take another mode
		t.Helper()
		select {
		case <-opened:
		case <-time.After(patience.For(time.Minute)):
			t.Fatal("no watch opens")
		}
	}
	ends := func() {
		t.Helper()
		select {
		case expire <- struct{}{}:
		case <-time.After(patience.For(time.Minute)):
			t.Fatal("no watch waits")
		}
	}
	opens()
	first := f.contact("endpointslices").Last

	mode.Store(broken)
	ends()
	failures := func(n uint64) func() bool {
		return func() bool { return f.WatchErrors()["endpointslices"] >= n }
	}
	f.until(t, "lists that are cut short are not counted", failures(1))
	if f.connected("endpointslices") || len(f.Faults()) != 1 || !f.contact("endpointslices").Last.Equal(first) || f.GoodAt().After(first) {
		t.Errorf("contacts %v, faults %v, good at %v, was at %v", f.Contacts(), f.Faults(), f.GoodAt(), first)
	}

	mode.Store(well)
	f.until(t, "a list that is completed leaves the fault", func() bool { return f.connected("endpointslices") && f.contact("endpointslices").Last.After(first) })

	opens()
	mode.Store(silent)
	ends() // the watch after the list is refused, the next opens
	opens()
	if f.connected("endpointslices") {
		t.Error("a watch that has opened ends the fault")
	}
	ends() // it sends a bookmark
	f.until(t, "a bookmark leaves the fault", func() bool { return f.connected("endpointslices") })
}
