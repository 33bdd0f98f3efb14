package conntrack

import (
	"cmp"
	"math"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// DiscardCause is why a connection of an earlier process was left out, as a label.
type DiscardCause string

// Causes.
const (
	Damaged        DiscardCause = "damaged" // or half made
	NoRoom         DiscardCause = "no-room"
	UnknownState   DiscardCause = "unknown-state" // of a table of another layout
	UnknownMode    DiscardCause = "unknown-mode"
	NumberTooLarge DiscardCause = "number-too-large"
)

// DiscardCauses are all of them, in the order of the reference.
var DiscardCauses = []DiscardCause{Damaged, NoRoom, UnknownState, UnknownMode, NumberTooLarge}

func (a *Restoration) discard(why DiscardCause) {
	a.Discarded++
	if a.DiscardedBy == nil {
		a.DiscardedBy = map[DiscardCause]int{}
	}
	a.DiscardedBy[why]++
}

// copier copies what an earlier process left, in memory last, into a new table.
type copier struct {
	*Table
	last []byte
	r    *reader
}

// copy copies connections, clock and port rotation. restore follows. Connections that cannot be copied are counted. With too little room, those that
// eviction never takes go first.
func (cp *copier) copy() {
	r := cp.r
	h := r.header(cp.last)
	cp.head.Epoch, cp.head.LastTick, cp.head.LastWall = h.Epoch, h.LastTick, h.LastWall
	if r.head.seeded {
		cp.head.Shape.Seed = h.Shape.Seed
		cp.head.Sum = cp.head.Shape.sum()
		cp.copyCursors()
	}
	if r.connections(cp.last) <= int64(len(cp.conns)) {
		cp.copyConns(0, func(uint64) bool { return true })
		return
	}
	free := cp.copyConns(0, r.lasts)
	cp.copyConns(free, func(word uint64) bool { return !r.lasts(word) })
}

// copyConns copies the connections whose state word is wanted. The first free connection is
// number free, and afterwards that which it returns.
func (cp *copier) copyConns(free int64, wanted func(word uint64) bool) int64 {
	r := cp.r
	conns, entries := r.conns.Records(cp.last), r.entries.Records(cp.last)
	for i := range r.conns.Count {
		record := r.conns.Record(conns, i)
		if word := r.conn.state.Load(record); word&r.published == 0 || !wanted(word) {
			continue
		}
		if free == int64(len(cp.conns)) {
			cp.restored.discard(NoRoom)
			continue
		}
		c, fw, rv := &cp.conns[free], &cp.entries[2*free], &cp.entries[2*free+1]
		if why := cmp.Or(
			r.readEntry(fw, r.entries.Record(entries, 2*i)),
			r.readEntry(rv, r.entries.Record(entries, 2*i+1)),
			recompute(fw, rv, &r.entry), r.readConn(c, record, cp.head.LastTick),
		); why != "" {
			*c, *fw, *rv = Conn{}, Entry{}, Entry{}
			cp.restored.discard(why)
			continue
		}
		free++
	}
	return free
}

// connections is the number of connections in a table.
func (r *reader) connections(table []byte) (n int64) {
	conns := r.conns.Records(table)
	for i := range r.conns.Count {
		if r.conn.state.Load(r.conns.Record(conns, i))&r.published != 0 {
			n++
		}
	}
	return n
}

// lasts reports whether eviction never takes a connection with a state word while it is not
// silent. A UDP flow that may be proven counts as proven, as heard is of its process alone.
func (r *reader) lasts(word uint64) bool {
	state, _, ok := r.stateOf(word)
	return ok && evictionOf(state|flowstate.Heard, 0, 0, 0) == evictNever
}

// stateOf is this process's state word for that of a connection; known is false if there is no
// such State here, ok if a number in the word is too large.
func (r *reader) stateOf(word uint64) (state uint32, known, ok bool) {
	// The number of the State has a translation of its own, and may be larger than fits here.
	translated, ok := r.state.Apply(word &^ r.number)
	own := r.states[word&r.number>>r.shift]
	ok = ok && translated <= math.MaxUint32
	return uint32(translated)&^flowstate.Mask | uint32(own), own != uint8(flowstate.None), ok
}

// copyCursors copies the port rotation, whose groups follow from the seed.
func (cp *copier) copyCursors() {
	p := cp.r.schema.Part(partCursors)
	if p == nil || p.Count != cursorCount {
		return
	}
	at, ok := p.Number("At", 0)
	if !ok {
		return
	}
	records := p.Records(cp.last)
	for i := range cp.ports.cursors {
		cp.ports.cursors[i].at.Store(uint32(at.Load(p.Record(records, int64(i)))))
	}
}

// readEntry reads an entry, and returns why that is not possible.
func (r *reader) readEntry(e *Entry, record []byte) DiscardCause {
	n := &r.entry
	for i := range e.Key.W {
		e.Key.W[i] = n.key[i].Load(record)
	}
	if mode := n.mode.Load(record); mode < uint64(len(r.modes)) {
		e.Mode = Mode(r.modes[mode])
	}
	flags, ok := r.flags.Apply(n.flags.Load(record))
	ports, addr, l4, seen := n.newPorts.Load(record), n.addrDelta.Load(record), n.l4Delta.Load(record), n.seen.Load(record)
	if !ok || ports|seen > math.MaxUint32 || addr|l4 > math.MaxUint16 {
		return NumberTooLarge
	}
	e.Addr4, e.NewPorts, e.AddrDelta, e.L4Delta = n.addr4.Load(record), uint32(ports), uint16(addr), uint16(l4)
	e.Flags, e.seen = uint8(flags), uint32(seen)
	return ""
}

// recompute makes the recipes of two entries anew from their keys, and clears their next-hop
// words. What was read besides must be the same.
func recompute(fw, rv *Entry, n *entryNumbers) DiscardCause {
	was := [2]Entry{*fw, *rv}
	if fw.Key.Family() == 4 {
		fw.Key.W[1] = 0
	}
	switch fw.Mode {
	case ModeNAT, ModeDNAT:
		if rv.Key.Family() == 4 {
			rv.Key.W[1] = 0
		}
		complete(fw, rv)
	case ModeL2DSR, ModeIPIP, ModeGUE:
		rv.Addr4 = 0
		fw.NewPorts, fw.AddrDelta, fw.L4Delta = uint32(fw.Key.W[4]), 0, 0
		rv.NewPorts, rv.AddrDelta, rv.L4Delta = outerSum(fw, &rv.Key), 0, 0
		if was[1].NewPorts == 0 { // an earlier release left none
			was[1].NewPorts = rv.NewPorts
		}
	default:
		return UnknownMode
	}
	for i, e := range [2]*Entry{fw, rv} {
		o := &was[i]
		if n.hasPorts && e.NewPorts != o.NewPorts || n.hasAddrDelta && e.AddrDelta != o.AddrDelta ||
			n.hasL4Delta && e.L4Delta != o.L4Delta || e.Key.Family() == 4 && !e.Mode.DSR() && e.Addr4 != o.Addr4 {
			return Damaged
		}
	}
	return ""
}

// readConn reads the words of a connection that change, and returns why that is not possible.
// last is the tick of a connection without one.
func (r *reader) readConn(c *Conn, record []byte, last uint32) DiscardCause {
	n := &r.conn
	state, known, ok := r.stateOf(n.state.Load(record))
	if !known {
		return UnknownState
	}
	numbers := [5]uint64{uint64(last), uint64(last), n.clientNext.Load(record), n.endpointNext.Load(record), n.extra.Load(record)}
	if n.aged {
		numbers[0], numbers[1] = n.lastSeen.Load(record), n.created.Load(record)
	}
	if !ok || numbers[0]|numbers[1]|numbers[2]|numbers[3]|numbers[4] > math.MaxUint32 {
		return NumberTooLarge
	}
	c.lastSeen, c.created = uint32(numbers[0]), uint32(numbers[1])
	c.clientNext, c.endpointNext, c.extra = uint32(numbers[2]), uint32(numbers[3]), uint32(numbers[4])
	c.EndpointID, c.ServiceID = NoID, NoID
	atomic.StoreUint32(&c.state, state&^n.unknown)
	return ""
}
