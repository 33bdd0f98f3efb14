package schema

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// The block of the schema in the first page of a table: the mark, the length of the text, the
// CRC-32 of the text, and the text. Its place never changes, nor that of the version of the
// layout, which is in bytes 8 to 11.
const (
	BlockOffset = 1024
	BlockEnd    = 4096
	textOffset  = BlockOffset + 16

	versionOffset = 8
)

var mark = [8]byte{'W', 'E', 'I', 'R', 'S', 'C', 'H', 'M'}

// ErrNone is the error of Read for a table without a schema: it was made before there were any.
var ErrNone = errors.New("it has no schema")

// String is the text of a schema.
func (s *Schema) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d\n", s.Version)
	for i := range s.Parts {
		p := &s.Parts[i]
		fmt.Fprintf(&b, "part %s %d %d %d\n", p.Name, p.Offset, p.Size, p.Count)
		for _, f := range p.Fields {
			fmt.Fprintf(&b, "field %s %d %d %d\n", f.Name, f.Offset, f.Width, f.Count)
		}
		for _, n := range p.Bits {
			fmt.Fprintf(&b, "bits %s %s %x\n", n.Field, n.Name, n.Mask)
		}
	}
	for _, v := range s.Values {
		fmt.Fprintf(&b, "value %s %s %d\n", v.Set, v.Name, v.Number)
	}
	return b.String()
}

// Write writes a schema to the first page of a table.
func (s *Schema) Write(page []byte) error { return WriteText(page, s.String()) }

// WriteText is Write of the text of a schema.
func WriteText(page []byte, text string) error {
	if len(text) > BlockEnd-textOffset {
		return fmt.Errorf("the schema has %d bytes, of %d", len(text), BlockEnd-textOffset)
	}
	block := page[BlockOffset:BlockEnd]
	copy(block, mark[:])
	binary.NativeEndian.PutUint32(block[8:], uint32(len(text)))
	binary.NativeEndian.PutUint32(block[12:], crc32.ChecksumIEEE([]byte(text)))
	copy(block[16:], text)
	return nil
}

// Read reads the schema of a table of size bytes from its first page. All records are within
// the table.
func Read(page []byte, size int64) (*Schema, error) {
	if len(page) < BlockEnd || [8]byte(page[BlockOffset:]) != mark {
		return nil, ErrNone
	}
	block := page[BlockOffset:BlockEnd]
	length := binary.NativeEndian.Uint32(block[8:])
	if length > BlockEnd-textOffset {
		return nil, fmt.Errorf("the schema is damaged: %d bytes", length)
	}
	text := block[16:][:length]
	if crc32.ChecksumIEEE(text) != binary.NativeEndian.Uint32(block[12:]) {
		return nil, errors.New("the schema is damaged: checksum")
	}
	s, err := Parse(string(text), size)
	if err != nil {
		return nil, fmt.Errorf("the schema is damaged: %w", err)
	}
	if v := binary.NativeEndian.Uint32(page[versionOffset:]); v != s.Version {
		return nil, fmt.Errorf("the schema is that of version %d", s.Version)
	}
	return s, nil
}

// Parse reads the text of the schema of a table of size bytes.
func Parse(text string, size int64) (*Schema, error) {
	s := &Schema{}
	for line := range strings.Lines(text) {
		if err := s.parseLine(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("%.80q: %w", line, err)
		}
	}
	return s, s.check(size)
}

func (s *Schema) parseLine(f []string) error {
	if len(f) == 0 {
		return nil
	}
	if f[0] != "version" && f[0] != "part" && f[0] != "value" && len(s.Parts) == 0 {
		return errors.New("before the first part")
	}
	switch f[0] {
	case "version":
		return scan(f[1:], &s.Version)
	case "part":
		var p Part
		err := scan(f[1:], &p.Name, &p.Offset, &p.Size, &p.Count)
		s.Parts = append(s.Parts, p)
		return err
	case "value":
		var v Value
		err := scan(f[1:], &v.Set, &v.Name, &v.Number)
		s.Values = append(s.Values, v)
		return err
	}
	p := &s.Parts[len(s.Parts)-1]
	switch f[0] {
	case "field":
		var n Field
		err := scan(f[1:], &n.Name, &n.Offset, &n.Width, &n.Count)
		p.Fields = append(p.Fields, n)
		return err
	case "bits":
		var n Bits
		err := scan(f[1:], &n.Field, &n.Name, (*hexNumber)(&n.Mask))
		p.Bits = append(p.Bits, n)
		return err
	}
	return nil // of a later release
}
