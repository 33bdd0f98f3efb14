package discovery

import (
	"slices"
	"strings"
)

// Note says why an object that is not part of any Service is passed over.
// What concerns a Service is in its Errors and Warnings.
type Note struct {
	Kind, Namespace, Name string
	Text                  string
}

// String is kind namespace/name: text.
func (n Note) String() string {
	return n.Kind + " " + n.Namespace + "/" + n.Name + ": " + n.Text
}

type noteKey struct {
	kind string
	id   objectName
}

// note keeps a note about an object; an empty text takes it back.
func (s *Store) note(kind string, id objectName, text string) {
	if text == "" {
		delete(s.notes, noteKey{kind, id})
		return
	}
	s.notes[noteKey{kind, id}] = text
}

// Notes returns what is passed over at present, sorted.
func (s *Store) Notes() []Note {
	out := make([]Note, 0, len(s.notes))
	for k, text := range s.notes {
		out = append(out, Note{k.kind, k.id.Namespace, k.id.Name, text})
	}
	slices.SortFunc(out, func(a, b Note) int { return strings.Compare(a.String(), b.String()) })
	return out
}
