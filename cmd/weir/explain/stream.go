package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Output is the output of `weir explain`. With 10,000 Services it has tens of megabytes,
// and the daemon makes it in the process that moves packets: a single Service at a time is
// in memory.
type Output struct {
	Node   string
	WhatIf string // as given: drain=10.1.2.3; "": none
	// Services are sorted by namespace and name. An error ends them.
	Services iter.Seq2[*Service, error]
	// Errors are those of documents, Services included. Errors
	// and Notes are complete once Services has ended.
	Errors []string
	// Notes are about skipped documents that are no mistake.
	Notes []string

	live      bool // of a daemon: frontends are all that are
	onlyMoved bool // as text, leave out Services of which no flow would move
}

// WriteFields writes the fields of the JSON form, which is a contract: fields
// are only ever added.
func (o *Output) WriteFields(w *api.ObjectWriter) error {
	w.Field("node", o.Node)
	if o.WhatIf != "" {
		w.Field("whatIf", o.WhatIf)
	}
	w.List("services")
	for s, err := range o.Services {
		if err == nil {
			err = w.Element(s)
		}
		if err != nil {
			return err
		}
	}
	w.End()
	if len(o.Errors) > 0 {
		w.Field("errors", o.Errors)
	}
	if len(o.Notes) > 0 {
		w.Field("notes", o.Notes)
	}
	return w.Err()
}

// writeJSON writes the JSON form for people.
func (o *Output) writeJSON(w io.Writer) error {
	j := api.NewObjectWriter(w, true)
	return errors.Join(o.WriteFields(j), j.Close())
}

// Decode reads the JSON form from r: the fields before the Services at once, the
// rest while Services is iterated over, which is possible once.
func Decode(r io.Reader) (*Output, error) {
	o, d := &Output{}, json.NewDecoder(r)
	if err := expect(d, '{'); err != nil {
		return nil, err
	}
	listed, err := o.readFields(d)
	if err != nil {
		return nil, err
	}
	o.Services = func(yield func(*Service, error) bool) {
		if !listed {
			return
		}
		for d.More() {
			s := new(Service)
			if err := d.Decode(s); err != nil {
				yield(nil, fmt.Errorf("answer to explain: %w", err))
				return
			}
			if !yield(s, nil) {
				return
			}
		}
		if err := o.readEnd(d); err != nil {
			yield(nil, fmt.Errorf("answer to explain: %w", err))
		}
	}
	return o, nil
}

// readFields reads up to the first element of "services", or to the end of the
// object, and reports whether that list has begun.
func (o *Output) readFields(d *json.Decoder) (listed bool, err error) {
	to := map[json.Token]any{"node": &o.Node, "whatIf": &o.WhatIf, "errors": &o.Errors, "notes": &o.Notes}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return false, err
		}
		if name == "services" {
			return true, expect(d, '[')
		}
		v := to[name]
		if v == nil {
			v = new(json.RawMessage) // of a newer daemon
		}
		if err := d.Decode(v); err != nil {
			return false, err
		}
	}
	return false, expect(d, '}')
}

// readEnd reads the fields after the last Service.
func (o *Output) readEnd(d *json.Decoder) error {
	if err := expect(d, ']'); err != nil {
		return err
	}
	again, err := o.readFields(d)
	if err == nil && again {
		err = errors.New("services are listed twice")
	}
	return err
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case got != want:
		return fmt.Errorf("expected %v, got %v", want, got)
	}
	return nil
}
