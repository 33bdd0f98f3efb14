// Package conntracktest makes flow tables of other layouts for tests: as another release would
// leave them, which has other records.
package conntracktest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/weirlb/weir/conntrack/schema"
)

// Layout is another layout of a flow table.
type Layout struct {
	Version uint32
	Seed    uint64   // of the order of fields, bits and values
	Without []string // fields that it does not have, as "conns.EndpointID"
}

const page = 4096

// Rewrite returns table, which has a schema, in another layout: parts, fields, bits and values
// are in another order, most numbers are wider, and there are fields, bits and values that no
// process knows, with numbers in them.
func Rewrite(table []byte, l Layout) ([]byte, error) {
	from, err := schema.Read(table[:min(len(table), schema.BlockEnd)], int64(len(table)))
	if err != nil {
		return nil, err
	}
	w := &rewriter{rng: rand.New(rand.NewPCG(l.Seed, 1)), from: from, to: l.of(from)}
	w.number()
	size := w.place()
	out := make([]byte, size)
	for i := range w.to.Parts {
		w.copyPart(out, table, &w.to.Parts[i])
	}
	return out, w.finish(out)
}

// of returns the schema without what the layout does not have.
func (l *Layout) of(s *schema.Schema) *schema.Schema {
	out := &schema.Schema{Version: l.Version, Values: slices.Clone(s.Values)}
	for _, p := range s.Parts {
		p.Bits, p.Fields = slices.Clone(p.Bits), slices.Clone(p.Fields)
		p.Fields = slices.DeleteFunc(p.Fields, func(f schema.Field) bool { return slices.Contains(l.Without, p.Name+"."+f.Name) })
		out.Parts = append(out.Parts, p)
	}
	return out
}

type rewriter struct {
	rng      *rand.Rand
	from, to *schema.Schema
}

// number gives values other numbers, and adds one to each set.
func (w *rewriter) number() {
	sets := map[string]uint64{}
	order := w.rng.Perm(len(w.to.Values))
	for _, i := range order {
		v := &w.to.Values[i]
		if v.Set == "table" || v.Name == "none" {
			continue
		}
		sets[v.Set]++
		v.Number = sets[v.Set]
	}
	for _, set := range []string{"state", "mode"} {
		sets[set]++
		w.to.Values = append(w.to.Values, schema.Value{Set: set, Name: "of-another-release", Number: sets[set]})
	}
}

// place gives fields, bits and parts other places, and returns the size of the table.
func (w *rewriter) place() int64 {
	size := int64(page)
	w.rng.Shuffle(len(w.to.Parts), func(i, j int) { w.to.Parts[i], w.to.Parts[j] = w.to.Parts[j], w.to.Parts[i] })
	for i := range w.to.Parts {
		p := &w.to.Parts[i]
		w.rng.Shuffle(len(p.Fields), func(i, j int) { p.Fields[i], p.Fields[j] = p.Fields[j], p.Fields[i] })
		p.Fields = slices.Insert(p.Fields, w.rng.IntN(len(p.Fields)+1), schema.Field{Name: "ofAnotherRelease", Width: 4, Count: 3})
		if p.Name == "header" {
			slices.SortStableFunc(p.Fields, func(a, b schema.Field) int { return rank(a.Name) - rank(b.Name) })
		}
		at := int64(0)
		for i := range p.Fields {
			f := &p.Fields[i]
			if f.Name != "Shape.Magic" && f.Name != "Shape.Version" {
				f.Width = min(8, 2*f.Width)
			}
			f.Offset, at = at, at+f.Width*f.Count
		}
		p.Size = (at + 15) / 8 * 8
		w.placeBits(p)
		if p.Name != "header" {
			p.Offset = size
			size = (size + p.Size*p.Count + page - 1) / page * page
		}
	}
	return size
}

// rank keeps what every release has at the same place in the header, and the checksum behind
// what it is of.
func rank(field string) int {
	switch {
	case field == "Shape.Magic":
		return 0
	case field == "Shape.Version":
		return 1
	case strings.HasPrefix(field, "Shape."):
		return 2
	case field == "Sum":
		return 3
	}
	return 4
}

// placeBits gives bits other places. Fields have twice the width.
func (w *rewriter) placeBits(p *schema.Part) {
	w.rng.Shuffle(len(p.Bits), func(i, j int) { p.Bits[i], p.Bits[j] = p.Bits[j], p.Bits[i] })
	next := map[string]int{}
	for i := range p.Bits {
		b := &p.Bits[i]
		n := bits.OnesCount64(b.Mask)
		if b.Name == "number" {
			n++ // there are more states
		}
		b.Mask = (1<<n - 1) << next[b.Field]
		next[b.Field] += n
	}
	for field, n := range next {
		p.Bits = append(p.Bits, schema.Bits{Field: field, Name: "ofAnotherRelease", Mask: 1 << n})
	}
}

// copyPart copies the records of a part.
func (w *rewriter) copyPart(out, table []byte, to *schema.Part) {
	from := w.from.Part(to.Name)
	for i := range to.Count {
		was, is := from.Record(from.Records(table), i), to.Record(to.Records(out), i)
		for _, f := range to.Fields {
			for n := range f.Count {
				number, _ := to.Number(f.Name, n)
				source, ok := from.Number(f.Name, n)
				v := source.Load(was)
				if !ok {
					v = w.rng.Uint64()
				}
				number.Store(is, w.translate(from, to, f.Name, v))
			}
		}
	}
}

// translate replaces bits and values of a number.
func (w *rewriter) translate(from, to *schema.Part, field string, v uint64) uint64 {
	switch field {
	case "Mode":
		return w.value("mode", v)
	case "state", "Flags":
	default:
		return v
	}
	out, _ := schema.Translate(from, to, field).Apply(v)
	if mask := to.Mask(field, "number"); mask != 0 {
		at := bits.TrailingZeros64(mask)
		out = out&^mask | w.value("state", v&from.Mask(field, "number"))<<at
	}
	if w.rng.IntN(2) == 0 {
		out |= to.Mask(field, "ofAnotherRelease")
	}
	return out
}

// value is the new number of a value.
func (w *rewriter) value(set string, n uint64) uint64 {
	for _, v := range w.from.Values {
		if v.Set == set && v.Number == n {
			n, _ := w.to.ValueOf(set, v.Name)
			return n
		}
	}
	return n
}

// finish writes the rest of the header.
func (w *rewriter) finish(out []byte) error {
	head := w.to.Part("header")
	for name, v := range map[string]uint64{"Shape.Version": uint64(w.to.Version), "Shape.Size": uint64(len(out))} {
		n, ok := head.Number(name, 0)
		if !ok {
			return fmt.Errorf("the header has no %s", name)
		}
		n.Store(out, v)
	}
	sum, ok := head.Number("Sum", 0)
	if !ok || head.Size > schema.BlockOffset {
		return fmt.Errorf("a header of %d bytes, checksum %v", head.Size, ok)
	}
	sum.Store(out, uint64(crc32.ChecksumIEEE(out[:head.Field("Sum").Offset])))
	if v := binary.NativeEndian.Uint32(out[8:]); v != w.to.Version {
		return fmt.Errorf("version %d is not in its place", v)
	}
	return w.to.Write(out)
}
