package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// A shortage describes a group of ports (see cursor) without fresh ports, so that not every
// new connection looks through the whole range.
// A mistaken shortage costs looks or a refusal for a second at most, so that its
// words need not change together.
type shortage struct {
	group  atomic.Uint64 // hash of the group; 0 = none
	until  atomic.Uint32 // tick until which there is no fresh port; 0 = not known
	streak atomic.Uint32 // looks in a row that found no fresh port
	// hand is where the next connection that spares others (see Keep) looks for a port. It
	// goes round the range, while the rotation stays where the oldest flows are.
	hand atomic.Uint32
	// spent is, per Keep, the tick<<16 and the looks in that tick that found nothing.
	spent [KeepStreams + 1]atomic.Uint32
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
	// before it takes over the port of a flow that nothing needs, and in a group without
	// fresh ports before it takes that of a flow which may be alive.
	looksBefore = 64
	// pressedLooks is the latter for other flows, pressedLooksUDP of UDP, whose clients send
	// nothing again if their flow was the wrong one to take.
	pressedLooks, pressedLooksUDP = 4, 16
)

// shortageOf returns the shortage of a group. A new shortage replaces the shortage that
// ended first.
func (p *ports) shortageOf(group uint64) *shortage {
	set := &p.shortages[group%shortageSets]
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
	for i := range oldest.spent {
		oldest.spent[i].Store(0)
	}
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

// noFresh notes that none of looked ports, of n, was fresh. The next look goes on behind them: used
// ports may lie side by side, and a range is short when all of them have been seen in a row.
func (m *shortage) noFresh(looked, n, tick uint32, known bool) {
	if m.streak.Add(looked) >= n && !known {
		m.shortFrom(tick)
	}
}

// fresh notes that a fresh port was found.
func (m *shortage) fresh() { m.streak.Store(0) }

// spend counts looked ports, of which none was usable under keep, among the looks of this tick.
func (m *shortage) spend(keep Keep, looked, tick uint32) {
	m.spent[keep].Store(tick<<16 | min(m.spentIn(keep, tick)+looked, 0xffff))
}

func (m *shortage) spentIn(keep Keep, tick uint32) uint32 {
	if v := m.spent[keep].Load(); v>>16 == tick&0xffff {
		return v & 0xffff
	}
	return 0
}

// left returns at how many ports of a group of n without fresh ones connections may
// look under keep in this tick.
func (m *shortage) left(keep Keep, n, tick uint32) uint32 {
	most := max(leastLooks, n/TicksPerSecond)
	return most - min(most, m.spentIn(keep, tick))
}

// refuses reports whether a connection of the group can be refused without a look:
// the group's looks in this tick are spent.
func (p *ports) refuses(f *NewFlow) bool {
	if int32(p.shortUntil.Load()-f.Tick) <= 0 || f.Mode != ModeNAT {
		return false
	}
	set := &p.shortages[f.prefetched.group%shortageSets]
	for i := range set {
		if m := &set[i]; m.group.Load() == f.prefetched.group {
			return f.hasPorts() && m.until.Load() != 0 && m.left(f.Keep, f.ports(), f.Tick) == 0
		}
	}
	return false
}

// A Keep says whose SNAT ports a new connection leaves alone, so that its caller can look for
// a port elsewhere first. Ports of flows that have ended, and of flows that were silent for ten
// seconds and that nothing proves, it takes in any case.
type Keep uint8

// Values of Keep, each includes those before.
const (
	KeepNothing Keep = iota // it takes any port that may be taken
	KeepUsed                // flows that were used within the last ten seconds keep theirs
	KeepStreams             // UDP that both sides go on with keeps its port
)

// TakeMore lets the connection take the ports of more flows. It reports whether there are more.
func (f *NewFlow) TakeMore() bool {
	if f.Keep == KeepNothing {
		return false
	}
	f.Keep = f.Keep.less(f.Client.Proto())
	return true
}

// less is the next Keep by which a connection of the protocol may take more ports.
func (k Keep) less(proto uint8) Keep {
	if k == KeepStreams && proto == ProtoUDP {
		return KeepUsed
	}
	return KeepNothing
}

// candidate is a flow whose port may be taken over.
type candidate struct {
	ref     Ref
	state   uint32
	class   PortClass
	port    uint16
	silence uint32
}

// PortClass orders flows by how early their SNAT port passes to another flow when no
// fresh port is left.
type PortClass uint8

// Classes, the first to go first. Of a class in which silence matters the longest silent of
// those looked at goes first.
const (
	portEnded    PortClass = iota // the endpoint takes a new flow
	portSilent                    // nothing has proved the client, and both sides are silent for silentTicks
	portStream                    // a proven UDP flow, and both sides are silent for silentTicks
	portOneSided                  // UDP: the client is silent for silentTicks, the endpoint is not
	portIdle                      // nothing has proved the client, and it is idle; or a RST that ended it may be forged
	portAnswered                  // UDP that was answered and is not proven
	portHalfOpen                  // only the client has been heard
	portDoubted                   // it may be dead, and has long been silent; or it was aborted, and the endpoint has it
	portInUse                     // never
	numPortClasses
)

var portClassNames = [numPortClasses]string{
	"ended", "silent", "silent-stream", "one-sided", "idle", "answered", "half-open", "doubted", "in-use",
}

// String returns the name that metrics use.
func (c PortClass) String() string { return portClassNames[c%numPortClasses] }

// DisplacedClasses are the classes of flows that have not ended and may lose their port.
func DisplacedClasses() (list []PortClass) {
	for c := portSilent; c < portInUse; c++ {
		list = append(list, c)
	}
	return list
}

// last is the last class that a connection may take.
func (k Keep) last() PortClass {
	return [...]PortClass{KeepNothing: portDoubted, KeepUsed: portStream, KeepStreams: portSilent}[k]
}

// halfOpenIdle is the silence after which the port of a client without an answer counts as
// idle: the client has sent the SYN a second time by then (RFC 6298).
const halfOpenIdle = 2 * TicksPerSecond

// reuseOf returns the class of a connection in state word s that was silent for idle ticks, and
// its client for client ticks. takesSYN is whether the endpoint accepts the new connection's SYN
// in its place.
func reuseOf(s uint32, takesSYN bool, idle, client uint32) PortClass {
	state := flowstate.Of(s)
	unproven := flowstate.UnprovenUDP(s) || state.HalfOpen()
	switch {
	case s&flowstate.Published == 0:
		return portInUse // another worker is making it
	case flowstate.IsAborted(s):
		return portDoubted
	case flowstate.MayRevive(s) && idle <= tcp.ClientSettles:
		return portIdle
	case takesSYN:
		return portEnded
	case unproven && idle >= flowstate.SilentTicks:
		return portSilent
	case flowstate.Proven(s) && idle >= flowstate.SilentTicks:
		return portStream
	case (flowstate.Proven(s) || flowstate.UnprovenUDP(s)) && client >= flowstate.SilentTicks:
		return portOneSided
	case flowstate.UnprovenUDP(s) && idle >= idleTicks, state.HalfOpen() && idle >= halfOpenIdle:
		return portIdle
	case flowstate.UnprovenUDP(s):
		return portAnswered
	case state.HalfOpen():
		return portHalfOpen
	case flowstate.MayBeDead(s, idle):
		return portDoubted
	}
	return portInUse
}

// consider makes the flow of entry r the candidate if its port goes before that of the
// present candidate. It reports whether it does.
func (fl *flows) consider(best *candidate, r Ref, f *NewFlow) bool {
	c := fl.Conn(r)
	s := atomic.LoadUint32(&c.state)
	silence, client := c.Idle(f.Tick), fl.Entry(forwardRef(r.Conn())).idle(f.Tick)
	syn := tcp.SYN{Seq: f.Seq, TSval: f.TSval, HasTS: f.HasTS}
	takesSYN := syn.Accepts(s, atomic.LoadUint32(&c.clientNext), atomic.LoadUint32(&c.extra))
	class := reuseOf(s, takesSYN, silence, client)
	switch class {
	case portEnded:
		silence = 0 // its port is as good as a port that is longer unused
	case portOneSided:
		silence = client
	}
	if class > best.class || class == best.class && silence <= best.silence {
		return false
	}
	best.ref, best.state, best.class, best.silence = r, s, class, silence
	return true
}

// settles reports whether the candidate is taken under keep after so many looks. known is
// whether there is no fresh port to be found.
func (b *candidate) settles(keep Keep, known bool, looked uint32) bool {
	switch {
	case b.class > keep.last():
		return false
	case b.class <= portSilent:
		return known || looked >= looksBefore
	case !known:
		return false // a flow that may go on loses its port only if there is no fresh port
	case b.class == portStream || b.class == portDoubted:
		return looked >= looksBefore
	case flowstate.Of(b.state) >= flowstate.Unreplied && flowstate.Of(b.state) <= flowstate.Stream:
		return looked >= pressedLooksUDP
	}
	return looked >= pressedLooks
}
