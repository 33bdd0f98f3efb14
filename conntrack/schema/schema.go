// Package schema describes the records of a flow table, so that a process whose records are
// others can read them. The description is text in the first page of the table.
//
//	version 5
//	part conns 2097152 64 1000       name, offset, size of a record, number of records
//	field state 16 4 1               name, offset in the record, bytes of a number, numbers
//	bits state number f              field, name, mask of a part of the number
//	value number syn-sent 1          set, name, number
//
// A reader looks for names, and ignores names and kinds of lines that it does not know. So a
// name never gets another meaning: a field whose meaning changes gets another name.
package schema

import (
	"fmt"
	"math"
	"reflect"
)

// Bounds of a schema.
const (
	maxParts   = 16
	maxFields  = 64 // of a part
	maxBits    = 64 // of a part
	maxValues  = 128
	maxRecord  = 4096
	maxRecords = 1 << 32
	maxName    = 40
)

// Schema describes a flow table.
type Schema struct {
	Version uint32 // of the layout
	Parts   []Part
	Values  []Value
}

// Part describes records of a kind, which lie behind each other.
type Part struct {
	Name   string
	Offset int64 // in the table
	Size   int64 // of a record
	Count  int64
	Fields []Field
	Bits   []Bits
}

// Field is a number of a record, or several behind each other, in the byte order of the
// machine.
type Field struct {
	Name   string
	Offset int64 // in the record
	Width  int64 // bytes of each number: 1, 2, 4 or 8
	Count  int64
}

// Bits names bits of the numbers of a field.
type Bits struct {
	Field, Name string
	Mask        uint64
}

// Value names a number of a set, such as a state.
type Value struct {
	Set, Name string
	Number    uint64
}

// PartOf is the part of records of a Go type. Fields are named after those of the type; those
// of a structure within have a point between the names. The tag `table:"name"` keeps the name
// of a field that has another in the program, and `table:"-"` leaves out what no other process
// reads.
func PartOf(name string, record reflect.Type, offset, count int64) Part {
	p := Part{Name: name, Offset: offset, Size: int64(record.Size()), Count: count}
	p.addFields("", record, 0)
	return p
}

// Field returns the field of a name, nil if there is none.
func (p *Part) Field(name string) *Field {
	for i := range p.Fields {
		if p.Fields[i].Name == name {
			return &p.Fields[i]
		}
	}
	return nil
}

// Part returns the part of a name, nil if there is none.
func (s *Schema) Part(name string) *Part {
	for i := range s.Parts {
		if s.Parts[i].Name == name {
			return &s.Parts[i]
		}
	}
	return nil
}

func (p *Part) addFields(prefix string, record reflect.Type, offset int64) {
	for i := range record.NumField() {
		f := record.Field(i)
		name := f.Tag.Get("table")
		if f.Name == "_" || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		at, kind, count := offset+int64(f.Offset), f.Type, int64(1)
		if kind.Kind() == reflect.Array {
			kind, count = kind.Elem(), int64(kind.Len())
		}
		if kind.Kind() == reflect.Struct && count == 1 {
			p.addFields(prefix+name+".", kind, at)
			continue
		}
		p.Fields = append(p.Fields, Field{prefix + name, at, int64(kind.Size()), count})
	}
}

// check checks that a schema describes size bytes of memory: every record is within it, and
// every field within its record.
func (s *Schema) check(size int64) error {
	if len(s.Parts) > maxParts || len(s.Values) > maxValues {
		return fmt.Errorf("%d parts, %d values", len(s.Parts), len(s.Values))
	}
	for i := range s.Parts {
		p := &s.Parts[i]
		if s.Part(p.Name) != p {
			return fmt.Errorf("two parts %s", p.Name)
		}
		if err := p.check(size); err != nil {
			return fmt.Errorf("part %s: %w", p.Name, err)
		}
	}
	return nil
}

func (p *Part) check(size int64) error {
	switch {
	case p.Size < 1 || p.Size > maxRecord || p.Count < 0 || p.Count > maxRecords:
		return fmt.Errorf("%d records of %d bytes", p.Count, p.Size)
	case p.Offset < 0 || p.Offset > size || p.Count > (size-p.Offset)/p.Size:
		return fmt.Errorf("%d records of %d bytes from %d on are not within %d bytes", p.Count, p.Size, p.Offset, size)
	case len(p.Fields) > maxFields || len(p.Bits) > maxBits:
		return fmt.Errorf("%d fields, %d names of bits", len(p.Fields), len(p.Bits))
	}
	for i := range p.Fields {
		f := &p.Fields[i]
		switch {
		case p.Field(f.Name) != f:
			return fmt.Errorf("two fields %s", f.Name)
		case f.Width != 1 && f.Width != 2 && f.Width != 4 && f.Width != 8:
			return fmt.Errorf("field %s has numbers of %d bytes", f.Name, f.Width)
		case f.Offset < 0 || f.Offset > p.Size || f.Count < 1 || f.Count > (p.Size-f.Offset)/f.Width:
			return fmt.Errorf("field %s, %d numbers of %d bytes from %d on, is not within %d bytes", f.Name, f.Count, f.Width, f.Offset, p.Size)
		}
	}
	for _, b := range p.Bits {
		if b.Mask == 0 || p.Field(b.Field) == nil {
			return fmt.Errorf("bits %s of field %s with mask %#x", b.Name, b.Field, b.Mask)
		}
	}
	return nil
}

// Everything is the size of a memory that all records lie within.
const Everything = math.MaxInt64
