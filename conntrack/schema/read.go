package schema

import (
	"encoding/binary"
	"math/bits"
)

// Number reads a number of a field. The zero Number reads 0.
type Number struct {
	offset int64
	width  uint8
}

// Number returns the number i of a field of p; ok is false if there is none.
func (p *Part) Number(field string, i int64) (n Number, ok bool) {
	f := p.Field(field)
	if f == nil || i >= f.Count {
		return n, false
	}
	return Number{f.Offset + i*f.Width, uint8(f.Width)}, true
}

// Load reads the number from a record.
func (n Number) Load(record []byte) uint64 {
	b := record[n.offset:]
	switch n.width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// Store writes the number to a record: its lower bytes.
func (n Number) Store(record []byte, v uint64) {
	b := record[n.offset:]
	switch n.width {
	case 1:
		b[0] = uint8(v)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(v))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(v))
	case 8:
		binary.NativeEndian.PutUint64(b, v)
	}
}

// Records returns the memory of the records of a part in table.
func (p *Part) Records(table []byte) []byte {
	return table[p.Offset:][:p.Size*p.Count]
}

// Record returns a record of memory that Records has returned.
func (p *Part) Record(records []byte, i int64) []byte {
	return records[i*p.Size:][:p.Size]
}

// Translation replaces the bits of a number by those that the reader has for the same names.
type Translation []struct {
	from, to uint64
	fit      uint64 // the greatest number that the reader's bits hold
}

// Translate returns the translation of a field between parts of two schemas. Names that either
// does not know are left out.
func Translate(from, to *Part, field string) (t Translation) {
	for _, f := range from.Bits {
		for _, n := range to.Bits {
			if f.Field == field && n.Field == field && f.Name == n.Name {
				t = append(t, struct{ from, to, fit uint64 }{f.Mask, n.Mask, n.Mask >> bits.TrailingZeros64(n.Mask)})
			}
		}
	}
	return t
}

// Apply translates number v; ok is false if the reader has fewer bits for a name than its number needs.
func (t Translation) Apply(v uint64) (out uint64, ok bool) {
	for i := range t {
		b := &t[i]
		n := v & b.from >> bits.TrailingZeros64(b.from)
		if n > b.fit {
			return 0, false
		}
		out |= n << bits.TrailingZeros64(b.to)
	}
	return out, true
}

// Mask returns the mask of a name of the bits of a field, 0 if there is none.
func (p *Part) Mask(field, name string) uint64 {
	for _, b := range p.Bits {
		if b.Field == field && b.Name == name {
			return b.Mask
		}
	}
	return 0
}

// ValueOf returns the number of a name of a set.
func (s *Schema) ValueOf(set, name string) (n uint64, ok bool) {
	for _, v := range s.Values {
		if v.Set == set && v.Name == name {
			return v.Number, true
		}
	}
	return 0, false
}
