package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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
// malformed. Lines end as YAML has it. Blank text before the first marker is not counted.
func split(data []byte) ([]document, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%s exceed the limit of %s for one file", size(len(data)), size(MaxFileBytes))
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, errors.New("UTF-16 text: only UTF-8 is read")
	}
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
			docs = append(docs, document{number: number, line: startLine, raw: withoutMark(raw)})
		}
		number++
	}
	for pos := 0; pos < len(data); line++ {
		end, next := lineEnd(data, pos)
		text := withoutBOM(data[pos:end])
		switch separatorKind(text) {
		case markStart:
			flush(pos)
			start, startLine, marked = end-len(afterMarker(text)), line, true
		case markEnd:
			flush(pos)
			start, startLine, marked = next, line+1, false
		}
		pos = next
	}
	flush(len(data))
	return docs, nil
}

// Documents cuts a file of any objects into YAML documents, without those that have no text.
func Documents(data []byte) ([][]byte, error) {
	docs, err := split(data)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, d := range docs {
		out = append(out, d.raw)
	}
	return out, nil
}

// withoutMark is a document without the byte order mark before the first line with text.
func withoutMark(raw []byte) []byte {
	for pos := 0; pos < len(raw); {
		end, next := lineEnd(raw, pos)
		if line := raw[pos:end]; !blank(line) {
			if rest := withoutBOM(line); len(rest) < len(line) {
				return slices.Concat(raw[:pos], raw[end-len(rest):])
			}
			return raw
		}
		pos = next
	}
	return raw
}

// withoutBOM is text without the byte order mark, which may begin each document.
func withoutBOM(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) }

// afterMarker is the text after "---" in a line. A tab there separates, and cannot begin the text.
func afterMarker(line []byte) []byte {
	rest := line[len("---"):]
	if text := bytes.TrimLeft(rest, " \t"); bytes.IndexByte(rest[:len(rest)-len(text)], '\t') >= 0 {
		return text
	}
	return rest
}

// lineEnd returns where the line at pos ends, and where the next begins. The line breaks of YAML are
// LF, CR, CR LF, NEL, LS and PS.
func lineEnd(data []byte, pos int) (end, next int) {
	for i := pos; i < len(data); i++ {
		switch c := data[i]; {
		case c == '\n':
			return i, i + 1
		case c == '\r' && i+1 < len(data) && data[i+1] == '\n':
			return i, i + 2
		case c == '\r':
			return i, i + 1
		case c == 0xc2 && bytes.HasPrefix(data[i:], []byte("\u0085")):
			return i, i + 2
		case c == 0xe2 && (bytes.HasPrefix(data[i:], []byte("\u2028")) || bytes.HasPrefix(data[i:], []byte("\u2029"))):
			return i, i + 3
		}
	}
	return len(data), len(data)
}

// begins is the line of the file where the document's text begins: beside or below the
// marker.
func (d *document) begins() int {
	line := d.line
	for pos := 0; pos < len(d.raw); line++ {
		end, next := lineEnd(d.raw, pos)
		if len(bytes.TrimLeft(d.raw[pos:end], " \t")) > 0 {
			return line
		}
		pos = next
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
	if len(line) > 3 && line[3] != ' ' && line[3] != '\t' {
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
	for pos := 0; pos < len(text); {
		end, next := lineEnd(text, pos)
		line := bytes.TrimSpace(withoutBOM(text[pos:end]))
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
		pos = next
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
