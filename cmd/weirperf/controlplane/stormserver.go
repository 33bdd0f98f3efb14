package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/weirlb/weir/discovery/kube/client"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// markService has a single endpoint, which the last event of a storm changes.
const markService = "mark"

// stormAPI is as much of an API server as informers need to list and watch:
// lists, and a watch of EndpointSlices to which storms are played. Lists as
// streams are refused, and the informers ask again in the older way.
type stormAPI struct {
	cluster *cluster
	events  int

	mu      sync.Mutex
	version int
	watch   chan []byte // to the watch of slices, nil before the watch begins
	ended   <-chan struct{}
}

// serveStorm serves until in ends, after a line of JSON that says where.
func serveStorm(ctx context.Context, events int, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a := &stormAPI{cluster: newCluster(stormServices, stormEndpoints), events: events, version: 1}
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = srv.Close()
	}()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	fmt.Fprintf(out, "{\"url\":\"http://%s\"}\n", l.Addr())
	if err := srv.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func (a *stormAPI) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", a.resource(corev1.SchemeGroupVersion, false, func() runtime.Object {
		list := &corev1.NodeList{}
		for _, n := range nodeObjects() {
			list.Items = append(list.Items, *n)
		}
		return list
	}))
	mux.HandleFunc("GET /api/v1/services", a.resource(corev1.SchemeGroupVersion, false, func() runtime.Object {
		list := &corev1.ServiceList{}
		for i := range a.cluster.sizes {
			list.Items = append(list.Items, *serviceObject(i))
		}
		mark := serviceObject(len(a.cluster.sizes))
		mark.Name = markService
		list.Items = append(list.Items, *mark)
		return list
	}))
	mux.HandleFunc("GET /apis/discovery.k8s.io/v1/endpointslices", a.resource(discoveryv1.SchemeGroupVersion, true, func() runtime.Object {
		list := &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{*a.mark(0)}}
		for i := range a.cluster.sizes {
			for j := range a.cluster.sliceCount(i) {
				list.Items = append(list.Items, *a.cluster.sliceObject(i, j, 0))
			}
		}
		return list
	}))
	mux.HandleFunc("POST /storm", a.storm)
	return mux
}

// resource answers list and watch.
func (a *stormAPI) resource(gv schema.GroupVersion, storms bool, list func() runtime.Object) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", protobufType)
		switch {
		case q.Has("sendInitialEvents"):
			http.Error(w, "lists are not streamed", http.StatusBadRequest)
		case q.Get("watch") == "true" || q.Get("watch") == "1":
			w.Header().Set("Content-Type", protobufType+";stream=watch")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			if storms {
				a.follow(w, r)
			} else {
				<-r.Context().Done()
			}
		default:
			o := list()
			if m, ok := o.(metav1.ListInterface); ok {
				m.SetResourceVersion("1")
			}
			_, _ = w.Write(encode(gv, o))
		}
	}
}

// follow writes what storms play until the client goes.
func (a *stormAPI) follow(w http.ResponseWriter, r *http.Request) {
	ch := make(chan []byte, 64)
	a.mu.Lock()
	a.watch, a.ended = ch, r.Context().Done()
	a.mu.Unlock()
	for {
		select {
		case <-r.Context().Done():
			return
		case b := <-ch:
			if _, err := w.Write(b); err != nil {
				return
			}
			if len(ch) == 0 {
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
}

// storm records the events first, and then plays them as fast as they are
// taken.
func (a *stormAPI) storm(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.URL.Query().Get("n"))
	events := a.record(n)
	a.mu.Lock()
	ch, ended := a.watch, a.ended
	a.mu.Unlock()
	if ch == nil {
		http.Error(w, "nobody watches", http.StatusConflict)
		return
	}
	size := int64(0)
	for _, e := range events {
		select {
		case ch <- e:
			size += int64(len(e))
		case <-ended:
			http.Error(w, "the watch has ended", http.StatusConflict)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]int64{"bytes": size})
}

// record makes the events of storm n, encoded: endpoints of slices are replaced in turn.
// The last event is the mark.
func (a *stormAPI) record(n int) [][]byte {
	var out [][]byte
	pick := a.cluster.anySlice()
	replaced := map[target]int{}
	for i := range a.events - 1 {
		t := pick(i)
		size := min(perSlice, a.cluster.sizes[t.service]-t.slice*perSlice)
		replaced[t] = (replaced[t] + 1) % (size + 1)
		out = append(out, a.event(a.cluster.sliceObject(t.service, t.slice, replaced[t])))
	}
	return append(out, a.event(a.mark(n)))
}

func (a *stormAPI) mark(n int) *discoveryv1.EndpointSlice {
	s := a.cluster.sliceObject(0, 0, 0)
	s.Name, s.Labels[discoveryv1.LabelServiceName] = markService, markService
	s.Endpoints = s.Endpoints[:1]
	s.Endpoints[0].Addresses = []string{stormMark(n)}
	return s
}

// event is a change of a slice as it stands in a watch stream.
func (a *stormAPI) event(s *discoveryv1.EndpointSlice) []byte {
	a.mu.Lock()
	a.version++
	s.ResourceVersion = strconv.Itoa(a.version)
	a.mu.Unlock()
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), protobufType)
	b := &bytes.Buffer{}
	enc := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(b), client.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, discoveryv1.SchemeGroupVersion))
	err := enc.Encode(&metav1.WatchEvent{Type: string(watch.Modified), Object: runtime.RawExtension{Raw: encode(discoveryv1.SchemeGroupVersion, s)}})
	if err != nil {
		panic(err) // the type is ours
	}
	return b.Bytes()
}

// encode is an object as an API server encodes it.
func encode(gv schema.GroupVersion, o runtime.Object) []byte {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), protobufType)
	b, err := runtime.Encode(client.Codecs.EncoderForVersion(info.Serializer, gv), o)
	if err != nil {
		panic(err) // the type is ours
	}
	return b
}
