package endpointhealth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/discovery/prober"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/topology"
)

var web = discovery.ServiceName{Namespace: "ns", Name: "web"}

// bench is a Monitor in false time, with a Service of some endpoints numbered from 1.
type bench struct {
	*Monitor
	svc  *discovery.Service
	dead map[netip.AddrPort]bool // that a connection of the node, or a probe, fails to
	slow bool                    // connections of the node have no answer
	mu   sync.Mutex
	said []string
	// verified counts connections of the node's own.
	verified int
}

func addressOf(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80)
}

func aService(endpoints int, protocol string) *discovery.Service {
	p := discovery.Port{Name: "web", Protocol: protocol, Port: 80}
	for i := range endpoints {
		p.Endpoints = append(p.Endpoints, topology.Endpoint{AddrPort: addressOf(i + 1), Ready: true, Serving: true})
	}
	return &discovery.Service{Name: web, Ports: []discovery.Port{p}}
}

func inFalseTime(t *testing.T, svc *discovery.Service, f func(*bench)) {
	synctest.Test(t, func(*testing.T) {
		b := &bench{svc: svc, dead: map[netip.AddrPort]bool{}}
		guard := &translate.Guard{}
		b.Monitor = New(Config{
			Changed: func(list []Change) {
				b.mu.Lock()
				defer b.mu.Unlock()
				for _, c := range list {
					b.said = append(b.said, fmt.Sprint(c.At.Addr().As4()[3], " ", c.Text))
				}
			},
			Readiness: func() *translate.Readiness { return &translate.Readiness{Guard: guard} },
			Attempts:  attempts.New(1000),
			Number: func(service string, port uint16, proto uint8, at netip.AddrPort) (uint32, bool) {
				return uint32(at.Addr().As4()[3]), service == web.String() && port == 80 && proto != 0
			},
			Passive:  func(svc *discovery.Service) bool { return !svc.Options.NoPassiveCheck },
			NodeName: "here", Log: slog.New(slog.DiscardHandler),
		})
		b.verify = func(_ context.Context, _ string, at netip.AddrPort) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.verified++
			if b.dead[at] {
				return errors.New("connection refused")
			}
			return nil
		}
		for i := range svc.Ports[0].Endpoints {
			b.cfg.Attempts.Assign(uint32(i + 1))
		}
		b.probes = prober.NewScheduler(b.checked, func(_ context.Context, t *prober.Target) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.dead[netip.AddrPortFrom(t.At.Addr(), 80)] {
				return errors.New("connection refused")
			}
			return nil
		})
		b.Apply(&discovery.Update{Put: []*discovery.Service{svc}}, guard)
		ctx, cancel := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		ended.Go(func() { _ = b.Run(ctx) })
		f(b)
		cancel()
		ended.Wait()
	})
}

// die has an endpoint refuse the node.
func (b *bench) die(endpoint int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead[addressOf(endpoint)] = true
}

// revive has it answer again.
func (b *bench) revive(endpoint int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.dead, addressOf(endpoint))
}

// fail has attempts fail, and waits until that was looked at.
func (b *bench) fail(endpoint, times int) {
	for range times {
		b.cfg.Attempts.Unanswered(uint32(endpoint), 1)
	}
	time.Sleep(2 * lookEvery)
}

func (b *bench) out() (list []int) {
	for i := range b.svc.Ports[0].Endpoints {
		if b.Health(b.svc, &b.svc.Ports[0], addressOf(i+1)).Ejected {
			list = append(list, i+1)
		}
	}
	return list
}

func (b *bench) expect(t *testing.T, when string, want ...int) {
	t.Helper()
	if got := b.out(); !slices.Equal(got, want) {
		t.Errorf("%s: %v are ejected, want %v", when, got, want)
	}
}

// An endpoint is ejected for a growing time, and comes back when it answers the node.
func TestEjection(t *testing.T) {
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		b.fail(2, consecutiveFailures)
		b.expect(t, "it answers the node")
		time.Sleep(trust + time.Second)
		b.cfg.Attempts.Answered(2)
		b.die(2)
		b.fail(2, consecutiveFailures-1)
		b.expect(t, "too few failures")
		b.fail(2, 1)
		b.expect(t, "as many as it takes", 2)
		time.Sleep(baseEjection + time.Second)
		b.expect(t, "it does not answer after the first time", 2)
		b.revive(2)
		time.Sleep(baseEjection)
		b.expect(t, "the second time is longer", 2)
		time.Sleep(baseEjection + time.Second)
		b.expect(t, "it answers again")
		if !b.WarmsUp(web) {
			t.Error("no slow start")
		}
		time.Sleep(translate.WarmUp)
		if b.WarmsUp(web) {
			t.Error("slow start does not end")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.said) != 2 || !strings.HasPrefix(b.said[0], "2 is ejected: 5 attempts in a row have failed; a connection of the node: connection refused") ||
			b.said[1] != "2 comes back: it answers the node" {
			t.Errorf("%q", b.said)
		}
	})
}

// A firewall may keep the node from an endpoint that serves clients: its ejections end by time.
func TestEjectionsEndWhereTheNodeReachesNothing(t *testing.T) {
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		b.die(2)
		b.fail(2, consecutiveFailures)
		b.expect(t, "attempts fail", 2)
		time.Sleep(baseEjection + time.Second)
		b.expect(t, "the first time is over")
		time.Sleep(trust)
		b.fail(2, 1)
		b.expect(t, "attempts go on to fail", 2)
		time.Sleep(baseEjection + time.Second)
		b.expect(t, "the second time is longer", 2)
		b.cfg.Attempts.Answered(2)
		time.Sleep(baseEjection)
		b.expect(t, "the second time is over")
	})
}

// At most half of the endpoints are ejected, and never the last.
func TestEjectionsAreBounded(t *testing.T) {
	for endpoints, want := range map[int]int{1: 0, 2: 1, 3: 1, 5: 2} {
		inFalseTime(t, aService(endpoints, "TCP"), func(b *bench) {
			for i := range endpoints {
				b.die(i + 1)
				b.fail(i+1, consecutiveFailures)
			}
			if got := b.out(); len(got) != want {
				t.Errorf("%v of %d are ejected, want %d", got, endpoints, want)
			}
		})
	}
	// Endpoints that leave take room with them.
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		for i := range 2 {
			b.die(i + 1)
			b.fail(i+1, consecutiveFailures)
		}
		b.expect(t, "half", 1, 2)
		b.svc = aService(2, "TCP")
		b.Apply(&discovery.Update{Put: []*discovery.Service{b.svc}}, &translate.Guard{})
		time.Sleep(baseEjection + time.Second)
		if got := b.out(); len(got) > 1 {
			t.Errorf("%v of 2 are ejected", got)
		}
	})
	// Under Local policy half of those on the node.
	svc := aService(6, "TCP")
	svc.Policy.External, svc.Policy.ExternalLocal = true, true
	svc.Ports[0].Endpoints[0].NodeName, svc.Ports[0].Endpoints[1].NodeName = "here", "here"
	inFalseTime(t, svc, func(b *bench) {
		for i := range 2 {
			b.die(i + 1)
			b.fail(i+1, consecutiveFailures)
		}
		b.expect(t, "Local policy", 1)
	})
}

// The bound holds, too, for endpoints that fail at the same time, as those of a bad release.
func TestEjectionsAtOnceAreBounded(t *testing.T) {
	for endpoints, want := range map[int]int{1: 0, 2: 1, 3: 1, 4: 2, 5: 2} {
		inFalseTime(t, aService(endpoints, "TCP"), func(b *bench) {
			for i := range endpoints {
				b.die(i + 1)
				for range consecutiveFailures {
					b.cfg.Attempts.Unanswered(uint32(i+1), 1)
				}
			}
			for range 3 {
				time.Sleep(2 * lookEvery)
				if got := b.out(); len(got) != want {
					t.Errorf("%v of %d are ejected, want %d", got, endpoints, want)
				}
			}
		})
	}
}

// The attack: a client has attempts to an endpoint fail at will, by SYNs whose answers find no way to it.
// The endpoint answers the node, or other clients between: it is not ejected, and is asked once in a while.
func TestAForgedFloodEjectsNoEndpointThatWorks(t *testing.T) {
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		for range 120 {
			b.fail(3, 1000)
		}
		b.expect(t, "it answers the node")
		b.mu.Lock()
		if most := int(2*time.Minute/trust) + 1; b.verified == 0 || b.verified > most {
			t.Errorf("%d connections of the node in 2 minutes, want at most %d", b.verified, most)
		}
		b.verified = 0
		b.mu.Unlock()
		b.cfg.Attempts.Answered(3)
		b.die(4) // it may refuse the node by a firewall
		for range 20 {
			b.fail(4, consecutiveFailures-1)
			b.cfg.Attempts.Answered(4)
		}
		b.expect(t, "it answers other clients")
		if b.verified != 0 {
			t.Errorf("%d connections of the node", b.verified)
		}
	})
}

// A Service can do without, and SCTP has no such check.
func TestEjectionIsOff(t *testing.T) {
	off := aService(4, "TCP")
	off.Options.NoPassiveCheck = true
	for _, svc := range []*discovery.Service{off, aService(4, "SCTP")} {
		inFalseTime(t, svc, func(b *bench) {
			b.die(1)
			b.fail(1, 100)
			b.expect(t, "off")
		})
	}
}

// An ejection ends where passive checks are turned off.
func TestEjectionsEndWithPassiveChecks(t *testing.T) {
	inFalseTime(t, aService(4, "TCP"), func(b *bench) {
		b.die(2)
		b.fail(2, consecutiveFailures)
		b.expect(t, "on", 2)
		off := *b.svc
		off.Options.NoPassiveCheck = true
		b.svc = &off
		b.Apply(&discovery.Update{Put: []*discovery.Service{b.svc}}, &translate.Guard{})
		time.Sleep(2 * lookEvery)
		b.expect(t, "off")
	})
}

// A named port is that of the endpoint's address, and what the node refuses is not probed.
func TestTargets(t *testing.T) {
	svc := aService(2, "TCP")
	svc.Ports = append(svc.Ports, discovery.Port{Name: "status", Protocol: "TCP", Port: 81, Endpoints: []topology.Endpoint{
		{AddrPort: netip.AddrPortFrom(addressOf(2).Addr(), 8081), Ready: true}}})
	// The third is at the address of another node. A frontend of the Service is none of it.
	svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, topology.Endpoint{AddrPort: addressOf(3), OfNode: true, NodeName: "other", Ready: true})
	svc.Ports = append(svc.Ports, discovery.Port{Name: "none", Protocol: "TCP", Port: 7000})
	svc.LoadBalancerIPs = []netip.Addr{addressOf(2).Addr()}
	for text, want := range map[string][]string{
		"{tcpSocket: {}}":             {"10.0.0.1:80", "10.0.0.2:8081", "10.0.0.3:80"},
		"{tcpSocket: {port: 9000}}":   {"10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:9000"},
		"{tcpSocket: {port: status}}": {"10.0.0.2:8081"},
		"{tcpSocket: {port: 22}}":     {"10.0.0.2:22"}, // neither of this node nor of another
		"{tcpSocket: {port: 7000}}":   {"10.0.0.1:7000", "10.0.0.3:7000"},
		"{udp: {port: 7000}}":         {"10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"},
	} {
		svc.Options.HealthCheck = parsed(t, text)
		guard := &translate.Guard{Ports: []uint16{22}, Own: func(a netip.Addr) bool { return a == addressOf(1).Addr() }}
		var got []string
		for _, x := range Targets(svc, guard) {
			got = append(got, x.At.String())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// In the modes without translation a probe goes to the frontend, which the author of the Service chooses.
func TestTargetsByFrontends(t *testing.T) {
	svc := aService(1, "TCP")
	svc.Ports[0].Port = svc.Ports[0].Endpoints[0].AddrPort.Port()
	svc.Options.ForwardingMode = "ipip"
	svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	guard := &translate.Guard{ExternalIPs: true, Ports: []uint16{22}, Prefixes: []netip.Prefix{netip.MustParsePrefix("169.254.77.0/24")}}
	for _, tt := range []struct {
		name, check string
		frontend    string
		ofNode      bool
		want        int
	}{
		{"a protected port", "{tcpSocket: {port: 22}}", "192.0.2.9", false, 1},
		{"a protected port of a node", "{tcpSocket: {port: 22}}", "192.0.2.9", true, 0},
		{"another port of a node", "{tcpSocket: {}}", "192.0.2.9", true, 1},
		{"the host veth", "{tcpSocket: {}}", "169.254.77.1", false, 0},
	} {
		svc.Options.HealthCheck = parsed(t, tt.check)
		svc.ExternalIPs, svc.OfNodes = []netip.Addr{netip.MustParseAddr(tt.frontend)}, nil
		if tt.ofNode {
			svc.OfNodes = svc.ExternalIPs
		}
		list := Targets(svc, guard)
		if len(list) != tt.want || tt.want > 0 && list[0].Via.Mode != "ipip" {
			t.Errorf("%s: targets %v, want %d", tt.name, list, tt.want)
		}
	}
}

func parsed(t *testing.T, text string) *probe.Check {
	t.Helper()
	c, errs, _ := probe.Parse("check", text)
	if c == nil {
		t.Fatal(errs)
	}
	return c
}
