package endpointhealth

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// A check that passes at the endpoint's own port ends an ejection, as with Envoy. At another port it does not.
func TestAPassingCheckEndsAnEjection(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int
	}{
		{"{tcpSocket: {}, periodSeconds: 1}", nil},
		{"{tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 100}", nil},
		{"{tcpSocket: {port: 81}, periodSeconds: 1}", []int{2}},
		{"{udp: {}, periodSeconds: 1}", []int{2}},
	} {
		svc := aService(4, "TCP")
		svc.Options.HealthCheck = parsed(t, c.text)
		inFalseTime(t, svc, func(b *bench) {
			b.die(2)
			b.fail(2, consecutiveFailures)
			time.Sleep(2 * time.Second)
			b.expect(t, c.text, 2)
			b.revive(2)
			time.Sleep(4 * time.Second)
			b.expect(t, c.text+" passes", c.want...)
		})
	}
}

// Endpoints of a tenant that do not answer leave room to find out about those of others.
func TestATenantDoesNotTakeAllVerifications(t *testing.T) {
	many := aService(200, "TCP")
	many.Name.Namespace = "attacker"
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		silent := make(chan struct{})
		b.verify = func(_ context.Context, _ string, at netip.AddrPort) error {
			if b.mu.Lock(); b.slow {
				b.mu.Unlock()
				<-silent
				return errors.New("no answer")
			}
			b.mu.Unlock()
			return errors.New("connection refused")
		}
		b.cfg.Number = func(service string, _ uint16, _ uint8, at netip.AddrPort) (uint32, bool) {
			n := uint32(at.Addr().As4()[3])
			if service == many.Name.String() {
				n += 300
			}
			return n, true
		}
		for i := range many.Ports[0].Endpoints {
			b.cfg.Attempts.Assign(uint32(301 + i))
			for range consecutiveFailures {
				b.cfg.Attempts.Unanswered(uint32(301+i), 1)
			}
		}
		b.mu.Lock()
		b.slow = true
		b.mu.Unlock()
		b.Apply(&discovery.Update{Put: []*discovery.Service{many}}, &translate.Guard{})
		time.Sleep(10 * time.Second)
		b.mu.Lock()
		b.slow = false
		b.mu.Unlock()
		b.fail(2, consecutiveFailures)
		b.expect(t, "beside a tenant whose endpoints are silent", 2)
		close(silent)
	})
}

// Each endpoint has a change of its own, with the port that is probed and the reason, and what is said of
// those that are used follows the rules of readiness.
func TestHealthIsToldPerEndpoint(t *testing.T) {
	svc := aService(2, "TCP")
	svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, topology.Endpoint{AddrPort: netip.AddrPortFrom(addressOf(2).Addr(), 81), Ready: true})
	svc.Options.HealthCheck = parsed(t, "{tcpSocket: {port: 8081}, periodSeconds: 1, failureThreshold: 1, successThreshold: 1}")
	inFalseTime(t, svc, func(b *bench) {
		time.Sleep(2 * time.Second)
		b.die(1)
		b.die(2)
		time.Sleep(2 * time.Second)
		b.mu.Lock()
		said := slices.Clone(b.said)
		b.mu.Unlock()
		slices.Sort(said)
		want := []string{"1 fails the health check: port 8081: connection refused", "1 passes the health check"}
		want = append(want, slices.Repeat([]string{"2 fails the health check: port 8081: connection refused"}, 2)...)
		want = append(want, slices.Repeat([]string{"2 passes the health check"}, 2)...)
		if !slices.Equal(said, want) {
			t.Errorf("%q, want %q", said, want)
		}
		all := "; since all fail, all are used"
		if got := b.failing(svc); !strings.HasSuffix(got, all) || !strings.Contains(got, "10.0.0.1:80 fails (port 8081: connection refused)") {
			t.Error(got)
		}
		closed := *svc
		closed.Options.HealthCheckClosed = true
		if got, want := b.failing(&closed), "; since all fail and weir.dev/health-check-fail is closed, connections are refused to port 80/TCP IPv4"; !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		b.fail(1, consecutiveFailures)
		b.expect(t, "all fail", 1)
		if got := b.failing(svc); !strings.HasPrefix(got, "3 of 3 ready endpoints do not work") || !strings.Contains(got, "; 2 of these are used all the same") {
			t.Error(got)
		}
	})
}
