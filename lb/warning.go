package lb

import (
	"fmt"
	"slices"
)

// WarningKind is the kind of a Warning.
type WarningKind uint8

// Kinds of warnings.
const (
	WarnPacketPath    WarningKind = iota // something works with less than it could
	WarnInterface                        // an interface does: Object is its name
	WarnInterfaceGone                    // an interface takes no traffic: Object is its name, Text "is gone..." or the like
	WarnMember                           // a bond, Object, does without one of its members
	WarnMode                             // a Service, Object, is served in another mode than it asks for
)

// Warning is something that an operator should know. It stays in
// Status.Warnings until it no longer holds.
type Warning struct {
	Kind   WarningKind
	Object string // an interface or a Service namespace/name; "": the packet path as a whole
	Text   string
}

// String is "interface NAME: TEXT", "interface NAME is gone...", "service NAME:
// TEXT" or the text alone.
func (w Warning) String() string {
	switch {
	case w.Object == "":
		return w.Text
	case w.Kind == WarnMode:
		return "service " + w.Object + ": " + w.Text
	case w.Kind == WarnInterfaceGone:
		return "interface " + w.Object + " " + w.Text
	}
	return "interface " + w.Object + ": " + w.Text
}

// warn notes and logs a warning about the packet path as a whole.
func (l *LB) warn(format string, args ...any) {
	l.warnAbout(WarnPacketPath, "", format, args...)
}

// warnInterface notes and logs that an interface works with less than it could.
func (l *LB) warnInterface(name, format string, args ...any) {
	l.warnAbout(WarnInterface, name, format, args...)
}

// warnAbout notes and logs a warning, once while it holds. Preconditions: l.mu
// is held, or l is not yet in use.
func (l *LB) warnAbout(kind WarningKind, object, format string, args ...any) {
	w := Warning{kind, object, fmt.Sprintf(format, args...)}
	if slices.Contains(l.warnings, w) {
		return
	}
	l.warnings = append(l.warnings, w)
	l.log.Warn(w.String())
}

// warnOnly is warnAbout in place of what was said of the same kind about the
// object.
func (l *LB) warnOnly(kind WarningKind, object, text string) {
	if slices.Contains(l.warnings, Warning{kind, object, text}) {
		return
	}
	l.retract(kind, object)
	l.warnAbout(kind, object, "%s", text)
}

// retract takes back all warnings of a kind about an object. Preconditions:
// as for warnAbout.
func (l *LB) retract(kind WarningKind, object string) {
	l.warnings = slices.DeleteFunc(l.warnings, func(w Warning) bool { return w.Kind == kind && w.Object == object })
}
