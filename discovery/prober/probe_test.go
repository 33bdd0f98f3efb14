package prober

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// expect probes a server, which must pass with want "", or fail for that reason.
func expect(t *testing.T, text string, at net.Addr, want string) {
	t.Helper()
	err := Dialer(Straight).Probe(context.Background(), &Target{At: netip.MustParseAddrPort(at.String()), Check: check(t, text)})
	switch {
	case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want %q", text, err, want)
	}
}

// closedTCP is an address on which nothing listens.
func closedTCP(t *testing.T) net.Addr {
	l := listener(t)
	l.Close()
	return l.Addr()
}

func listener(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestTCP(t *testing.T) {
	expect(t, "tcpSocket: {}", listener(t).Addr(), "")
	expect(t, "tcpSocket: {}", closedTCP(t), "connection refused")
}

// TestLateAnswer has a connection whose success is told after the time of the probe.
func TestLateAnswer(t *testing.T) {
	late := Dialer(func(ctx context.Context, network string, to *Target) (net.Conn, error) {
		c, err := Straight(ctx, network, to)
		<-ctx.Done()
		return c, err
	})
	to := &Target{At: netip.MustParseAddrPort(listener(t).Addr().String()), Check: check(t, "tcpSocket: {}")}
	if err := late.Probe(context.Background(), to); err == nil || err.Error() != "no answer in 1s" {
		t.Errorf("a late answer: %v", err)
	}
}

func TestHTTP(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "shop.example" || r.Header.Get("X-Check") != "1" || r.UserAgent() != userAgent || r.URL.Query().Get("a") != "b" {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/fails", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("a", 1<<16)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for scheme, s := range map[string]*httptest.Server{"HTTP": httptest.NewServer(mux), "HTTPS": httptest.NewTLSServer(mux)} {
		defer s.Close()
		of := func(path string) string {
			return "{httpGet: {path: '" + path + "', scheme: " + scheme + ", host: shop.example, httpHeaders: [{name: X-Check, value: '1'}]}}"
		}
		expect(t, of("/ok?a=b"), s.Listener.Addr(), "")
		expect(t, of("/elsewhere"), s.Listener.Addr(), "")
		expect(t, of("/endless"), s.Listener.Addr(), "")
		expect(t, of("/fails"), s.Listener.Addr(), "HTTP status 503")
		expect(t, of("/hangs"), s.Listener.Addr(), "no answer in 1s")
		expect(t, of("/ok"), closedTCP(t), "connection refused")
	}
	plain := httptest.NewServer(mux)
	defer plain.Close()
	expect(t, "httpGet: {scheme: HTTPS}", plain.Listener.Addr(), "not TLS")
}

func TestGRPC(t *testing.T) {
	l, without := listener(t), listener(t)
	s, h := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(s, h)
	h.SetServingStatus("cart", healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus("stock", healthpb.HealthCheckResponse_NOT_SERVING)
	bare := grpc.NewServer()
	go func() { _ = s.Serve(l) }()
	go func() { _ = bare.Serve(without) }()
	defer s.Stop()
	defer bare.Stop()
	expect(t, "grpc: {}", l.Addr(), "")
	expect(t, "grpc: {service: cart}", l.Addr(), "")
	expect(t, "grpc: {service: stock}", l.Addr(), "gRPC status NOT_SERVING")
	expect(t, "grpc: {service: other}", l.Addr(), `does not know "other"`)
	expect(t, "grpc: {}", without.Addr(), "no gRPC health service")
	expect(t, "grpc: {}", closedTCP(t), "connection")            // refused, or ended: gRPC tells one of them
	expect(t, "grpc: {}", listener(t).Addr(), "no answer in 1s") // it accepts, and says nothing
}

func TestUDP(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) != "silence" {
				_, _ = c.WriteTo([]byte("other"), from)
				_, _ = c.WriteTo(append([]byte("re: "), b[:n]...), from)
			}
		}
	}()
	expect(t, "udp: {send: ping}", c.LocalAddr(), "")
	expect(t, "udp: {}", c.LocalAddr(), "")
	expect(t, "udp: {send: ping, expect: 're: ping'}", c.LocalAddr(), "")
	expect(t, "udp: {send: ping, expect: pong}", c.LocalAddr(), "not as expected")
	expect(t, "udp: {send: silence}", c.LocalAddr(), "no answer in 1s")
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	expect(t, "udp: {send: ping}", gone.LocalAddr(), "connection refused")
}

func TestThatTheNodeCannotSendIsNotTheEndpointsFault(t *testing.T) {
	full := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	if err := inWords(full, time.Second); !errors.Is(err, ErrNode) {
		t.Errorf("without a free descriptor: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Dialer(Straight).Probe(ctx, &Target{At: netip.MustParseAddrPort("127.0.0.1:1"), Check: check(t, "tcpSocket: {}")}); !errors.Is(err, ErrNode) {
		t.Errorf("at the end of the process: %v", err)
	}
}
