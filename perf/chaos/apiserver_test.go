package chaos

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// A client hears of changes through every fault of the API server, and of those that it has
// missed for longer than the history.
func TestAClientFollowsThroughTheFaultsOfTheAPIServer(t *testing.T) {
	g, err := newGate(func(address string) (net.Listener, error) { return net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	a := newAPIServer(g)
	s := newServices()[0]
	put := func(resource string, documents ...[]byte) {
		t.Helper()
		if err := a.put(resource, documents...); err != nil {
			t.Fatal(err)
		}
	}
	put("services", s.render())
	put("endpointslices", s.renderSlices()...)
	put("nodes", []byte("{apiVersion: v1, kind: Node, metadata: {name: edge-1}}"))

	source, err := kube.New(kube.Config{REST: &rest.Config{Host: a.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		Store: discovery.Options{NodeName: "edge-1"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, func(*discovery.Update) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	has := func(when string, n int) {
		t.Helper()
		for deadline := time.Now().Add(patience.For(40 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
			list := source.Services()
			if len(list) == 1 && len(list[0].Ports) == 1 && len(list[0].Ports[0].Endpoints) == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d endpoints are wanted: %+v, %q", when, n, list, source.Errors())
			}
		}
	}
	has("at first", 2)

	change := func() int {
		s.flip(1)
		put("endpointslices", s.renderSlices()...)
		if s.listed[1] {
			return 4
		}
		return 2
	}
	g.hole()
	n := change()
	g.open()
	has("after a black hole", n)
	g.slow(10 * time.Millisecond)
	has("slowly", change())
	g.open()
	for _, more := range []int{0, mostHistory} {
		if err := g.die(); err != nil {
			t.Fatal(err)
		}
		n := change()
		for i := range more {
			put("nodes", fmt.Appendf(nil, "{apiVersion: v1, kind: Node, metadata: {name: n%d}}", i%3))
		}
		if err := g.revive(); err != nil {
			t.Fatal(err)
		}
		has(fmt.Sprintf("after a death with %d more changes", more), n)
	}
}
