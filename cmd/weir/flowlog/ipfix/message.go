// Package ipfix writes IPFIX messages (RFC 7011): templates and records of data.
package ipfix

import (
	"encoding/binary"
	"time"
)

// Field is an information element of a template. ID is that of IANA's registry, or of an enterprise.
type Field struct {
	ID uint16
	// Length is the number of bytes in a record, or Variable.
	Length     uint16
	Enterprise uint32 // 0: IANA
}

const (
	// Variable is the length of fields whose values have theirs before them.
	Variable = 0xffff
	// Reverse is the enterprise of the elements of answers (RFC 5103).
	Reverse = 29305
	// FirstTemplate is the lowest number of a template.
	FirstTemplate = 256

	version       = 10
	headerLen     = 16
	setHeaderLen  = 4
	templateSet   = 2
	enterpriseBit = 0x8000
	longString    = 255 // a length byte that two more follow
)

// Template is the order of the fields in a record.
type Template struct {
	Number uint16
	Fields []Field
}

// Message is a message in the making, of at most Size bytes.
type Message struct {
	Size int

	buf     []byte
	set     int    // offset of the last set
	number  uint16 // of that set: a template's, or templateSet
	records int    // of data
}

// Records is the number of records of data in the message.
func (m *Message) Records() int { return m.records }

// Reset empties the message.
func (m *Message) Reset() {
	m.buf = append(m.buf[:0], make([]byte, headerLen)...)
	m.number, m.records = 0, 0
}

// begin begins a set, unless the last is of that number.
func (m *Message) begin(number uint16) {
	if m.number != number {
		m.set, m.number = len(m.buf), number
		m.buf = binary.BigEndian.AppendUint16(m.buf, number)
		m.buf = append(m.buf, 0, 0)
	}
	m.close()
}

// close writes the length of the last set.
func (m *Message) close() { binary.BigEndian.PutUint16(m.buf[m.set+2:], uint16(len(m.buf)-m.set)) }

// Template adds a template. It does not look at Size.
func (m *Message) Template(t *Template) {
	m.begin(templateSet)
	m.buf = binary.BigEndian.AppendUint16(m.buf, t.Number)
	m.buf = binary.BigEndian.AppendUint16(m.buf, uint16(len(t.Fields)))
	for _, f := range t.Fields {
		id := f.ID
		if f.Enterprise != 0 {
			id |= enterpriseBit
		}
		m.buf = binary.BigEndian.AppendUint16(m.buf, id)
		m.buf = binary.BigEndian.AppendUint16(m.buf, f.Length)
		if f.Enterprise != 0 {
			m.buf = binary.BigEndian.AppendUint32(m.buf, f.Enterprise)
		}
	}
	m.close()
}

// Record adds the record data of a template. It adds nothing, and returns false, if there is no room.
func (m *Message) Record(template uint16, data []byte) bool {
	if len(m.buf)+setHeaderLen+len(data) > m.Size {
		return false
	}
	m.begin(template)
	m.buf = append(m.buf, data...)
	m.close()
	m.records++
	return true
}

// Bytes completes the message. sequence counts the records of data before it, domain is that of
// observation. The bytes are good until the next Reset.
func (m *Message) Bytes(now time.Time, sequence, domain uint32) []byte {
	h := m.buf[:headerLen]
	binary.BigEndian.PutUint16(h, version)
	binary.BigEndian.PutUint16(h[2:], uint16(len(m.buf)))
	binary.BigEndian.PutUint32(h[4:], uint32(now.Unix()))
	binary.BigEndian.PutUint32(h[8:], sequence)
	binary.BigEndian.PutUint32(h[12:], domain)
	return m.buf
}

// AppendString appends the value of a field of Variable length, cut off at 65,535 bytes.
func AppendString(b []byte, s string) []byte {
	s = s[:min(len(s), Variable)]
	if len(s) < longString {
		return append(append(b, byte(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint16(append(b, longString), uint16(len(s))), s...)
}
