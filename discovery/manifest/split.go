package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits of a file. They are far above the output of a real cluster and low enough that a
// refusal costs next to nothing.
const (
	// MaxFileBytes is the largest file that is read.
	MaxFileBytes = 128 << 20
	// MaxDocumentBytes is the largest YAML document that is parsed: YAML takes some twenty
	// times the size in memory. JSON is bounded by
	// MaxFileBytes alone.
	MaxDocumentBytes = 32 << 20
	// MaxFileErrors is the number of malformed documents reported of a file; a file with
	// more is taken not to be a manifest at all.
	MaxFileErrors = 100
)

// document is a YAML document or JSON text of a file.
type document struct {
	number int // from 1, as the separators count
	line   int // of the file, where raw begins, from 1
	raw    []byte
}

// split cuts a file at its YAML document markers: a line that is "---", or
// begins with "--- ", and the end marker "...". No YAML construct can
// contain such a line, so the cut is exact even where a document is
// malformed. Blank text before the first marker is not counted.
func split(data []byte) ([]document, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%s exceed the limit of %s for one file", size(len(data)), size(MaxFileBytes))
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, fmt.Errorf("not text: a zero byte at offset %d", i)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8 text")
	}
	var docs []document
	number, line := 1, 1
	start, startLine := 0, 1
	marked := false // the open document began with a marker
	flush := func(end int) {
		raw := data[start:end]
		if !marked && blank(raw) {
			return
		}
		if !blank(raw) {
			docs = append(docs, document{number: number, line: startLine, raw: raw})
		}
		number++
	}
	for pos := 0; pos < len(data); line++ {
		end := len(data)
		next := end
		if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
			end, next = pos+i, pos+i+1
		}
		switch separatorKind(data[pos:end]) {
		case markStart:
			flush(pos)
			start, startLine, marked = pos+3, line, true
		case markEnd:
			flush(pos)
			start, startLine, marked = next, line+1, false
		}
		pos = next
	}
	flush(len(data))
	return docs, nil
}

// begins is the line of the file where the document's text begins: beside or below the
// marker.
func (d *document) begins() int {
	line := d.line
	for _, c := range d.raw {
		switch c {
		case '\n':
			line++
		case ' ', '\t', '\r':
		default:
			return line
		}
	}
	return line
}

type separator uint8

const (
	markNone separator = iota
	markStart
	markEnd
)

func separatorKind(line []byte) separator {
	if len(line) < 3 || line[0] != '-' && line[0] != '.' {
		return markNone
	}
	if len(line) > 3 && line[3] != ' ' && line[3] != '\t' && line[3] != '\r' {
		return markNone
	}
	switch string(line[:3]) {
	case "---":
		return markStart
	case "...":
		return markEnd
	}
	return markNone
}

// blank reports whether text holds nothing but white space, comments and
// YAML directives.
func blank(text []byte) bool {
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
