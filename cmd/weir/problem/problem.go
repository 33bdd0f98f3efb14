// Package problem is the list of everything that a running Weir does not do
// as it was asked to: a Service that it does not serve, an interface that is
// gone, an API server that does not answer.
//
// Each part of the daemon puts complaints into a common Registry, under the part's name.
// `weir status`, `weir explain`, Kubernetes Events, the metrics and the log read that
// Registry and nothing else, so that they cannot disagree. A complaint leaves the list
// when the part no longer makes it.
package problem

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Problem is a request that is not fulfilled, or not as asked. Kind, Object,
// Field and Reason identify it.
type Problem struct {
	Kind     Kind     `json:"kind"`
	Severity Severity `json:"severity"` // of the kind
	// Object is the subject of the problem: "Service default/web", "Interface
	// eth0", "File /etc/weir/manifests/all.yaml", "Node edge-1", or "Weir".
	Object string `json:"object"`
	// Field is the field of the object or of the configuration that leads to
	// the problem, as spec.ports[0].nodePort; "" where no field does.
	Field string `json:"field,omitempty"`
	// Reason is a sentence without a full stop. It must not contain numbers
	// that change while the problem lasts, such as an age.
	Reason string `json:"reason"`
	// Since is when the problem was first seen; Registry.Set fills it in.
	Since time.Time `json:"since"`

	// Logged is true where the part that complains also writes the log.
	Logged bool `json:"-"`
}

// String is OBJECT: FIELD: REASON.
func (p *Problem) String() string { return p.Object + ": " + p.Line() }

// Line is FIELD: REASON.
func (p *Problem) Line() string {
	if p.Field == "" {
		return p.Reason
	}
	return p.Field + ": " + p.Reason
}

// Service is the Object of a Service.
func Service(namespace, name string) string { return "Service " + namespace + "/" + name }

// ServiceOf returns namespace and name of the Service that object stands for;
// ok is false for any other object.
func ServiceOf(object string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(object, "Service ")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// Interface is the Object of a network interface.
func Interface(name string) string { return "Interface " + name }

// Weir is the Object of problems of the process itself and of the configuration.
const Weir = "Weir"

// New makes a Problem of the Object that Registry.Set names.
func New(kind Kind, field, format string, args ...any) Problem {
	return Problem{Kind: kind, Field: field, Reason: fmt.Sprintf(format, args...)}
}

// compare orders by severity, the worst first, then problems of the node before those of single
// Services, then by kind, object, field and reason.
func compare(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.Severity.rank(), b.Severity.rank()),
		cmp.Compare(a.Kind.scope(), b.Kind.scope()),
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Object, b.Object),
		cmp.Compare(a.Field, b.Field),
		cmp.Compare(a.Reason, b.Reason),
	)
}

// scope is 0 for kinds of problems of the node, and 1 for those of Services.
func (k Kind) scope() int {
	if k.Describe().OfServices {
		return 1
	}
	return 0
}

// Severity is how much a problem matters.
type Severity string

// Severities, the worst first.
const (
	// Error: traffic that Weir was asked to serve is not served, or will not
	// be after the next restart.
	Error Severity = "error"
	// Warning: traffic is served otherwise than asked for, or slower.
	Warning Severity = "warning"
	// Note: something is passed over on purpose.
	Note Severity = "note"
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }
