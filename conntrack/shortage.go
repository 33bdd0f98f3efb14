package conntrack

import "sync/atomic"

// A shortage describes a group of ports (see cursor) without fresh ports, so that not every
// new connection looks through the whole range.
// A mistaken shortage costs looks or a refusal for a second at most, so that its
// words need not change together.
type shortage struct {
	group  atomic.Uint64 // hash of the group; 0 = none
	until  atomic.Uint32 // tick until which there is no fresh port; 0 = not known
	streak atomic.Uint32 // looks in a row that found no fresh port
	tick   atomic.Uint32 // of spent
	spent  atomic.Uint32 // looks in that tick that found nothing at all
	_      uint64
}

const (
	shortageSets = 1 << 12
	shortageWays = 4

	// scanFresh is the number of ports at which a new connection looks for a fresh port
	// before it is refused, while there may be any; the default range has 4536.
	scanFresh = 8192
	// shortFor is how long a group is taken to have no fresh port.
	shortFor = TicksPerSecond
	// leastLooks is the number of ports of a group without fresh ones that connections may
	// look at per tick without success, at least: 16384 in a second.
	leastLooks = 1024
	// looksBefore is the number of ports at which a connection looks for a fresh port
	// before it takes over the port of an idle flow. pressedBefore is that before the port
	// of a flow that is not idle.
	looksBefore, pressedBefore = 64, 256
	// pressedLooks is the latter for a group without fresh ports, but for a connection
	// that may be alive: for another than that it looks at looksBefore ports.
	pressedLooks = 4
)

// shortageOf returns the shortage of a group. A new shortage replaces the shortage that
// ended first.
func (t *Table) shortageOf(group uint64) *shortage {
	set := &t.shortages[group%shortageSets]
	oldest := &set[0]
	for i := range set {
		m := &set[i]
		if m.group.Load() == group {
			return m
		}
		if int32(m.until.Load()-oldest.until.Load()) < 0 {
			oldest = m
		}
	}
	oldest.until.Store(0)
	oldest.streak.Store(0)
	oldest.spent.Store(0)
	oldest.group.Store(group)
	return oldest
}

// known reports whether the group of n ports is known to have no fresh port. A look at all
// ports meanwhile renews it.
func (m *shortage) known(n, tick uint32) bool {
	until := m.until.Load()
	if until == 0 || int32(until-tick) > 0 {
		return until != 0
	}
	if m.streak.Load() >= n && tick-until < shortFor {
		m.shortFrom(tick)
		return true
	}
	m.until.Store(0)
	m.streak.Store(0)
	return false
}

func (m *shortage) shortFrom(tick uint32) {
	m.streak.Store(0)
	m.until.Store(max(tick+shortFor, 1))
}

// noFresh notes that none of looked ports, of n, was fresh.
func (m *shortage) noFresh(looked, n, tick uint32, known bool) {
	if m.streak.Add(looked) >= min(n, scanFresh) && !known {
		m.shortFrom(tick)
	}
}

// fresh notes that a fresh port was found.
func (m *shortage) fresh() { m.streak.Store(0) }

// spend counts looked ports, of which none was usable, among the looks of this tick.
func (m *shortage) spend(looked, tick uint32) {
	if m.tick.Swap(tick) != tick {
		m.spent.Store(0)
	}
	m.spent.Add(looked)
}

// left returns at how many ports of a group of n without fresh ones connections may
// look in this tick.
func (m *shortage) left(n, tick uint32) uint32 {
	most := max(leastLooks, n/TicksPerSecond)
	if m.tick.Load() != tick {
		return most
	}
	return most - min(most, m.spent.Load())
}

// refuses reports whether a connection of the group can be refused without a look:
// the group's looks in this tick are spent.
func (t *Table) refuses(f *NewFlow) bool {
	if int32(t.shortUntil.Load()-f.Tick) <= 0 || f.Mode != ModeNAT {
		return false
	}
	set := &t.shortages[f.prefetched.group%shortageSets]
	for i := range set {
		if m := &set[i]; m.group.Load() == f.prefetched.group {
			return f.hasPorts() && m.until.Load() != 0 && m.left(f.ports(), f.Tick) == 0
		}
	}
	return false
}

// candidate is a flow whose port may be taken over.
type candidate struct {
	ref   Ref
	state uint32
	class reuseClass
	port  uint16
}

// A reuseClass orders flows by how early their SNAT port passes to another flow when no
// fresh port is left.
type reuseClass uint8

// Classes, the first to go first.
const (
	portIdle     reuseClass = iota // the endpoint takes a new flow, or nothing has proved the client and it is idle
	portAnswered                   // UDP that was answered and has not gone on
	portHalfOpen                   // only the client has been heard
	portDoubted                    // it may be dead, and has long been silent
	portInUse                      // never
)

// halfOpenIdle is the silence after which the port of a client without an answer counts as
// idle: the client has sent the SYN a second time by then (RFC 6298).
const halfOpenIdle = 2 * TicksPerSecond

// reuseOf returns the class of a connection in state word s for the port of f.
func (c *Conn) reuseOf(s uint32, f *NewFlow) reuseClass {
	switch {
	case s&published == 0:
		return portInUse // another worker is making it
	case c.acceptsSYN(s, f.Seq, f.TSval, f.HasTS):
		return portIdle
	case answeredOnce(s) && c.Idle(f.Tick) >= idleTicks:
		return portIdle
	case answeredOnce(s):
		return portAnswered
	case State(s&stateMask).halfOpen() && c.Idle(f.Tick) >= halfOpenIdle:
		return portIdle
	case State(s & stateMask).halfOpen():
		return portHalfOpen
	case mayBeDead(s, c.Idle(f.Tick)):
		return portDoubted
	}
	return portInUse
}

// consider makes the flow of entry r the candidate if its port goes before that of the
// present candidate. It reports whether it does.
func (t *Table) consider(best *candidate, r Ref, f *NewFlow) bool {
	c := t.Conn(r)
	s := atomic.LoadUint32(&c.state)
	class := c.reuseOf(s, f)
	if class >= best.class {
		return false
	}
	best.ref, best.state, best.class = r, s, class
	return true
}

// settles reports whether the candidate is taken after so many looks. known is
// whether there is no fresh port to be found.
func (b *candidate) settles(known bool, looked uint32) bool {
	switch {
	case b.class == portInUse:
		return false
	case b.class == portIdle:
		return known || looked >= looksBefore
	case b.class == portDoubted && known:
		return looked >= looksBefore
	case known:
		return looked >= pressedLooks
	}
	return looked >= pressedBefore
}
