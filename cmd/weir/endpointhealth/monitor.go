// Package endpointhealth follows what a node finds out about endpoints itself: active checks that
// Services ask for, and passive ones, which eject endpoints whose handshakes fail. Readiness of package
// translate combines it with the conditions of slices. No packet waits for anything here.
package endpointhealth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/discovery/prober"
	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/topology"
)

// Config has what the Monitor asks and tells.
type Config struct {
	// Changed is told that the health of endpoints of Services has changed. It is called by Run.
	Changed func([]Change)
	// Readiness is that of the node, without Health.
	Readiness func() *translate.Readiness
	// Attempts are the counts per endpoint number, Number the number of an endpoint.
	Attempts *attempts.Table
	Number   func(service string, port uint16, proto uint8, at netip.AddrPort) (uint32, bool)
	// Dial connects probes, nil by the node's own path alone.
	Dial prober.Dialer
	// Passive reports whether a Service's endpoints may be ejected.
	Passive  func(*discovery.Service) bool
	NodeName string
	Log      *slog.Logger
}

// Change is a change of the health of an endpoint of a Service.
type Change struct {
	Service discovery.ServiceName
	At      netip.AddrPort
	Text    string // as "fails the health check: connection refused"
}

// Monitor follows the health of endpoints.
type Monitor struct {
	cfg    Config
	probes *prober.Scheduler
	verify func(context.Context, string, netip.AddrPort) error // of the protocol
	guard  atomic.Pointer[translate.Guard]

	mu       sync.Mutex
	services map[discovery.ServiceName]*discovery.Service
	changes  []Change
	wake     chan struct{}
	ejections
}

// New makes a Monitor.
func New(cfg Config) *Monitor {
	m := &Monitor{
		cfg: cfg, verify: prober.Verify, services: map[discovery.ServiceName]*discovery.Service{},
		wake: make(chan struct{}, 1), ejections: noEjections(),
	}
	m.guard.Store(&translate.Guard{})
	if cfg.Dial == nil {
		cfg.Dial = prober.Straight
	}
	m.probes = cfg.Dial.Scheduler(m.checked)
	return m
}

// Apply follows a change of Services. guard keeps probes from leading to the node itself.
func (m *Monitor) Apply(up *discovery.Update, guard *translate.Guard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guard.Store(guard)
	for _, name := range up.Deleted {
		m.remove(name)
	}
	for _, svc := range up.Put {
		if svc.Headless || svc.ExternalName || svc.Unused || svc.Unsupported != "" || svc.Refused != "" {
			m.remove(svc.Name)
			continue
		}
		m.services[svc.Name] = svc
		m.probes.Set(svc.Name.String(), svc.Name.Namespace, Targets(svc, guard))
		m.forgetGone(svc)
	}
}

// SetGuard follows a change of what the node refuses.
func (m *Monitor) SetGuard(guard *translate.Guard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guard.Store(guard)
	for _, svc := range m.services {
		m.probes.Set(svc.Name.String(), svc.Name.Namespace, Targets(svc, guard))
	}
}

func (m *Monitor) remove(name discovery.ServiceName) {
	delete(m.services, name)
	m.probes.Set(name.String(), name.Namespace, nil)
	m.forget(name)
}

// Targets are what the check of a Service probes.
func Targets(svc *discovery.Service, guard *translate.Guard) (out []prober.Target) {
	if svc.Options.HealthCheck == nil {
		return nil
	}
	own, c := guard.Frontends(svc), checkingOf(svc, guard)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Endpoints {
			e := &p.Endpoints[j]
			if e.State() == "terminated" || guard.RefusesEndpoint(svc, e.AddrPort) != "" || own.Refuses(e, p.Protocol) != "" {
				continue
			}
			if t, ok := c.target(p, e.AddrPort); ok && refusal(svc, guard, own, e, &t) == "" {
				out = append(out, t)
			}
		}
	}
	return out
}

// refusal says why the target of an endpoint is not probed, "" if it is. The port of the check may be
// another than that of the endpoint.
func refusal(svc *discovery.Service, guard *translate.Guard, own *translate.Frontends, e *topology.Endpoint, t *prober.Target) string {
	protocol := "TCP"
	if t.Check.Kind == probe.UDP {
		protocol = "UDP"
	}
	probed := topology.Endpoint{AddrPort: t.At, NodeName: e.NodeName}
	return cmp.Or(guard.RefusesProbe(svc, e, t.At, t.To()), own.Refuses(&probed, protocol))
}

// checking is the check of a Service, with the port that it names.
type checking struct {
	svc   *discovery.Service
	guard *translate.Guard
	check *probe.Check
	named *discovery.Port
}

// checkingOf is the check of a Service. There may be none.
func checkingOf(svc *discovery.Service, guard *translate.Guard) checking {
	c := checking{svc: svc, guard: guard, check: svc.Options.HealthCheck}
	if c.check != nil && c.check.PortName != "" {
		if i := slices.IndexFunc(svc.Ports, func(q discovery.Port) bool { return q.Name == c.check.PortName }); i >= 0 {
			c.named = &svc.Ports[i]
		}
	}
	return c
}

// target is what tells of an endpoint of a Service port: the check of the Service at the port that it
// names. There is none where a named port has no endpoint at the address.
func (c *checking) target(p *discovery.Port, at netip.AddrPort) (t prober.Target, ok bool) {
	switch {
	case c.check == nil:
		return t, false
	case c.check.Port != 0:
		at = netip.AddrPortFrom(at.Addr(), c.check.Port)
	case c.check.PortName != "" && c.check.PortName != p.Name:
		if c.named == nil {
			return t, false
		}
		list := atAddress(c.named, at.Addr())
		if len(list) == 0 {
			return t, false
		}
		at = list[0].AddrPort
	}
	t.Via.Mode, t.Via.Frontend = c.guard.Via(c.svc, p, at.Addr())
	t.At, t.Check = at, c.check
	return t, true
}

// Health is what checks say of an endpoint. It is a translate.Health.
func (m *Monitor) Health(svc *discovery.Service, p *discovery.Port, at netip.AddrPort) topology.Health {
	return topology.Health{Failing: m.fails(svc, p, at), Ejected: m.ejected(place{svc.Name, p.Port, p.Protocol, at})}
}

// fails reports whether the active check of an endpoint fails.
func (m *Monitor) fails(svc *discovery.Service, p *discovery.Port, at netip.AddrPort) bool {
	c := checkingOf(svc, m.guard.Load())
	t, ok := c.target(p, at)
	return ok && m.probes.State(svc.Name.Namespace, t).Value == prober.Failing
}

// checked notes that a check says another thing of a target.
func (m *Monitor) checked(t prober.Target, s prober.State, owners []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, owner := range owners {
		if svc := m.services[serviceName(owner)]; svc != nil {
			m.noteChecked(svc, &t, &s)
		}
	}
}

// noteChecked notes a change of a target for each endpoint of a Service of which it tells.
// Preconditions: m.mu is held.
func (m *Monitor) noteChecked(svc *discovery.Service, t *prober.Target, s *prober.State) {
	c := checkingOf(svc, m.guard.Load())
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, e := range atAddress(p, t.At.Addr()) {
			if told, ok := c.target(p, e.AddrPort); !ok || told.At != t.At || told.Via != t.Via || told.Check.Identity() != t.Check.Identity() {
				continue
			}
			text := "passes the health check"
			if s.Value == prober.Failing {
				text = "fails the health check: " + reasonAt(e.AddrPort, t.At, s.Reason)
			}
			m.note(Change{svc.Name, e.AddrPort, text})
		}
	}
}

// reasonAt is why a probe of an endpoint fails, with the port where that is another.
func reasonAt(endpoint, probed netip.AddrPort, reason string) string {
	if probed.Port() == endpoint.Port() {
		return reason
	}
	return fmt.Sprintf("port %d: %s", probed.Port(), reason)
}

// atAddress are the endpoints of a port at an address.
func atAddress(p *discovery.Port, addr netip.Addr) []topology.Endpoint {
	from, _ := slices.BinarySearchFunc(p.Endpoints, addr, func(e topology.Endpoint, a netip.Addr) int { return e.AddrPort.Addr().Compare(a) })
	to := from
	for to < len(p.Endpoints) && p.Endpoints[to].AddrPort.Addr() == addr {
		to++
	}
	return p.Endpoints[from:to]
}

// note keeps a change for Run. Preconditions: m.mu is held.
func (m *Monitor) note(c Change) {
	m.changes = append(m.changes, c)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// lookEvery is how often counts of attempts are looked at.
const lookEvery = 500 * time.Millisecond

// Run follows the checks until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { m.probes.Run(ctx) })
	tick := aligned.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			m.look(ctx, &tasks, time.Now())
			continue
		case <-m.wake:
		}
		m.mu.Lock()
		list := m.changes
		m.changes = nil
		m.mu.Unlock()
		slices.SortStableFunc(list, func(a, b Change) int {
			return cmp.Or(cmp.Compare(a.Service.String(), b.Service.String()), a.At.Compare(b.At))
		})
		m.cfg.Changed(slices.Compact(list)) // an endpoint may serve several ports
	}
}
