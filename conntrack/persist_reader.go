package conntrack

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/schema"
)

// A reader reads the records of a table by names, whatever its layout. It writes nothing to
// that table, so that a process that is killed meanwhile leaves it to the next.
type reader struct {
	schema         *schema.Schema
	conns, entries *schema.Part
	head           headNumbers
	sumAt          int64
	conn           connNumbers
	entry          entryNumbers
	state, flags   schema.Translation
	// states and modes are this process's numbers, by those of the table: 0 is unknown.
	states, modes [256]uint8
	number        uint64 // mask of the State, shift bits up
	shift         int
	published     uint64
}

type headNumbers struct {
	flows, size, sum, epoch, lastTick, lastWall schema.Number

	bootID [16]schema.Number
	seed   [4]schema.Number
	seeded bool
}

type connNumbers struct {
	state, lastSeen, created, clientNext, endpointNext, extra schema.Number
	aged                                                      bool // lastSeen and created are there, else LastTick is for both
	// unknown are the bits of state that are cleared, as the numbers that they are about are
	// not there.
	unknown uint32
}

type entryNumbers struct {
	key                                                    [5]schema.Number
	addr4, newPorts, addrDelta, l4Delta, mode, flags, seen schema.Number
	// The numbers that follow from the keys need not be there. If they are, they show damage.
	hasPorts, hasAddrDelta, hasL4Delta bool
}

var errTicks = errors.New("its ticks have another length")

// newReader returns a reader for tables of schema s. own describes this process's. The error
// names what is missing.
func newReader(s, own *schema.Schema) (*reader, error) {
	r := &reader{schema: s, conns: s.Part(partConns), entries: s.Part(partEntries)}
	head := s.Part(partHeader)
	if head == nil || r.conns == nil || r.entries == nil || head.Offset != 0 || head.Count != 1 || head.Size > schema.BlockOffset {
		return nil, errors.New("the schema lacks a part")
	}
	if n := r.conns.Count; n < 1 || n > mostFlows || r.entries.Count != 2*n {
		return nil, fmt.Errorf("the schema has %d connections with %d entries", n, r.entries.Count)
	}
	if n, ok := s.ValueOf(valuesTable, "ticks-per-second"); !ok || n != TicksPerSecond {
		return nil, errTicks
	}
	f := &finder{}
	r.findHeader(f, head)
	r.findConn(f)
	r.findEntry(f)
	if f.missing != "" {
		return nil, fmt.Errorf("the schema lacks %s", f.missing)
	}
	r.state = schema.Translate(r.conns, own.Part(partConns), "state")
	r.flags = schema.Translate(r.entries, own.Part(partEntries), "Flags")
	r.published = r.conns.Mask("state", "published")
	r.number = r.conns.Mask("state", stateNumber)
	r.shift = bits.TrailingZeros64(r.number)
	if r.published == 0 || r.number == 0 || r.number>>r.shift > 255 {
		return nil, errors.New("the schema lacks the bits of the state")
	}
	for _, v := range s.Values {
		if n, ok := own.ValueOf(v.Set, v.Name); ok && v.Number < 256 {
			switch v.Set {
			case valuesState:
				r.states[v.Number] = uint8(n)
			case valuesMode:
				r.modes[v.Number] = uint8(n)
			}
		}
	}
	return r, nil
}

// finder looks up numbers of parts. missing is the first that was not there.
type finder struct{ missing string }

func (f *finder) need(p *schema.Part, field string, i int64) schema.Number {
	n, ok := p.Number(field, i)
	if !ok && f.missing == "" {
		f.missing = fmt.Sprintf("number %d of %s.%s", i, p.Name, field)
	}
	return n
}

func (r *reader) findHeader(f *finder, p *schema.Part) {
	h := &r.head
	h.flows, h.size, h.sum = f.need(p, "Shape.MaxFlows", 0), f.need(p, "Shape.Size", 0), f.need(p, "Sum", 0)
	h.epoch, h.lastTick, h.lastWall = f.need(p, "Epoch", 0), f.need(p, "LastTick", 0), f.need(p, "LastWall", 0)
	for i := range h.bootID {
		h.bootID[i] = f.need(p, "Shape.BootID", int64(i))
	}
	h.seeded = true
	for i := range h.seed {
		n, ok := p.Number("Shape.Seed", int64(i))
		h.seed[i], h.seeded = n, h.seeded && ok
	}
	if sum := p.Field("Sum"); sum != nil {
		r.sumAt = sum.Offset
	}
}

func (r *reader) findConn(f *finder) {
	c, p := &r.conn, r.conns
	c.state = f.need(p, "state", 0)
	var seen, created, known bool
	c.lastSeen, seen = p.Number("lastSeen", 0)
	c.created, created = p.Number("created", 0)
	c.aged = seen && created
	for _, n := range []struct {
		to   *schema.Number
		name string
		bits uint32
	}{
		{&c.clientNext, "clientNext", flowstate.ClientKnown},
		{&c.endpointNext, "endpointNext", flowstate.EndpointKnown},
		{&c.extra, "extra", flowstate.TsKnown | flowstate.SynNoted | flowstate.SynAckNoted},
	} {
		if *n.to, known = p.Number(n.name, 0); !known {
			c.unknown |= n.bits
		}
	}
}

func (r *reader) findEntry(f *finder) {
	e, p := &r.entry, r.entries
	for i := range e.key {
		e.key[i] = f.need(p, "Key.W", int64(i))
	}
	e.addr4, e.mode, e.flags = f.need(p, "Addr4", 0), f.need(p, "Mode", 0), f.need(p, "Flags", 0)
	e.newPorts, e.hasPorts = p.Number("NewPorts", 0)
	e.addrDelta, e.hasAddrDelta = p.Number("AddrDelta", 0)
	e.l4Delta, e.hasL4Delta = p.Number("L4Delta", 0)
	e.seen, _ = p.Number("seen", 0)
}

// header returns what of a header matters beyond its process.
func (r *reader) header(page []byte) (h header) {
	n := &r.head
	h.Shape.MaxFlows, h.Shape.Size, h.Sum = n.flows.Load(page), n.size.Load(page), uint32(n.sum.Load(page))
	h.Epoch, h.LastTick, h.LastWall = int64(n.epoch.Load(page)), uint32(n.lastTick.Load(page)), int64(n.lastWall.Load(page))
	for i := range n.bootID {
		h.Shape.BootID[i] = byte(n.bootID[i].Load(page))
	}
	for i := range n.seed {
		h.Shape.Seed[i] = n.seed[i].Load(page)
	}
	return h
}
