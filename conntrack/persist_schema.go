package conntrack

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"unsafe"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/schema"
)

// Parts of a table in its schema.
const (
	partHeader  = "header"
	partCursors = "cursors"
	partConns   = "conns"
	partEntries = "entries"
)

// Sets of values in the schema.
const (
	valuesState = "state"
	valuesMode  = "mode"
	valuesTable = "table" // numbers of the whole table
)

// stateNumber is the name of the bits of Conn.state with the State.
const stateNumber = "number"

// ownSchema describes a table of maxFlows as this process has it. The names are for other
// releases too. What gets another meaning gets another name: TestTheLayoutIsThatOfItsVersion.
func ownSchema(maxFlows int64) *schema.Schema {
	p := planFor(maxFlows)
	conns := schema.PartOf(partConns, reflect.TypeFor[Conn](), p.conns, maxFlows)
	conns.Bits = stateBits()
	entries := schema.PartOf(partEntries, reflect.TypeFor[Entry](), p.entries, 2*maxFlows)
	entries.Bits = []schema.Bits{
		{Field: "Flags", Name: "outer6", Mask: FlagOuter6},
		{Field: "Flags", Name: "watched", Mask: FlagWatched},
	}
	s := &schema.Schema{
		Version: layoutVersion,
		Parts: []schema.Part{
			schema.PartOf(partHeader, reflect.TypeFor[header](), 0, 1),
			schema.PartOf(partCursors, reflect.TypeFor[cursorRecord](), p.cursors, cursorCount),
			conns, entries,
		},
		Values: []schema.Value{{Set: valuesTable, Name: "ticks-per-second", Number: TicksPerSecond}},
	}
	for n, name := range flowstate.Names[:] {
		s.Values = append(s.Values, schema.Value{Set: valuesState, Name: name, Number: uint64(n)})
	}
	for n, name := range modeNames {
		s.Values = append(s.Values, schema.Value{Set: valuesMode, Name: name, Number: uint64(n) + uint64(ModeNAT)})
	}
	return s
}

// modeNames are the names of modes from ModeNAT on.
var modeNames = [...]string{"nat", "dnat", "l2dsr", "ipip", "gue"}

// cursorRecord is cursor with its words by name.
type cursorRecord struct {
	At uint32
	_  [3]uint32
}

var _ [unsafe.Sizeof(cursor{})]byte = [unsafe.Sizeof(cursorRecord{})]byte{}

// stateBits are the bits of Conn.state. renumbered is left out: it is of a moment.
func stateBits() (list []schema.Bits) {
	for _, b := range []struct {
		name string
		mask uint64
	}{
		{stateNumber, flowstate.Mask},
		{"slow", flowstate.Slow},
		{"finClient", flowstate.FinClient},
		{"finEndpoint", flowstate.FinEndpoint},
		{"ackedClient", flowstate.AckedClient},
		{"ackedEndpoint", flowstate.AckedEndpoint},
		{"endpointFirst", flowstate.EndpointFirst},
		{"clientKnown", flowstate.ClientKnown},
		{"endpointKnown", flowstate.EndpointKnown},
		{"tsKnown", flowstate.TsKnown},
		{"synNoted", flowstate.SynNoted},
		{"synAckNoted", flowstate.SynAckNoted},
		{"young", flowstate.Young},
		{"doubted", flowstate.Doubted},
		{"unconfirmed", flowstate.Unconfirmed},
		{"clientOnly", flowstate.ClientOnly},
		{"superseded", flowstate.Superseded},
		{"since", flowstate.SinceMask},
		{"changing", flowstate.Changing},
		{"published", flowstate.Published},
	} {
		list = append(list, schema.Bits{Field: "state", Name: b.name, Mask: b.mask})
	}
	return list
}

// layout5 is the schema of version 5, whose tables may have none.
//
//go:embed layouts/5.txt
var layout5 string

// errFlows is the error of a header with a senseless number of connections.
var errFlows = errors.New("the header has no number of connections")

// schema5 is the schema of a table of version 5 and size bytes, which begins with page. It does
// not follow later changes of the plan.
func schema5(page []byte, size int64) (*schema.Schema, error) {
	s, err := schema.Parse(layout5, schema.Everything)
	if err != nil {
		return nil, err
	}
	head := s.Part(partHeader)
	n, ok := head.Number("Shape.MaxFlows", 0)
	if !ok || int64(len(page)) < head.Size {
		return nil, errFlows
	}
	flows := n.Load(page)
	if flows == 0 || flows > mostFlows {
		return nil, errFlows
	}
	conns, entries := s.Part(partConns), s.Part(partEntries)
	align5 := func(offset, size int64) int64 {
		to := int64(4096)
		if size >= 2<<20 {
			to = 2 << 20
		}
		return (offset + to - 1) / to * to
	}
	conns.Count, entries.Count = int64(flows), 2*int64(flows)
	conns.Offset = align5(4096+16<<16, conns.Count*conns.Size)
	entries.Offset = align5(conns.Offset+conns.Count*conns.Size, entries.Count*entries.Size)
	return schema.Parse(s.String(), size)
}

// describe writes the schema of a table of maxFlows to its header.
func describe(head *header, maxFlows int64) error {
	page := unsafe.Slice((*byte)(unsafe.Pointer(head)), headerSize)
	return ownSchema(maxFlows).Write(page)
}

// foreignVersion is the version of the layout in a header of any version.
func foreignVersion(page []byte) uint32 {
	return binary.NativeEndian.Uint32(page[unsafe.Offsetof(shape{}.Version):])
}

// sameText reports whether two schemas are the same.
func sameText(a, b *schema.Schema) bool { return strings.Compare(a.String(), b.String()) == 0 }
