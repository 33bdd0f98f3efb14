package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claim is the document that decides about an object in this load.
type claim struct {
	file     *file
	document int
	item     int
	object   *object // nil: the object stays as last served
}

// round is a load in progress.
type round struct {
	s      *Source
	claims map[Key]claim
	order  []Key
	report *Report
	byFile map[string][]Key // the served objects, per file
	// misnamed are skipped documents whose kind resembles one that is read.
	misnamed []place
	remarks  map[string]int // place in report.Warnings or report.Notes, by remarkKey
}

// place is where an object is described.
type place struct {
	f      *file
	doc    int
	object *object
}

// apply makes the store hold the objects of files and reports errors. files
// are in the order of precedence. Preconditions: s.loading is held.
func (s *Source) apply(files []*file) *Report {
	r := &round{s: s, claims: map[Key]claim{}, report: &Report{Files: len(files)}, byFile: map[string][]Key{}, remarks: map[string]int{}}
	for key, v := range s.served {
		r.byFile[v.file] = append(r.byFile[v.file], key)
	}
	for _, f := range files {
		r.addFile(f)
	}
	r.settleMisnamed()
	r.settlePorts()
	r.store()
	next := make(map[string]*file, len(files))
	for _, f := range files {
		for _, objects := range f.objects {
			for i := range objects {
				objects[i].value = nil
			}
		}
		f.accept(s.files[f.path])
		next[f.path] = f
	}
	s.files, s.applied = next, r.report
	return r.report
}

// store replaces the served objects by those that the round has claimed.
func (r *round) store() {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.MarkSynced()
	s.age.begin()
	for _, key := range r.order {
		if c := r.claims[key]; c.object != nil {
			s.put(key, c.file.path, c.object)
		}
	}
	for key := range s.served {
		if _, ok := r.claims[key]; !ok {
			s.remove(key)
		}
	}
	r.gateways()
	s.loaded = true
	r.report.Objects = len(s.served)
	s.report = r.report
}

// addFile claims the objects of a file.
func (r *round) addFile(f *file) {
	if f.unfinished != nil {
		r.keepServedFile(f)
		return
	}
	f.clean = true
	if len(f.docs) == 0 && f.fault == nil && len(r.byFile[f.path]) > 0 {
		f.fault = &fault{reason: "empty: to withdraw what it described remove the file, or write an empty List (kind: List, items: [])"}
	}
	unknown := f.fault != nil // which objects are broken cannot be told
	for i, objects := range f.objects {
		for j := range objects {
			o := &objects[j]
			switch {
			case o.meant != "":
				r.misnamed = append(r.misnamed, place{f, i, o})
			case o.skipped != "":
				r.addNote(f, i, fmt.Sprintf("%s is not used by Weir, skipped", o.skipped))
			case len(o.faults) > 0:
				f.clean = false
				if o.key.Name == "" {
					unknown = true
				}
				r.addFault(f, i, o)
			default:
				r.addObject(f, i, o)
			}
		}
	}
	if f.fault != nil {
		f.clean = false
		r.report.Errors = append(r.report.Errors, Error{
			File: f.path, Field: f.fault.field, Reason: f.fault.reason, Kept: len(r.byFile[f.path]) > 0,
		})
	}
	if unknown {
		r.keepServed(f)
	}
}

// addFault reports an object's faults. If it is served now it stays.
func (r *round) addFault(f *file, doc int, o *object) {
	kept := false
	if o.key.Name == "" {
		kept = len(r.byFile[f.path]) > 0
	} else if _, claimed := r.claims[o.key]; !claimed {
		if _, kept = r.s.served[o.key]; kept {
			r.claims[o.key] = claim{file: f, document: f.docs[doc].number, item: o.item}
		}
	}
	for _, ft := range o.faults {
		r.report.Errors = append(r.report.Errors, Error{
			File: f.path, Document: f.docs[doc].number, Line: f.docs[doc].line,
			Object: o.key, Service: o.service, Field: ft.field, Reason: ft.reason, Kept: kept,
		})
	}
}

// addObject claims an object, unless an earlier document has.
func (r *round) addObject(f *file, doc int, o *object) {
	number := f.docs[doc].number
	first, claimed := r.claims[o.key]
	if !claimed {
		r.claims[o.key] = claim{file: f, document: number, item: o.item, object: o}
		r.order = append(r.order, o.key)
		r.addRemarks(f, doc, o)
		return
	}
	f.clean = false
	where := fmt.Sprintf("document %d", first.document)
	if first.document == 0 { // held, see hold
		where = "what stays of it"
	}
	if first.document == number && first.file == f {
		where = fmt.Sprintf("items[%d]", max(first.item, 0))
	} else if first.file != f {
		where = fmt.Sprintf("%s, %s", first.file.path, where)
		first.file.clean = false // the loss must be noticed
	}
	field := "metadata.name"
	if o.item >= 0 {
		field = fmt.Sprintf("items[%d].%s", o.item, field)
	}
	r.report.Errors = append(r.report.Errors, Error{
		File: f.path, Document: number, Line: f.docs[doc].line,
		Object: o.key, Service: o.service, Field: field,
		Reason: fmt.Sprintf("Duplicate value: %q: already described by %s, which is the one that counts", o.key.Name, where),
	})
}

// keepServed lets everything stay that is served from f and that no document
// claims.
func (r *round) keepServed(f *file) {
	for _, key := range r.byFile[f.path] {
		if _, claimed := r.claims[key]; !claimed {
			r.claims[key] = claim{file: f}
		}
	}
}

// put hands an object to the store. An object that the store holds already has no value.
func (s *Source) put(key Key, path string, o *object) {
	old, known := s.served[key]
	now := served{path, o.hash, o.remarks, nil, old.since, nil}
	if s.keeping {
		now.value = o.value
	}
	switch v := o.value.(type) {
	case nil:
		now.remarks, now.ports, now.value = old.remarks, old.ports, old.value
	case *corev1.Service:
		now.ports = portsOf(v)
		if !known {
			now.since = s.age.of(v.CreationTimestamp, !s.loaded)
		}
		v.CreationTimestamp = metav1.Unix(now.since, 0)
		s.store.SetService(v)
	case *discoveryv1.EndpointSlice:
		s.store.SetSlice(v)
	case *corev1.Endpoints:
		s.store.SetEndpoints(v)
	case *corev1.Node:
		s.store.SetNode(v)
	case metav1.Object: // of the Gateway API
		if !known {
			now.since = s.age.of(v.GetCreationTimestamp(), !s.loaded)
		}
		v.SetUID(types.UID(key.String()))
		v.SetCreationTimestamp(metav1.Unix(now.since, 0))
	}
	s.served[key] = now
}

func (s *Source) remove(key Key) {
	delete(s.served, key)
	s.withdraw(key)
}

// withdraw takes an object out of the store.
func (s *Source) withdraw(key Key) {
	switch key.Kind {
	case "Service":
		s.store.DeleteService(key.Namespace, key.Name)
	case "EndpointSlice":
		s.store.DeleteSlice(key.Namespace, key.Name)
	case "Endpoints":
		s.store.DeleteEndpoints(key.Namespace, key.Name)
	case "Node":
		s.store.DeleteNode(key.Name)
	}
}

// fresh returns the errors, or warnings, of list that old does not have.
func fresh(list, old []Error) []Error {
	seen := make(map[string]bool, len(old))
	for i := range old {
		seen[old[i].baseName()] = true
	}
	var out []Error
	for i := range list {
		if !seen[list[i].baseName()] {
			out = append(out, list[i])
		}
	}
	return out
}

// baseName identifies an error, whether or not something is kept.
func (e *Error) baseName() string {
	return strings.Join([]string{e.File, fmt.Sprint(e.Document), e.Object.String(), e.Field, e.Reason}, "\x00")
}

// ForService returns the errors about a Service's ports or endpoints, as text.
func (r *Report) ForService(namespace, name string) []string {
	var out []string
	for i := range r.Errors {
		e := &r.Errors[i]
		if e.Service.Namespace == namespace && e.Service.Name == name {
			out = append(out, e.Error())
		}
	}
	return slices.Clip(out)
}
