package explain

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery"
)

// heapWriter is an HTTP response that measures, between writes, how much
// memory is reachable.
type heapWriter struct {
	header            http.Header
	status            int
	written, measured int
	most              uint64 // bytes of heap
}

func (w *heapWriter) Header() http.Header    { return w.header }
func (w *heapWriter) WriteHeader(status int) { w.status = status }

func (w *heapWriter) Write(b []byte) (int, error) {
	w.written += len(b)
	if w.written-w.measured > 2<<20 {
		w.measured = w.written
		w.most = max(w.most, liveHeap())
	}
	return len(b), nil
}

// liveHeap is the size of what is reachable.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The process that moves packets must not hold the explanation of a cluster.
func TestDaemonHoldsTheExplanationOfOneServiceAtATime(t *testing.T) {
	const services, endpoints, room = 10_000, 10, 4 << 20
	daemon := &answer{}
	var addrs []string
	for i := range endpoints {
		addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), 80).String())
	}
	ports := testService(nil, addrs...).Ports
	for i := range services {
		daemon.services = append(daemon.services, testService(func(s *discovery.Service) {
			s.Name.Name, s.Ports = fmt.Sprintf("web-%05d", i), ports
		}))
	}
	h, w := api.Handler(daemon), &heapWriter{header: http.Header{}}
	before := liveHeap()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/explain", nil))
	if w.written < 2*room || w.measured == 0 {
		t.Fatalf("an answer of %d bytes shows nothing", w.written)
	}
	if w.most > before+room {
		t.Errorf("%d bytes were held for an answer of %d; want at most %d", w.most-before, w.written, room)
	}
	runtime.KeepAlive(daemon)
}
