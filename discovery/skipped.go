package discovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/discovery/similar"
)

// Note says why an object that is not part of any Service is skipped. Notes about a Service
// are in the Service's Errors and Warnings.
type Note struct {
	Kind, Namespace, Name string
	Text                  string
	// Service is the Service that the object names, if that is not there.
	Service ServiceName
}

// String is kind namespace/name: text.
func (n Note) String() string {
	return n.Kind + " " + n.Namespace + "/" + n.Name + ": " + n.Text
}

type skippedObject struct {
	kind string
	id   objectName
}

// setSkipReason keeps a note about an object; an empty text takes it back.
func (s *Store) setSkipReason(kind string, id objectName, text string) {
	if text == "" {
		delete(s.skipReasons, skippedObject{kind, id})
		return
	}
	s.skipReasons[skippedObject{kind, id}] = text
}

// maxMeant bounds the missing Services whose names are compared with others, and these others.
const maxMeant = 100

// orphans are the slices of Services that do not exist. A Service of the namespace without slices
// is probably meant if its name is similar, or if it is the only such Service.
func (s *Store) orphans() []Note {
	var out []Note
	var lonely map[string][]string // names by namespace
	compared := 0
	for name, svc := range s.services {
		if _, other := s.others[name]; svc.spec != nil || other {
			continue
		}
		if len(svc.slices) > 0 && lonely == nil {
			lonely = lonelyOf(s.services)
		}
		hint, names := "", lonely[name.Namespace]
		if compared++; compared <= maxMeant {
			hint = similar.Hint(name.Name, names)
		}
		if hint == "" && len(names) == 1 {
			hint = fmt.Sprintf(" (did you mean %s?)", names[0])
		}
		for slice := range svc.slices {
			out = append(out, Note{"EndpointSlice", name.Namespace, slice, fmt.Sprintf("names Service %s, which does not exist%s", name, hint), name})
		}
	}
	return out
}

// lonely are the first names of the Services without slices, by namespace.
func lonelyOf(services map[ServiceName]*service) map[string][]string {
	out := map[string][]string{}
	for name, svc := range services {
		if svc.spec != nil && len(svc.sources()) == 0 {
			out[name.Namespace] = append(out[name.Namespace], name.Name)
		}
	}
	for namespace, names := range out {
		slices.Sort(names)
		out[namespace] = names[:min(len(names), maxMeant)]
	}
	return out
}

// Notes returns the objects skipped at present, sorted. The work is in
// proportion to the Services where Options.Complete is set.
func (s *Store) Notes() []Note {
	out := make([]Note, 0, len(s.skipReasons))
	for k, text := range s.skipReasons {
		out = append(out, Note{Kind: k.kind, Namespace: k.id.Namespace, Name: k.id.Name, Text: text})
	}
	if s.opts.Complete {
		out = append(out, s.orphans()...)
	}
	slices.SortFunc(out, func(a, b Note) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Stats counts the objects that a Store holds and those that it skipped.
type Stats struct {
	Services         int // handed out
	Slices           int // with an owner, FQDN too
	Mirrored         int // Services served from a legacy Endpoints object
	FQDNSlices       int // skipped: addresses that are names
	NamedEndpoints   int // that names stand for, of Services that are served
	RefusedEndpoints int // addresses that must not be sent to
}
