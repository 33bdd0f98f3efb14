package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
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

// failsClosed besides has no endpoint serve while all fail.
var failsClosed = map[string]string{"weir.dev/health-check": checked["weir.dev/health-check"], "weir.dev/health-check-fail": "closed"}

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
	return f.untilHealthAfter(t, 0, service, e, protocol, state)
}

// untilHealthAfter is untilHealth for what comes after a time at the earliest.
func (f *fixture) untilHealthAfter(t *testing.T, d time.Duration, service string, e endpoint, protocol, state string) (last api.EndpointState) {
	t.Helper()
	must(t, f.pollAfter(d, func(ctx context.Context) error {
		l, err := f.admin.Endpoints(ctx, service)
		if err != nil {
			return err
		}
		found := 0
		for _, x := range l.Endpoints {
			at := netip.MustParseAddrPort(x.Address)
			if at.Addr() != e.addr(false) && at.Addr() != e.addr(true) || protocol != "" && x.Protocol+fmt.Sprint(at.Port()) != protocol {
				continue
			}
			found++
			if last = x; x.Health.State != state {
				return fmt.Errorf("%s: %+v", x.Address, x.Health)
			}
		}
		if found == 0 {
			return fmt.Errorf("no endpoint is at %s: %+v", e.addr(false), l.Endpoints)
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

// checkedPair is a Service with a health check of two endpoints, and what these say in mode.
type checkedPair struct {
	service
	mode       string
	says       [2]string
	ill, other *atomic.Bool // of the endpoints
}

// An endpoint that fails the check gets no new flows and its UDP flows select again, while its TCP
// connections stay, until it passes. If all fail, all are used, or none if the Service says so: then no node
// announces the address.
func TestWireHealthCheck(t *testing.T) {
	t.Parallel()
	for _, cache := range caches {
		t.Run("cache="+cache, func(t *testing.T) {
			pairs := []*checkedPair{
				{service: service{name: "two", index: 31, endpoints: []endpoint{attached, routed}, annotations: checked}, mode: "nat", says: [2]string{"attached", "routed"}},
				{service: service{name: "behind", index: 32, endpoints: []endpoint{onNode, pod}, annotations: checked}, mode: "dnat", says: [2]string{"node", "pod"}},
			}
			link := service{name: "link", index: 33, endpoints: []endpoint{attached, routed}, annotations: failsClosed,
				lb: []netip.Addr{netlab.Host4(netlab.ClientNet, 133), netlab.Host6(netlab.ClientNet, 133)}}
			services := []service{pairs[0].service, pairs[1].service, link}
			f := ownFixture(t, options{services: services, takeover: "endpointRemovalGraceSeconds: 0",
				extra: "flowCache: {mode: " + cache + "}\nforwarding: {mode: dnat}\nannounce: {settleSeconds: 0, l2: {interfaces: [eth0]}}\n"})
			for i, at := range [][2]*netlab.Namespace{{f.ZoneA, f.ZoneB}, {f.Edge.Edge, f.Pod}} {
				pairs[i].ill = f.answersChecks(t, at[0], pairs[i].endpoints[0])
				pairs[i].other = f.answersChecks(t, at[1], pairs[i].endpoints[1])
			}
			for _, p := range pairs {
				f.untilBoth(t, p.service, "passing")
				t.Run(p.mode, func(t *testing.T) {
					bothFamilies(t, func(t *testing.T, six bool) { f.checkOneFails(t, p, six) })
				})
			}
			f.untilOnLink(t, link, "owner")
			for _, p := range pairs {
				p.ill.Store(true)
				p.other.Store(true)
			}
			for i, p := range pairs {
				f.untilBoth(t, p.service, "failing")
				bothFamilies(t, func(t *testing.T, six bool) {
					if got := f.serversOf(t, p.at(echoPort, six)); len(got) != 2 {
						t.Errorf("%s: if all fail: %v", p.mode, got)
					}
				})
				services[i].annotations = failsClosed
			}
			f.untilOnLink(t, link, "ineligible")
			replace(t, f.manifest(), render(t, services))
			for _, p := range pairs {
				f.untilClosed(t, p.at(echoPort, false))
				p.ill.Store(false)
			}
			for _, p := range pairs {
				f.untilHealth(t, "test/"+p.name, p.endpoints[0], "", "passing")
				must(t, f.poll(func(context.Context) error { _, err := f.whoServes(p.at(httpPort, true)); return err }))
			}
			f.untilOnLink(t, link, "owner")
			bothFamilies(t, func(t *testing.T, six bool) { f.connects(t, link, six) })
		})
	}
}

// untilBoth waits until both endpoints of a Service have a health.
func (f *fixture) untilBoth(t *testing.T, s service, state string) {
	t.Helper()
	for _, e := range s.endpoints {
		f.untilHealth(t, "test/"+s.name, e, "", state)
	}
}

// untilClosed waits until connections are refused.
func (f *fixture) untilClosed(t *testing.T, to netip.AddrPort) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		c, err := f.Client.DialContext(ctx, "tcp", to.String())
		if err == nil {
			c.Close()
			return errors.New("a connection, although all fail")
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}))
}

// untilOnLink waits until the node announces the addresses of a Service on the link, or does not, by state.
func (f *fixture) untilOnLink(t *testing.T, s service, state string) {
	t.Helper()
	for _, six := range []bool{false, true} {
		a := s.lbIP(six)
		must(t, f.poll(func(ctx context.Context) error {
			now, err := f.admin.Status(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(now.Announce.Addresses, func(x api.AnnouncedAddress) bool { return x.Address == a })
			if i < 0 || now.Announce.Addresses[i].L2 == nil || now.Announce.Addresses[i].L2.State != state {
				return fmt.Errorf("%s: want %s: %+v", a, state, now.Announce.Addresses)
			}
			return nil
		}))
	}
}

// checkOneFails has the first endpoint fail and come back.
func (f *fixture) checkOneFails(t *testing.T, p *checkedPair, six bool) {
	two, ill, bad := p.service, p.ill, p.endpoints[0].addr(six)
	tcp := f.dialed(t, two.at(echoPort, six))
	for f.endpointOf(t, tcp).Addr() != bad {
		tcp = f.dialed(t, two.at(echoPort, six))
	}
	udp := f.dialUDP(t, two.at(echoPort, six))
	for asked(t, udp) != p.says[0] {
		udp = f.dialUDP(t, two.at(echoPort, six))
	}
	ill.Store(true)
	must(t, f.poll(func(context.Context) error { // the selection follows the health in a moment
		e := f.untilHealth(t, "test/"+p.name, p.endpoints[0], "", "failing")
		if e.Health.Reason != "port 8081: HTTP status 503" || e.Health.Since == nil || e.Cluster || e.Used || !strings.HasPrefix(e.Reason, "fails the health check for ") {
			return fmt.Errorf("shown as %+v", e)
		}
		return nil
	}))
	f.explains(t, "test/"+p.name, bad.String()+`\S* .*fails the health check for \S+: port 8081: HTTP status 503; not ready`)
	must(t, f.poll(func(context.Context) error {
		if got := f.serversOf(t, two.at(echoPort, six)); got[bad] > 0 {
			return fmt.Errorf("new connections to the endpoint that fails: %v", got)
		}
		return nil
	}))
	must(t, workload.PingPong(tcp, "while the check fails", within))
	must(t, f.poll(func(context.Context) error {
		if got := asked(t, udp); got != p.says[1] {
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
			if p.Kind == problem.EndpointHealth && strings.Contains(p.Reason, bad.String()) {
				return nil
			}
		}
		return fmt.Errorf("problems %v", s.Problems)
	}))
	ill.Store(false)
	f.untilHealth(t, "test/"+p.name, p.endpoints[0], "", "passing")
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
	t.Parallel()
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
