package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// FieldError is an error in a field.
type FieldError struct {
	Origin string // "FILE:LINE" or "--flag"; "" when the value is a default
	Path   string // the field's path, as in `interfaces[1].mode`; "" for the whole
	Msg    string
	Mend   string // a command or setting that mends it, "" if Msg says it
}

// Error is "origin: path: message: mend", without the parts that are not known.
func (e *FieldError) Error() string {
	var b strings.Builder
	for _, s := range []string{e.Origin, e.Path} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Msg)
	if e.Mend != "" {
		b.WriteString(": " + e.Mend)
	}
	return b.String()
}

// Errors has all errors of a configuration; each is shown on a separate line.
type Errors []*FieldError

// Error has a line per error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single errors.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// Err is nil when there is no error. An Errors must not be returned as an
// error without it: an empty one is not nil.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Judge has all errors of a configuration that Load returned together with err: those of err, and
// of all fields that could be read.
func Judge(c *Configuration, err error, h Host) Errors {
	var unread Errors
	errors.As(err, &unread)
	out := slices.Clone(unread)
	for _, e := range append(c.Validate(), c.CheckHost(h)...) {
		follows := func(u *FieldError) bool {
			return strings.HasPrefix(e.Path, u.Path) || strings.HasPrefix(u.Path, e.Path+".") || strings.HasPrefix(u.Path, e.Path+"[")
		}
		if !slices.ContainsFunc(unread, follows) {
			out = append(out, e)
		}
	}
	return out
}

// report collects errors about fields of a configuration.
type report struct {
	origin map[string]string
	errs   Errors
}

func (r *report) addf(path, format string, args ...any) {
	r.errs = append(r.errs, &FieldError{
		Origin: r.originOf(path),
		Path:   path,
		Msg:    fmt.Sprintf(format, args...),
	})
}

// originOf is the origin of path or of the nearest field that holds it.
func (r *report) originOf(path string) string {
	for {
		if o, ok := r.origin[path]; ok {
			return o
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return ""
		}
		path = path[:i]
	}
}
