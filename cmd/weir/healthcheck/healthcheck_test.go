package healthcheck

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/topology"
)

var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

type setting struct {
	*Checks
	healthy atomic.Bool
}

func newChecks(t *testing.T) *setting {
	t.Helper()
	s := &setting{}
	s.healthy.Store(true)
	s.Checks = New(Config{
		NodeName: "here", Healthy: s.healthy.Load, Log: slog.New(slog.DiscardHandler), Retry: 10 * time.Millisecond,
	})
	s.SetAddresses(loopback)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// endpoint is "ADDRESS NODE [not-ready|terminating]".
func service(port uint16, endpoints ...string) *discovery.Service {
	s := &discovery.Service{Name: discovery.ServiceName{Namespace: "ns", Name: "web"}, HealthCheckNodePort: port, Ports: []discovery.Port{{}, {}}}
	for _, e := range endpoints {
		f := strings.Fields(e)
		for i := range s.Ports { // an address with two ports counts once
			s.Ports[i].Endpoints = append(s.Ports[i].Endpoints, topology.Endpoint{
				AddrPort: netip.AddrPortFrom(netip.MustParseAddr(f[0]), uint16(80+i)), NodeName: f[1],
				Ready: len(f) == 2, Serving: true, Terminating: len(f) > 2 && f[2] == "terminating",
			})
		}
	}
	return s
}

// dualStack says that a Service has both families, whatever its endpoints.
func dualStack(s *discovery.Service) *discovery.Service {
	s.Families = discovery.IPv4 | discovery.IPv6
	return s
}

func put(svc ...*discovery.Service) *discovery.Update { return &discovery.Update{Put: svc} }

func ask(port uint16) (status int, weight, body string, err error) {
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/any/path", port))
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(b), err
}

func TestChecksAnswerAsKubeProxyDoes(t *testing.T) {
	c := newChecks(t)
	port := freePort(t)
	for _, tt := range []struct {
		name      string
		endpoints []string
		unhealthy bool
		status    int
		local     int
	}{
		{"none", nil, false, 503, 0},
		{"one here", []string{"10.0.0.1 here"}, false, 200, 1},
		{"two here, one there", []string{"10.0.0.1 here", "10.0.0.2 here", "10.0.0.3 there"}, false, 200, 2},
		{"only there", []string{"10.0.0.3 there"}, false, 503, 0},
		{"not ready", []string{"10.0.0.1 here not-ready"}, false, 503, 0},
		{"terminating and serving", []string{"10.0.0.1 here terminating"}, false, 503, 0},
		{"the other family apart", []string{"10.0.0.1 here", "fd00::1 here", "fd00::2 here"}, false, 200, 1},
		{"a family that it lacks", []string{"fd00::1 here", "fd00::2 here"}, false, 200, 2},
		{"Weir does not work", []string{"10.0.0.1 here"}, true, 503, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.healthy.Store(!tt.unhealthy)
			c.Apply(put(service(port, tt.endpoints...)))
			status, weight, body, err := ask(port)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", tt.local, !tt.unhealthy)
			if status != tt.status || weight != fmt.Sprint(tt.local) || body != want {
				t.Errorf("%d, weight %s\n%s\nwant %d\n%s", status, weight, body, tt.status, want)
			}
		})
	}
}

// A family that a Service has is answered for by its own endpoints, also when
// there are none.
func TestChecksKeepTheFamiliesOfADualStackServiceApart(t *testing.T) {
	c := newChecks(t)
	port := freePort(t)
	c.Apply(put(dualStack(service(port, "fd00::1 here"))))
	if status, weight, _, err := ask(port); err != nil || status != 503 || weight != "0" {
		t.Errorf("over IPv4: %d, weight %s, %v", status, weight, err)
	}
}

func TestChecksFollowTheService(t *testing.T) {
	c := newChecks(t)
	first, second := freePort(t), freePort(t)
	c.Apply(put(service(first, "10.0.0.1 here")))
	c.Apply(put(service(second, "10.0.0.1 here")))
	if _, _, _, err := ask(first); err == nil {
		t.Error("the old port still answers")
	}
	if status, _, _, err := ask(second); err != nil || status != 200 {
		t.Errorf("the new port: %d, %v", status, err)
	}
	c.Apply(&discovery.Update{Deleted: []discovery.ServiceName{{Namespace: "ns", Name: "web"}}})
	if _, _, _, err := ask(second); err == nil {
		t.Error("the port of a deleted Service still answers")
	}
}

// The kernel serves a refused Service whole: kube-proxy knows the endpoints, and Weir does not.
func TestChecksLeaveARefusedServiceToTheKernel(t *testing.T) {
	c := newChecks(t)
	port := freePort(t)
	c.Apply(put(service(port, "10.0.0.1 here")))
	if status, _, _, err := ask(port); err != nil || status != 200 {
		t.Errorf("before: %d, %v", status, err)
	}
	refused := service(port)
	refused.Refused = "older Services leave too few of the frontends"
	c.Apply(put(refused))
	l, err := net.Listen("tcp", netip.AddrPortFrom(loopback[0], port).String())
	if err != nil {
		t.Fatalf("kube-proxy cannot answer: %v", err)
	}
	l.Close()
	c.Apply(put(service(port, "10.0.0.1 here")))
	if status, _, _, err := ask(port); err != nil || status != 200 {
		t.Errorf("when it is served again: %d, %v", status, err)
	}
}

// kube-proxy may have the port, and may leave it.
func TestChecksTakeAPortOnceItIsFree(t *testing.T) {
	c := newChecks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	c.Apply(put(service(port, "10.0.0.1 here")))
	if f := c.Faults(); len(f) != 1 || !f[0].Shared {
		t.Errorf("a port in use: %v", f)
	}
	l.Close()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(time.Millisecond) {
		if status, _, _, err := ask(port); err == nil && status == 200 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("not taken: %d, %v", status, err)
		}
	}
}

func TestChecksTellWhatCannotBeListenedOn(t *testing.T) {
	c := newChecks(t)
	c.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")}) // not this host's
	c.Apply(put(service(freePort(t), "10.0.0.1 here")))
	if f := c.Faults(); len(f) != 1 || f[0].Shared || f[0].Service.String() != "ns/web" || f[0].Err == nil {
		t.Errorf("faults are %v", f)
	}
	c.SetAddresses(loopback)
	if f := c.Faults(); len(f) != 0 {
		t.Errorf("faults are %v", f)
	}
}

// The port of another Service, or of Weir itself, has the answers of that: this is no port that
// kube-proxy shares.
func TestChecksTellWhoAnswersOnThePort(t *testing.T) {
	c := newChecks(t)
	port, own := freePort(t), freePort(t)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", own))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.cfg.Own = func(p uint16) string {
		if p == own {
			return "healthzBindAddress"
		}
		return ""
	}
	first, second, third := service(port, "10.0.0.1 here"), service(port, "10.0.0.1 there"), service(own, "10.0.0.1 here")
	second.Name.Name, third.Name.Name = "second", "third"
	c.Apply(put(first))
	c.Apply(put(second))
	c.Apply(put(third))
	got := map[string]Fault{}
	for _, f := range c.Faults() {
		got[f.Service.Name] = f
	}
	for name, want := range map[string]string{"second": "is the healthCheckNodePort of Service ns/web", "third": "is Weir's own (healthzBindAddress)"} {
		if f := got[name]; f.Shared || f.Err == nil || !strings.Contains(f.Err.Error(), want) {
			t.Errorf("%s: %+v, want %q", name, f, want)
		}
	}
	c.SetAddresses([]netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("198.51.100.78")})
	for _, f := range c.Faults() {
		if text := f.Err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "; ") {
			t.Errorf("%q is not a line", text)
		}
	}
}

// A load balancer in front is to choose another node when the operator has drained all
// endpoints of this node, as when they terminate.
func TestChecksDoNotCountDrainedEndpoints(t *testing.T) {
	c := newChecks(t)
	port := freePort(t)
	c.Apply(put(service(port, "10.0.0.1 here", "10.0.0.2 here")))
	expect := func(when string, status, weight int) {
		t.Helper()
		if s, w, _, err := ask(port); err != nil || s != status || w != fmt.Sprint(weight) {
			t.Errorf("%s: %d, weight %s, %v; want %d, %d", when, s, w, err, status, weight)
		}
	}
	drain := func(addrs ...string) {
		set := translate.DrainedSet{}
		for _, a := range addrs {
			d, _ := translate.ParseDrained(a)
			set[d] = time.Time{}
		}
		c.SetReadiness(&translate.Readiness{Drained: set})
	}
	expect("none is drained", 200, 2)
	drain("10.0.0.1:80")
	expect("a port of an address", 200, 2)
	drain("10.0.0.1:80", "10.0.0.1:81")
	expect("an address", 200, 1)
	c.Apply(put(service(port, "10.0.0.1 here")))
	expect("after an update", 503, 0)
	drain()
	expect("not any more", 200, 1)
}
