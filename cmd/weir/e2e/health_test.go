package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// checkPort is where servers of the tests answer health checks.
const checkPort = 8081

// checked has a Service check its endpoints there.
var checked = map[string]string{
	"weir.dev/health-check": fmt.Sprintf("{httpGet: {path: /healthz, port: %d}, periodSeconds: 1, failureThreshold: 2, successThreshold: 1}", checkPort),
}

// caches are the values of flowCache.mode.
var caches = []string{"off", "auto"}

// answersChecks has an endpoint answer health checks with 200, or with 503 while ill is set.
func (f *fixture) answersChecks(t *testing.T, n *netlab.Namespace, e endpoint) (ill *atomic.Bool) {
	t.Helper()
	ill = &atomic.Bool{}
	for _, six := range []bool{false, true} {
		l, err := n.Listen("tcp", netip.AddrPortFrom(e.addr(six), checkPort).String())
		must(t, err)
		s := &http.Server{ReadHeaderTimeout: within, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ill.Load() || r.URL.Path != "/healthz" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	return ill
}

// untilHealth waits until all endpoints of the Service at an endpoint's addresses, of a protocol or of
// all, have a health.
func (f *fixture) untilHealth(t *testing.T, service string, e endpoint, protocol, state string) (last api.EndpointState) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		l, err := f.admin.Endpoints(ctx, service)
		if err != nil {
			return err
		}
		for _, x := range l.Endpoints {
			at := netip.MustParseAddrPort(x.Address)
			if at.Addr() != e.addr(false) && at.Addr() != e.addr(true) || protocol != "" && x.Protocol+fmt.Sprint(at.Port()) != protocol {
				continue
			}
			if last = x; x.Health.State != state {
				return fmt.Errorf("%s: %+v", x.Address, x.Health)
			}
		}
		return nil
	}))
	return last
}

// serversOf are the endpoints that some new connections reach.
func (f *fixture) serversOf(t *testing.T, to netip.AddrPort) map[netip.Addr]int {
	t.Helper()
	found := map[netip.Addr]int{}
	for range 20 {
		c := f.dialed(t, to)
		found[f.endpointOf(t, c).Addr()]++
		c.Close()
	}
	return found
}

// An endpoint that fails the check gets no new flows and its UDP flows select again, while its TCP
// connections stay, until it passes. If all fail, all are used, or none if the Service says so.
func TestWireHealthCheck(t *testing.T) {
	for _, cache := range caches {
		t.Run("cache="+cache, func(t *testing.T) {
			two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}, annotations: checked}
			f := ownFixture(t, options{services: []service{two}, takeover: "endpointRemovalGraceSeconds: 0", extra: "flowCache: {mode: " + cache + "}\n"})
			ill, other := f.answersChecks(t, f.ZoneA, attached), f.answersChecks(t, f.ZoneB, routed)
			f.untilHealth(t, "test/two", attached, "", "passing")
			f.untilHealth(t, "test/two", routed, "", "passing")
			bothFamilies(t, func(t *testing.T, six bool) { f.checkOneFails(t, two, ill, six) })

			ill.Store(true)
			other.Store(true)
			f.untilHealth(t, "test/two", attached, "", "failing")
			f.untilHealth(t, "test/two", routed, "", "failing")
			bothFamilies(t, func(t *testing.T, six bool) {
				if got := f.serversOf(t, two.at(echoPort, six)); len(got) != 2 {
					t.Errorf("if all fail: %v", got)
				}
			})
			two.annotations = map[string]string{"weir.dev/health-check": checked["weir.dev/health-check"], "weir.dev/health-check-fail": "closed"}
			replace(t, f.manifest(), render(t, []service{two}))
			must(t, f.poll(func(ctx context.Context) error {
				c, err := f.Client.DialContext(ctx, "tcp", two.at(echoPort, false).String())
				if err == nil {
					c.Close()
					return errors.New("a connection, although all fail")
				}
				if !errors.Is(err, syscall.ECONNREFUSED) {
					return err
				}
				return nil
			}))
			ill.Store(false)
			f.untilHealth(t, "test/two", attached, "", "passing")
			must(t, f.poll(func(context.Context) error { _, err := f.whoServes(two.at(httpPort, true)); return err }))
		})
	}
}

// checkOneFails has the attached endpoint fail and come back.
func (f *fixture) checkOneFails(t *testing.T, two service, ill *atomic.Bool, six bool) {
	bad := attached.addr(six)
	tcp := f.dialed(t, two.at(echoPort, six))
	for f.endpointOf(t, tcp).Addr() != bad {
		tcp = f.dialed(t, two.at(echoPort, six))
	}
	udp := f.dialUDP(t, two.at(echoPort, six))
	for asked(t, udp) != "attached" {
		udp = f.dialUDP(t, two.at(echoPort, six))
	}
	ill.Store(true)
	e := f.untilHealth(t, "test/two", attached, "", "failing")
	if e.Health.Reason != "port 8081: HTTP status 503" || e.Health.Since == nil || e.Cluster || e.Used || !strings.HasPrefix(e.Reason, "fails the health check for ") {
		t.Errorf("shown as %+v", e)
	}
	must(t, f.poll(func(context.Context) error {
		if got := f.serversOf(t, two.at(echoPort, six)); got[bad] > 0 {
			return fmt.Errorf("new connections to the endpoint that fails: %v", got)
		}
		return nil
	}))
	must(t, workload.PingPong(tcp, "while the check fails", within))
	must(t, f.poll(func(context.Context) error {
		if got := asked(t, udp); got != "routed" {
			return fmt.Errorf("the UDP flow goes on to %q", got)
		}
		return nil
	}))
	f.event(t, event.EndpointChanged, "fails the health check: port 8081: HTTP status 503", 1)
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if p.Kind == problem.EndpointHealth && strings.Contains(p.Reason, attached.addr(six).String()) {
				return nil
			}
		}
		return fmt.Errorf("problems %v", s.Problems)
	}))
	ill.Store(false)
	f.untilHealth(t, "test/two", attached, "", "passing")
	must(t, f.poll(func(context.Context) error {
		if got := f.serversOf(t, two.at(echoPort, six)); got[bad] == 0 {
			return fmt.Errorf("no new connection to the endpoint that passes again: %v", got)
		}
		return nil
	}))
}

// asked is the server that answers on a UDP flow.
func asked(t *testing.T, c interface {
	Write([]byte) (int, error)
	Read([]byte) (int, error)
	SetDeadline(time.Time) error
}) string {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience.For(2*time.Second))))
	_, err := c.Write([]byte(workload.WhoAreYou))
	must(t, err)
	b := make([]byte, 256)
	n, err := c.Read(b)
	must(t, err)
	return string(b[:n])
}

// A node whose endpoints fail tells load balancers in front, while endpoints elsewhere pass.
func TestWireHealthCheckUnderLocalPolicy(t *testing.T) {
	s := toLocalPod
	s.annotations = checked
	f := ownFixture(t, options{services: []service{s}})
	ill := f.answersChecks(t, f.Pod, pod)
	f.answersChecks(t, f.Remote, overlay)
	f.untilHealth(t, "test/"+s.name, overlay, "", "passing")
	f.untilStatus(t, s.healthPort(), "/", 200)
	ill.Store(true)
	f.untilStatus(t, s.healthPort(), "/", 503)
	ill.Store(false)
	f.untilStatus(t, s.healthPort(), "/", 200)
}

// refusing has a namespace ignore TCP to the echo servers, or refuse it, until undo is called.
func refusing(t *testing.T, n *netlab.Namespace, verdict string) (undo func()) {
	t.Helper()
	nft := func(text string) {
		t.Helper()
		must(t, n.Do(func() error {
			out, err := exec.Command("nft", text).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}))
	}
	nft("table inet ill { chain in { type filter hook input priority 0; tcp dport 7777 tcp flags syn / syn,ack " + verdict + "; }; }")
	return func() { nft("delete table inet ill") }
}

// tries connects many times at once.
func (f *fixture) tries(ctx context.Context, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(1500*time.Millisecond))
	defer cancel()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if c, err := f.Client.DialContext(ctx, "tcp", to.String()); err == nil {
				c.Close()
			}
		})
	}
	all.Wait()
}

// An endpoint that is silent, or refuses connections, is ejected without any check, and comes back.
func TestWirePassiveHealthCheck(t *testing.T) {
	for verdict, reason := range map[string]string{"drop": "no answer in 1s", "reject with tcp reset": "connection refused"} {
		t.Run(verdict, func(t *testing.T) {
			two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}}
			f := ownFixture(t, options{services: []service{two}})
			undo := refusing(t, f.ZoneB, verdict)
			bothFamilies(t, func(t *testing.T, six bool) {
				must(t, f.poll(func(ctx context.Context) error {
					f.tries(ctx, two.at(echoPort, six))
					l, err := f.admin.Endpoints(ctx, "test/two")
					if err != nil {
						return err
					}
					for _, e := range l.Endpoints {
						if e.Address == netip.AddrPortFrom(routed.addr(six), echoTarget).String() && e.Protocol == "TCP" {
							if e.Health.State == api.HealthEjected && strings.Contains(e.Health.Reason, reason) && e.Health.FailedConnections >= 5 {
								return nil
							}
							return fmt.Errorf("%+v, %+v", e.Health, e.Attempts)
						}
					}
					return errors.New("the endpoint is not listed")
				}))
				if got := f.serversOf(t, two.at(echoPort, six)); got[routed.addr(six)] > 0 {
					t.Errorf("new connections to an ejected endpoint: %v", got)
				}
			})
			undo()
			if verdict != "drop" {
				return
			}
			// Its time is 30 s at first; the other port of the same endpoint was never ejected.
			f.untilHealth(t, "test/two", routed, "TCP8080", "unchecked")
		})
	}
}

// While of two endpoints one is silent, each connection is made without any check: the SYN that the client
// sends again after a second goes to the other.
func TestWireASYNSentAgainGoesElsewhere(t *testing.T) {
	for _, cache := range caches {
		for _, mode := range []string{"nat", "dnat"} {
			t.Run(mode+", cache="+cache, func(t *testing.T) {
				two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}, annotations: map[string]string{"weir.dev/passive-health-check": "off"}}
				extra := "flowCache: {mode: " + cache + "}\nforwarding: {mode: " + mode + "}\n"
				f := ownFixture(t, options{services: []service{two}, extra: extra})
				refusing(t, f.ZoneB, "drop")
				bothFamilies(t, func(t *testing.T, six bool) {
					var all sync.WaitGroup
					var late atomic.Int32
					for range 20 {
						all.Go(func() {
							began := time.Now()
							c, err := f.Client.DialContext(inTime(t, within), "tcp", two.at(echoPort, six).String())
							if err != nil {
								t.Error(err)
								return
							}
							defer c.Close()
							if err := workload.PingPong(c, "hello", within); err != nil {
								t.Error(err)
							}
							if took := time.Since(began); took > time.Second {
								late.Add(1)
								if took > patience.For(2500*time.Millisecond) {
									t.Errorf("a connection took %v", took)
								}
							}
						})
					}
					all.Wait()
					if n := late.Load(); n == 0 || n == 20 {
						t.Errorf("%d of 20 connections took a second", n)
					}
				})
			})
		}
	}
}
