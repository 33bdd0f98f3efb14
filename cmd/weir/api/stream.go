package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Time that an answer may take. A reader that is stuck is given up after
// readerStall, a slow one after answerTime.
const (
	readerStall = 10 * time.Second
	answerTime  = time.Minute
)

// Stream writes an answer whose size has no bound: a single field, or element of a list, is
// in memory at a time. It holds no lock while it writes. It ends
// early with the writer's error.
type Stream func(w *ObjectWriter) error

// ObjectWriter writes a JSON object (RFC 8259), field by field. After an
// error it writes nothing more.
type ObjectWriter struct {
	w      io.Writer
	piece  piece // the bytes to write next
	enc    *json.Encoder
	indent bool
	before func() error // each write; may be nil
	inList bool
	open   bool // something stands before the next element or field
	err    error
}

// piece is a buffer that keeps the memory.
type piece []byte

func (p *piece) Write(b []byte) (int, error) {
	*p = append(*p, b...)
	return len(b), nil
}

// NewObjectWriter returns an ObjectWriter to w. With indent the result is that
// of json.MarshalIndent with two spaces; without it a list has an element per
// line.
func NewObjectWriter(w io.Writer, indent bool) *ObjectWriter {
	o := &ObjectWriter{w: w, indent: indent}
	o.enc = json.NewEncoder(&o.piece)
	o.enc.SetEscapeHTML(false)
	o.write([]byte("{"))
	return o
}

// Field writes a field.
func (o *ObjectWriter) Field(name string, v any) error {
	o.name(name)
	return o.value(v, "  ")
}

// List begins a field that is a list; Element calls follow, then End.
func (o *ObjectWriter) List(name string) error {
	o.name(name)
	o.write([]byte("["))
	o.inList, o.open = true, false
	return o.err
}

// Element writes the next element of the list.
func (o *ObjectWriter) Element(v any) error {
	o.separate("    ")
	return o.value(v, "    ")
}

// End ends the list.
func (o *ObjectWriter) End() error {
	o.close("  ", "]")
	o.inList, o.open = false, true
	return o.err
}

// Close ends the object with a newline. The caller closes the destination.
func (o *ObjectWriter) Close() error {
	o.close("", "}")
	o.write([]byte("\n"))
	return o.err
}

// Err returns the first error, which the other methods return as well.
func (o *ObjectWriter) Err() error { return o.err }

func (o *ObjectWriter) name(name string) {
	o.separate("  ")
	colon := `":`
	if o.indent {
		colon = `": `
	}
	o.write([]byte(`"` + name + colon))
}

// separate begins a line for the next element.
func (o *ObjectWriter) separate(prefix string) {
	comma := ""
	if o.open {
		comma = ","
	}
	o.open = true
	o.write([]byte(comma + o.line(prefix)))
}

// close ends a list or an object; an empty list or object stays on the same line.
func (o *ObjectWriter) close(prefix, bracket string) {
	if o.open {
		bracket = o.line(prefix) + bracket
	}
	o.write([]byte(bracket))
}

func (o *ObjectWriter) line(prefix string) string {
	switch {
	case o.indent:
		return "\n" + prefix
	case o.inList:
		return "\n"
	}
	return ""
}

func (o *ObjectWriter) value(v any, prefix string) error {
	if o.err != nil {
		return o.err
	}
	o.piece = o.piece[:0]
	if o.indent {
		o.enc.SetIndent(prefix, "  ")
	}
	if err := o.enc.Encode(v); err != nil {
		o.err = fmt.Errorf("encode: %w", err)
		return o.err
	}
	o.write(o.piece[:len(o.piece)-1]) // without the newline that Encode adds
	return o.err
}

func (o *ObjectWriter) write(b []byte) {
	if o.err == nil && o.before != nil {
		o.err = o.before()
	}
	if o.err == nil {
		_, o.err = o.w.Write(b)
	}
}

// stream answers with a Stream. A fault in the middle breaks the connection, so
// that the client does not take a part for the whole.
func stream(w http.ResponseWriter, r *http.Request, stall time.Duration, s Stream, err error) {
	if err != nil {
		reply(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	o := NewObjectWriter(w, false)
	o.before = deadlines(r.Context(), http.NewResponseController(w), stall)
	if err := errors.Join(s(o), o.Close()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// deadlines returns a function that is to be called before each write: it
// gives the reader stall more time, up to answerTime in all.
func deadlines(ctx context.Context, c *http.ResponseController, stall time.Duration) func() error {
	end := time.Now().Add(answerTime)
	return func() error {
		at := time.Now().Add(stall)
		if at.After(end) {
			at = end
		}
		if err := c.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return ctx.Err()
	}
}
