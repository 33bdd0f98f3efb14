package manifest

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
)

// units are the objects of decoded texts, by the hash of the text: that of a document, or
// of an item of a YAML List. Parsing YAML is by far the most expensive part of a load, so
// an unchanged unit, all of whose objects are served, is not parsed again.
type units map[uint64][]object

// unit returns the objects of a text in the file's last version, if all are served now, and
// keeps them for the next. Else it is decoded; false is
// decode's.
func (d *decoder) unit(raw []byte, item int, decode func() ([]object, bool)) ([]object, bool) {
	hash := maphash.Bytes(d.seed, raw)
	objects, found := d.last[hash]
	if !found || slices.ContainsFunc(objects, func(o object) bool { return !d.current(&o) }) {
		var ok bool
		if objects, ok = decode(); !ok {
			return nil, false
		}
	} else if item >= 0 {
		objects = slices.Clone(objects)
		for i := range objects {
			objects[i].item = item // others may have come or gone before it
		}
	}
	if d.units != nil && !slices.ContainsFunc(objects, func(o object) bool { return len(o.faults) > 0 }) {
		d.units[hash] = objects
	}
	return objects, true
}

// current reports whether o is served as it is, or is none of Weir's business.
func (d *decoder) current(o *object) bool {
	if o.skipped != "" {
		return true
	}
	if d.known == nil {
		return false
	}
	key, ok := d.known(o.hash)
	return ok && key == o.key
}

// yamlList decodes a List in the form in which kubectl prints it, item by
// item. It is false for any other text, and if an item is not YAML: then the document must
// be parsed as a whole.
func (d *decoder) yamlList(doc document) ([]object, bool) {
	head, items, ok := splitList(doc.raw)
	if !ok {
		return nil, false
	}
	text, err := toJSON(document{line: doc.line, raw: head})
	if err != nil {
		return nil, false
	}
	var m meta
	if json.Unmarshal(text, &m) != nil || !strings.HasSuffix(m.Kind, "List") || m.Items != nil {
		return nil, false
	}
	var out []object
	for i, raw := range items {
		objects, ok := d.unit(raw, i, func() ([]object, bool) {
			var one []json.RawMessage
			text, err := toJSON(document{line: doc.line, raw: raw})
			if err != nil || json.Unmarshal(text, &one) != nil || len(one) != 1 {
				return nil, false
			}
			return d.item(&m, one[0], i), true
		})
		if !ok {
			return nil, false
		}
		out = append(out, objects...)
	}
	return out, true
}

// splitList cuts the items out of a block style List whose key items stands
// at the beginning of a line; head is the rest. Each item begins with its
// dash. No line of an item can begin further left than the dash, save within
// a quoted text of several lines: an item cut there is not YAML.
func splitList(raw []byte) (head []byte, items [][]byte, ok bool) {
	const key = "items:"
	start := bytes.Index(raw, []byte("\n"+key))
	switch {
	case bytes.HasPrefix(raw, []byte(key)):
		start = 0
	case start < 0:
		return nil, nil, false
	default:
		start++
	}
	rest := raw[start+len(key):]
	eol := bytes.IndexByte(rest, '\n')
	if eol < 0 || !blank(rest[:eol]) {
		return nil, nil, false
	}
	body := rest[eol+1:]
	indent := len(body) - len(bytes.TrimLeft(body, " "))
	dash := append(bytes.Repeat([]byte(" "), indent), '-', ' ')
	if !bytes.HasPrefix(body, dash) {
		return nil, nil, false
	}
	pos, from := 0, 0
	for pos < len(body) {
		line := body[pos:]
		next := len(body)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line, next = line[:i], pos+i+1
		}
		switch {
		case bytes.HasPrefix(line, dash) && pos > from:
			items = append(items, body[from:pos])
			from = pos
		case pos > from && len(line) > 0 && line[0] != ' ' && line[0] != '#' && line[0] != '\r' && !bytes.HasPrefix(line, dash):
			// The next key of the List: the items end here.
			return append(raw[:start:start], body[pos:]...), append(items, body[from:pos]), true
		}
		pos = next
	}
	return raw[:start:start], append(items, body[from:]), true
}
