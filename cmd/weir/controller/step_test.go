package controller

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// step is a moment of a controller's life: its write of a status, number write from 1, on the way
// to the API server, or done there but not answered yet.
type step struct {
	write int
	done  bool
}

// killer is before the API server. It closes killed at a step, and from then on passes nothing.
type killer struct {
	step
	to     http.Handler
	writes atomic.Int64
	dead   atomic.Bool
	killed chan struct{}
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k.dead.Load() {
		panic(http.ErrAbortHandler)
	}
	if r.Method == http.MethodGet || !strings.HasSuffix(r.URL.Path, "/status") || k.writes.Add(1) != int64(k.write) {
		k.to.ServeHTTP(w, r)
		return
	}
	if k.done {
		k.to.ServeHTTP(httptest.NewRecorder(), r)
	}
	k.dead.Store(true)
	close(k.killed)
	panic(http.ErrAbortHandler)
}

// killAt runs a controller until a step. It reports whether the controller came to it.
func (b *bed) killAt(s step) bool {
	b.t.Helper()
	cfg := b.cluster.REST(b.t)
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	to, err := url.Parse(cfg.Host)
	if err != nil {
		b.t.Fatal(err)
	}
	k := &killer{step: s, killed: make(chan struct{}), to: &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) },
		ErrorLog: log.New(io.Discard, "", 0), // of watches that end with their controller
	}}
	server := httptest.NewServer(k)
	defer server.Close()
	defer server.CloseClientConnections()
	kubeconfig := filepath.Join(b.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	kill := b.start("--lease", "", "--kubeconfig", kubeconfig)
	defer kill()
	select {
	case <-k.killed:
		return true
	case <-time.After(patience.For(20 * time.Second)):
		return false
	}
}

// The controller is killed at each of its writes: before the API server has it, and when the API
// server has it and the controller does not know. No address moves, none is given twice.
func TestKubeControllerKilledAtEachWriteMovesNoAddress(t *testing.T) {
	const services = 2
	b := newBed(t, poolYAML("p", "addresses: [10.64.0.0/24]"))
	h := &history{last: map[string]string{}}
	h.follow(t, b)
	kills := 0
	for write := 1; write <= services; write++ {
		for _, done := range []bool{false, true} {
			for i := range services {
				b.service(fmt.Sprintf("s%d-%t-%d", write, done, i), nil)
			}
			if b.killAt(step{write, done}) {
				kills++
			}
			kill := b.start("--lease", "")
			b.allAllocated()
			kill()
		}
	}
	if kills != 2*services {
		t.Errorf("%d kills: want one before and one after the write of each of %d Services", kills, services)
	}
	b.site.Eventually("all addresses are seen", func(ctx context.Context) error {
		list, err := b.client.CoreV1().Services(b.site.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for i := range list.Items {
			s := &list.Items[i]
			if now := s.Status.LoadBalancer.Ingress[0].IP; h.last[string(s.UID)] != now {
				return fmt.Errorf("%s of %s is not", now, s.Name)
			}
		}
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.moved) > 0 {
		t.Errorf("addresses moved: %q", h.moved)
	}
}

// Of two Services that share an address the older becomes Local while no controller runs. The next
// one is killed at its write, before the API server has it and after. The younger keeps the address,
// for it has changed nothing, and the older gets another.
func TestKubeControllerKilledAmidAConflictMovesOnlyWhoBeganIt(t *testing.T) {
	for _, done := range []bool{false, true} {
		b := newBed(t, poolYAML("p", "addresses: [10.64.0.0/24]"))
		share := func(port int32) func(*corev1.Service) {
			return func(s *corev1.Service) {
				s.Annotations = map[string]string{"metallb.io/allow-shared-ip": "key"}
				s.Spec.Ports[0].Port = port
			}
		}
		kill := b.start("--lease", "")
		b.service("older", share(80))
		b.eventually("older", "10.64.0.0 "+addresspool.ReasonAllocated)
		time.Sleep(1100 * time.Millisecond) // the time of creation has seconds
		b.service("younger", share(81))
		b.eventually("younger", "10.64.0.0 "+addresspool.ReasonAllocated)
		kill()
		h := &history{last: map[string]string{}}
		h.follow(t, b)
		_, s := b.state("older")
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		if _, err := b.client.CoreV1().Services(b.site.Namespace).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !b.killAt(step{1, done}) {
			t.Fatal("the controller writes nothing")
		}
		kill = b.start("--lease", "")
		b.eventually("older", "10.64.0.1 "+addresspool.ReasonAllocated) // the reason before is the conflict
		b.eventually("younger", "10.64.0.0 "+addresspool.ReasonAllocated)
		kill()
		h.mu.Lock()
		if len(h.moved) != 1 || !strings.Contains(h.moved[0], "older") {
			t.Errorf("done %v: moved: %q", done, h.moved)
		}
		h.mu.Unlock()
	}
}

// A sharing key may have 256 KiB, a condition must not: all nodes get the status.
func TestKubeControllerOfALongSharingKey(t *testing.T) {
	b := newBed(t, poolYAML("p", "addresses: [10.65.0.0/24]"))
	b.start("--lease", "")
	for i, name := range []string{"a", "b"} {
		b.service(name, func(s *corev1.Service) {
			s.Annotations = map[string]string{"metallb.io/allow-shared-ip": strings.Repeat("k", 100_000)}
			s.Spec.Ports[0].Port = int32(80 + i)
		})
		s := b.eventually(name, "10.65.0.0 "+addresspool.ReasonAllocated)
		if n := s.Status.Size(); n > 4096 {
			t.Errorf("the status has %d bytes", n)
		}
	}
}
