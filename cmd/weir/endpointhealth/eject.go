package endpointhealth

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/discovery/prober"
	"github.com/weirlb/weir/lb/attempts"
)

// Outlier ejection, with the words of Envoy. Anyone can make attempts fail: by SYNs with forged
// sources, to which an endpoint's answers find no way, or from behind a path that loses them. Therefore
// failures raise a suspicion alone, which an answer to any client ends, and an endpoint is ejected if a
// connection of the node's own fails, too. The node's connection says also when it comes back.
const (
	// consecutiveFailures are those since the last answer that raise a suspicion.
	consecutiveFailures = 5
	// baseEjection is the time of the first ejection. Each one that follows is longer by it.
	baseEjection = 30 * time.Second
	maxEjection  = 300 * time.Second
	// maxEjectionPercent of the ready endpoints of a Service port and family may be ejected, and of those
	// on the node where Local policy applies.
	maxEjectionPercent = 50
	// trust is the time after a connection of the node's own that succeeded, in which no other is made.
	trust = 5 * time.Second
	// maxVerifying is the number of connections of the node's own at the same time. A namespace has at most
	// a third of what others leave free: endpoints that do not answer take 2 s each.
	maxVerifying = 64
)

// place is an endpoint of a Service port.
type place struct {
	service  discovery.ServiceName
	port     uint16
	protocol string
	at       netip.AddrPort
}

// suspect is an endpoint whose attempts fail, or have failed.
type suspect struct {
	ejected   bool
	verifying bool
	proven    bool      // the node has reached it
	times     int       // how often it was ejected in a row
	since     time.Time // of ejected
	until     time.Time // not ejected: the next connection of the node's own; ejected: the end
	failed    uint64    // attempts, at the last connection of the node's own
	reason    string    // of attempts
	fault     error     // of the node's own connection

	kept      bool      // it fails, and is not ejected, since too many are
	keptSince time.Time // of kept
	keeping   bool      // verifying: it may not be ejected
	failsAt   time.Time // the last look that found attempts to fail in a row
}

// ejections are the suspects of a Monitor, under its lock.
type ejections struct {
	suspects  map[place]*suspect
	byNumber  map[uint32]place // where a number was found
	verifying int
	byOwner   map[string]int // verifying, by namespace
	count     int            // that are ejected or kept
}

func noEjections() ejections {
	return ejections{suspects: map[place]*suspect{}, byNumber: map[uint32]place{}, byOwner: map[string]int{}}
}

// ejected reports whether an endpoint is ejected.
func (m *Monitor) ejected(p place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.suspects[p]
	return s != nil && s.ejected
}

// WarmsUp reports whether an endpoint of a Service has come back from an ejection a short time ago.
func (m *Monitor) WarmsUp(name discovery.ServiceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.suspects) == 0 {
		return false
	}
	for p, s := range m.suspects {
		if p.service == name && s.times > 0 && !s.ejected && time.Since(s.since) < translate.WarmUp {
			return true
		}
	}
	return false
}

// forget ends all suspicions of a Service. Preconditions: m.mu is held.
func (m *Monitor) forget(name discovery.ServiceName) {
	for p := range m.suspects {
		if p.service == name {
			m.drop(p)
		}
	}
}

// forgetGone ends the suspicions of endpoints that a Service has no more. Preconditions: m.mu is held.
func (m *Monitor) forgetGone(svc *discovery.Service) {
	for p := range m.suspects {
		if p.service == svc.Name && endpointAt(svc, p) == nil {
			m.drop(p)
		}
	}
}

func (m *Monitor) drop(p place) {
	if s := m.suspects[p]; s.ejected || s.kept {
		m.count--
	}
	delete(m.suspects, p)
}

// endpointAt is the Service port of a place, nil if the Service has no such endpoint.
func endpointAt(svc *discovery.Service, p place) *discovery.Port {
	for i := range svc.Ports {
		q := &svc.Ports[i]
		if q.Port != p.port || q.Protocol != p.protocol {
			continue
		}
		for j := range q.Endpoints {
			if q.Endpoints[j].AddrPort == p.at {
				return q
			}
		}
	}
	return nil
}

// look compares the counts of attempts with the rules.
func (m *Monitor) look(ctx context.Context, tasks *sync.WaitGroup, now time.Time) {
	failing := m.cfg.Attempts.Failing(consecutiveFailures)
	m.mu.Lock()
	if len(failing) == 0 && len(m.suspects) == 0 {
		m.mu.Unlock()
		return
	}
	m.findNumbers(failing)
	m.endKept(failing, now)
	var due, again, told []place
	for p, s := range m.suspects {
		if s.ejected || s.kept {
			told = append(told, p)
		}
		switch {
		case s.verifying || now.Before(s.until):
		case s.ejected:
			due = append(due, p)
		case s.kept:
			again = append(again, p)
		case now.Sub(s.since) > maxEjection && now.Sub(s.until) > maxEjection:
			m.drop(p) // it has been well for long
		}
	}
	for i := range failing {
		p, ok := m.byNumber[failing[i].Number]
		if !ok {
			continue
		}
		s := m.suspects[p]
		if s == nil {
			s = &suspect{since: now}
			m.suspects[p] = s
		}
		if !s.verifying && !s.ejected && !s.kept && !now.Before(s.until) && failing[i].Failed() != s.failed {
			s.failed, s.reason = failing[i].Failed(), inARow(&failing[i].Counts)
			due = append(due, p)
		}
	}
	due = append(due, again...) // new suspects first: there is not room for all
	services := map[discovery.ServiceName]*discovery.Service{}
	for _, p := range due {
		services[p.service] = m.services[p.service]
	}
	for _, p := range told {
		services[p.service] = m.services[p.service]
	}
	m.mu.Unlock()
	for _, p := range told {
		switch svc := services[p.service]; {
		case svc == nil:
		case !m.cfg.Passive(svc):
			m.readmit(p, now, "passive checks are off")
		case m.passesAgain(svc, p):
			m.readmit(p, now, "it passes the health check")
		}
	}
	for _, p := range due {
		if svc := services[p.service]; svc != nil {
			m.decide(ctx, tasks, svc, p, now)
		}
	}
}

func inARow(c *attempts.Counts) string {
	return fmt.Sprintf("%d attempts in a row have failed", c.InARow)
}

// findNumbers brings byNumber up to date where a number has another owner than it says, or none. It looks
// at all endpoints then. Preconditions: m.mu is held.
func (m *Monitor) findNumbers(list []attempts.Numbered) {
	if !slices.ContainsFunc(list, func(x attempts.Numbered) bool {
		p, ok := m.byNumber[x.Number]
		if !ok {
			return true
		}
		n, known := m.cfg.Number(p.service.String(), p.port, protocolNumbers[p.protocol], p.at)
		return !known || n != x.Number
	}) {
		return
	}
	clear(m.byNumber)
	for name, svc := range m.services {
		for i := range svc.Ports {
			q := &svc.Ports[i]
			for j := range q.Endpoints {
				p := place{name, q.Port, q.Protocol, q.Endpoints[j].AddrPort}
				if n, ok := m.cfg.Number(name.String(), q.Port, protocolNumbers[q.Protocol], p.at); ok {
					m.byNumber[n] = p
				}
			}
		}
	}
}

// protocolNumbers are those of protocols whose endpoints can be ejected.
var protocolNumbers = map[string]uint8{"TCP": 6, "UDP": 17}

// decide has a connection of the node's own decide whether an endpoint is ejected, or comes back.
func (m *Monitor) decide(ctx context.Context, tasks *sync.WaitGroup, svc *discovery.Service, p place, now time.Time) {
	m.mu.Lock()
	room := m.mayVerify(p.service.Namespace)
	if s := m.suspects[p]; s != nil && !room {
		s.failed = 0 // the next look asks again
	}
	m.mu.Unlock()
	if !room {
		return
	}
	allowed := protocolNumbers[p.protocol] != 0 && m.cfg.Passive(svc)
	room = m.room(svc, p)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.suspects[p]
	switch {
	case s == nil:
		return
	case s.ejected && (!allowed || !room):
		m.back(p, s, now, "comes back: as many endpoints are ejected as may be")
		return
	case !allowed:
		s.until = now.Add(trust)
		return
	}
	s.verifying, s.keeping = true, !room
	m.verifying++
	m.byOwner[p.service.Namespace]++
	tasks.Go(func() {
		err := m.verify(ctx, p.protocol, p.at)
		m.verified(p, err, time.Now())
	})
}

// verified notes the result of a connection of the node's own.
func (m *Monitor) verified(p place, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verifying--
	if m.byOwner[p.service.Namespace]--; m.byOwner[p.service.Namespace] == 0 {
		delete(m.byOwner, p.service.Namespace)
	}
	s := m.suspects[p]
	if s == nil {
		return
	}
	s.verifying = false
	s.proven = s.proven || err == nil
	switch {
	case err == nil && s.ejected:
		m.back(p, s, now, "comes back: it answers the node")
	case err == nil && s.kept:
		m.works(p, s, now, "it answers the node")
	case err == nil:
		s.until = now.Add(trust)
	case s.keeping && !s.ejected:
		m.keep(p, s, now, err)
	case s.ejected && !s.proven: // it may be the node alone that does not reach it: attempts decide again
		m.back(p, s, now, "comes back: its time is over, and the node has never reached it")
	default:
		if !s.ejected {
			if !s.kept {
				m.count++
			}
			s.ejected, s.kept, s.since, s.fault = true, false, now, err
			m.note(Change{p.service, p.at, "is ejected: " + s.why()})
		}
		s.times++
		s.until = now.Add(min(time.Duration(s.times)*baseEjection, maxEjection))
	}
}

// passesAgain reports whether an endpoint that is ejected or kept has passed the health check at its own port since then.
// At another port a check says nothing of the port that refuses connections.
func (m *Monitor) passesAgain(svc *discovery.Service, p place) bool {
	c := checkingOf(svc, m.guard.Load())
	q := endpointAt(svc, p)
	if q == nil {
		return false
	}
	t, ok := c.target(q, p.at)
	if !ok || t.At != p.at || (c.check.Kind == probe.UDP) != (p.protocol == "UDP") {
		return false
	}
	state := m.probes.State(svc.Name.Namespace, t)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.suspects[p]
	if s == nil {
		return false
	}
	since := s.since
	if s.kept {
		since = s.keptSince
	}
	return state.Value == prober.Passing && state.Passed.Add(-state.Latency).After(since)
}

// readmit ends before its time what is said of an endpoint that is ejected or kept.
func (m *Monitor) readmit(p place, now time.Time, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s := m.suspects[p]; {
	case s == nil || s.verifying:
	case s.ejected:
		m.back(p, s, now, "comes back: "+why)
	case s.kept:
		m.works(p, s, now, why)
	}
}

// back ends an ejection. Preconditions: m.mu is held.
func (m *Monitor) back(p place, s *suspect, now time.Time, text string) {
	s.ejected, s.since, s.until = false, now, now.Add(trust)
	m.count--
	m.note(Change{p.service, p.at, text})
}

func serviceName(text string) discovery.ServiceName {
	namespace, name, _ := strings.Cut(text, "/")
	return discovery.ServiceName{Namespace: namespace, Name: name}
}
