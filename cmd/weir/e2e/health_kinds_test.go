package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Endpoints of both families pass and fail checks of each kind beside HTTP, by real servers.
func TestWireHealthCheckKinds(t *testing.T) {
	t.Parallel()
	const text = "{%s, periodSeconds: 1, failureThreshold: 2, successThreshold: 1}"
	kinds := []struct {
		name, check, reason string
		serve               func(*testing.T, *fixture, netip.Addr, *atomic.Bool)
	}{
		{"https", "httpGet: {port: 9443, scheme: HTTPS}", "port 9443: HTTP status 503", serveHTTPS},
		{"grpc", "grpc: {port: 9090, service: cart}", "port 9090: gRPC status NOT_SERVING", serveGRPC},
		{"tcp", "tcpSocket: {port: 9091}", "port 9091: connection refused", serveWhileWell},
		{"udp", "udp: {port: 9053, send: ping, expect: pong}", "port 9053: no answer in 1s", serveDatagrams},
		{"udp-unreachable", "udp: {port: 9054}", "port 9054: connection refused", nil}, // served with tcp
	}
	var services []service
	for i, k := range kinds {
		services = append(services, service{name: k.name, index: uint8(41 + i), endpoints: []endpoint{attached},
			annotations: map[string]string{"weir.dev/health-check": fmt.Sprintf(text, k.check)}})
	}
	for _, cache := range caches {
		t.Run("cache="+cache, func(t *testing.T) {
			f := ownFixture(t, options{services: services, extra: "flowCache: {mode: " + cache + "}\n"})
			ill := &atomic.Bool{}
			for _, k := range kinds {
				if k.serve == nil {
					continue
				}
				for _, six := range []bool{false, true} {
					k.serve(t, f, attached.addr(six), ill)
				}
			}
			for _, state := range []string{"passing", "failing", "passing"} {
				ill.Store(state == "failing")
				for _, k := range kinds {
					if e := f.untilHealth(t, "test/"+k.name, attached, "", state); state == "failing" && e.Health.Reason != k.reason {
						t.Errorf("%s fails for %q, want %q", k.name, e.Health.Reason, k.reason)
					}
				}
			}
		})
	}
}

func serveHTTPS(t *testing.T, f *fixture, a netip.Addr, ill *atomic.Bool) {
	l, err := f.ZoneA.Listen("tcp", netip.AddrPortFrom(a, 9443).String())
	must(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	must(t, s.Listener.Close())
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
}

// cart is a health server whose answer follows a switch.
type cart struct {
	*health.Server
	ill *atomic.Bool
}

func (c cart) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if r.Service != "cart" || c.ill.Load() {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func serveGRPC(t *testing.T, f *fixture, a netip.Addr, ill *atomic.Bool) {
	l, err := f.ZoneA.Listen("tcp", netip.AddrPortFrom(a, 9090).String())
	must(t, err)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, cart{health.NewServer(), ill})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

func serveDatagrams(t *testing.T, f *fixture, a netip.Addr, ill *atomic.Bool) {
	c, err := f.ZoneA.ListenPacket("udp", netip.AddrPortFrom(a, 9053).String())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if !ill.Load() && strings.HasPrefix(string(b[:n]), "ping") {
				_, _ = c.WriteTo([]byte("pong"), from)
			}
		}
	}()
}

// serveWhileWell has sockets of TCP and UDP, which are closed while the endpoint is ill.
func serveWhileWell(t *testing.T, f *fixture, a netip.Addr, ill *atomic.Bool) {
	ctx := t.Context()
	until := func(state bool) {
		for ill.Load() != state && ctx.Err() == nil {
			pauseFor(ctx, 20*time.Millisecond)
		}
	}
	go func() {
		for ctx.Err() == nil {
			l, err := f.ZoneA.Listen("tcp", netip.AddrPortFrom(a, 9091).String())
			if err != nil {
				t.Error(err)
				return
			}
			c, err := f.ZoneA.ListenPacket("udp", netip.AddrPortFrom(a, 9054).String())
			if err != nil {
				t.Error(err)
				return
			}
			go answer(c)
			until(true)
			l.Close()
			c.Close()
			until(false)
		}
	}()
}

// answer answers datagrams until the socket is closed.
func answer(c net.PacketConn) {
	b := make([]byte, 512)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte("well"), from)
	}
}
