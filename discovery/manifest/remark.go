package manifest

import (
	"fmt"
	"regexp"
)

// maxFileNotes bounds the notes of a file, and the warnings.
const maxFileNotes = 100

// addRemarks reports what is to be said of an object that counts. An object that is served already
// has its remarks there.
func (r *round) addRemarks(f *file, doc int, o *object) {
	remarks := o.remarks
	if o.value == nil {
		remarks = r.s.served[o.key].remarks
	}
	for _, m := range remarks {
		if m.note {
			r.addNote(f, doc, o.key.String()+": "+m.field+": "+m.reason)
			continue
		}
		r.addWarning(f, doc, o, m.fault)
	}
}

var indexRE = regexp.MustCompile(`\[\d+\]`)

// addWarning reports a warning. The same about several objects of a file is reported once.
func (r *round) addWarning(f *file, doc int, o *object, ft fault) {
	e := Error{
		File: f.path, Document: f.docs[doc].number, Line: f.docs[doc].line,
		Object: o.key, Service: o.service, Field: ft.field, Reason: ft.reason,
	}
	same := f.path + "\x00" + o.key.Kind + "\x00" + indexRE.ReplaceAllString(ft.field, "") + "\x00" + ft.reason
	if at, found := r.remarks[same]; found {
		r.report.Warnings[at].Others++
		return
	}
	switch n := r.remarks[f.path]; {
	case n < maxFileNotes:
		r.remarks[same] = len(r.report.Warnings)
		r.report.Warnings = append(r.report.Warnings, e)
	case n == maxFileNotes:
		r.report.Warnings = append(r.report.Warnings, Error{File: f.path, Reason: "more warnings are left out"})
	}
	r.remarks[f.path]++
}

func (r *round) addNote(f *file, doc int, text string) {
	n := 0
	for i := len(r.report.Notes) - 1; i >= 0 && r.report.Notes[i].File == f.path; i-- {
		n++
	}
	switch {
	case n < maxFileNotes:
		r.report.Notes = append(r.report.Notes, Note{File: f.path, Document: f.docs[doc].number, Text: text})
	case n == maxFileNotes:
		r.report.Notes = append(r.report.Notes, Note{File: f.path, Text: "more notes are left out"})
	}
}

// settleMisnamed decides about documents whose kind or API version is probably misspelt. If the file
// had such an object, and nothing describes it now, the object stays.
func (r *round) settleMisnamed() {
	for _, p := range r.misnamed {
		o := p.object
		hint := fmt.Sprintf("%q is not used by Weir (did you mean %s %s?)", o.skipped, versions[o.meant], o.meant)
		held, found := r.s.served[o.key]
		if _, claimed := r.claims[o.key]; found && !claimed && held.file == p.f.path {
			p.f.clean = false
			o.faults = []fault{{o.misspelt, hint}}
			r.addFault(p.f, p.doc, o)
			o.faults = nil
			continue
		}
		if o.foreign {
			r.addNote(p.f, p.doc, fmt.Sprintf("%s is not used by Weir, skipped", o.skipped))
			continue
		}
		r.report.Errors = append(r.report.Errors, Error{
			File: p.f.path, Document: p.f.docs[p.doc].number, Line: p.f.docs[p.doc].line,
			Object: o.key, Service: o.service, Field: o.misspelt, Reason: hint + ": skipped",
		})
	}
}
