// Package warning keeps the warnings of the packet path that hold now.
package warning

import (
	"fmt"
	"log/slog"
	"slices"
)

// Kind is the kind of a Warning.
type Kind uint8

// Kinds of warnings.
const (
	PacketPath    Kind = iota // the packet path works with less than it could
	Interface                 // an interface does: Object is its name
	InterfaceGone             // an interface takes no traffic: Object is its name, Text "is gone..." or the like
	Queues                    // an interface, Object, has other receive queues than workers
	MTU                       // an interface, Object, has a larger MTU than Weir takes packets of
	Member                    // a bond, Object, does without one of its members
	Unreadable                // packets of an interface, Object, cannot be read
	Offloads                  // of an interface, Object, are switched off while it is attached
	Mode                      // a Service, Object, is served in another mode than it asks for
)

// Warning is a defect that an operator should know of. It stays in lb.Status.Warnings
// until it no longer holds.
type Warning struct {
	Kind   Kind
	Object string // an interface or a Service namespace/name; "": the packet path as a whole
	Text   string
}

// String is "interface NAME: TEXT", "interface NAME is gone...", "service NAME:
// TEXT" or the text alone.
func (w Warning) String() string {
	switch {
	case w.Object == "":
		return w.Text
	case w.Kind == Mode:
		return "service " + w.Object + ": " + w.Text
	case w.Kind == InterfaceGone:
		return "interface " + w.Object + " " + w.Text
	}
	return "interface " + w.Object + ": " + w.Text
}

// List is the warnings that hold. It logs each when it begins to hold. A List is not
// safe for concurrent use.
type List struct {
	log  *slog.Logger
	held []Warning
}

// NewList returns a list without warnings.
func NewList(log *slog.Logger) *List { return &List{log: log} }

// All returns a copy of the list, the oldest warning first.
func (l *List) All() []Warning { return slices.Clone(l.held) }

// Add adds a warning, unless the list has it already.
func (l *List) Add(kind Kind, object, format string, args ...any) {
	w := Warning{kind, object, fmt.Sprintf(format, args...)}
	if slices.Contains(l.held, w) {
		return
	}
	l.held = append(l.held, w)
	l.log.Warn(w.String())
}

// Replace adds a warning in place of all others of the same kind about the object.
func (l *List) Replace(kind Kind, object, text string) {
	if slices.Contains(l.held, Warning{kind, object, text}) {
		return
	}
	l.Retract(kind, object)
	l.Add(kind, object, "%s", text)
}

// Retract removes all warnings of a kind about an object.
func (l *List) Retract(kind Kind, object string) {
	l.held = slices.DeleteFunc(l.held, func(w Warning) bool {
		return w.Kind == kind && w.Object == object
	})
}
