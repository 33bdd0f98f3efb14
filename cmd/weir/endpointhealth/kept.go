package endpointhealth

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/lb/attempts"
)

// An endpoint that fails as one that is ejected, but may not be, since too many are, is kept: it gets new
// flows as before. It is told, since a Service of which all endpoints fail would show as healthy else. The
// node connects to it again, as to those that are ejected, and an answer to any client ends it.

// why is why an endpoint is ejected or kept.
func (s *suspect) why() string {
	return fmt.Sprintf("%s; a connection of the node: %v", s.reason, s.fault)
}

// isKept reports whether an endpoint fails, and is used all the same.
func (m *Monitor) isKept(p place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.suspects[p]
	return s != nil && s.kept
}

// keep notes that an endpoint fails that may not be ejected. Preconditions: m.mu is held.
func (m *Monitor) keep(p place, s *suspect, now time.Time, err error) {
	s.until = now.Add(trust)
	if s.kept {
		return
	}
	s.kept, s.keptSince, s.fault = true, now, err
	m.count++
	m.note(Change{p.service, p.at, "accepts no connection, and is used all the same: " + s.why()})
}

// works notes that an endpoint that was kept works again. Preconditions: m.mu is held.
func (m *Monitor) works(p place, s *suspect, now time.Time, why string) {
	s.kept, s.until = false, now.Add(trust)
	m.count--
	m.note(Change{p.service, p.at, "works again: " + why})
}

// endKept ends what is said of endpoints that are kept of which attempts do not fail in a row now.
// Preconditions: m.mu is held, and byNumber is up to date.
func (m *Monitor) endKept(failing []attempts.Numbered, now time.Time) {
	for i := range failing {
		if p, ok := m.byNumber[failing[i].Number]; ok && m.suspects[p] != nil {
			m.suspects[p].failsAt = now
		}
	}
	for p, s := range m.suspects {
		if s.kept && !s.verifying && !s.failsAt.Equal(now) {
			m.works(p, s, now, "attempts do not fail")
		}
	}
}
