// Package probe is the schema of an active health check of endpoints: the fields of a Kubernetes
// Probe (core/v1), and a datagram with an answer. It reads the text of an annotation and validates it
// as the API server validates probes. It does no I/O.
package probe

import (
	"encoding/json"
	"time"
)

// Kind is what a check does.
type Kind uint8

// Kinds of checks.
const (
	TCP  Kind = iota + 1 // connects
	HTTP                 // GET answers with status 200 to 399
	GRPC                 // the standard health service answers SERVING
	UDP                  // a datagram is answered
)

// String is the field of the annotation.
func (k Kind) String() string { return [...]string{"", "tcpSocket", "httpGet", "grpc", "udp"}[k&7] }

// Check is a valid check, never changed.
type Check struct {
	Kind Kind
	// Port is where it goes, PortName the Service port whose target port it goes to. Neither: the
	// target port of the Service port that is checked.
	Port     uint16
	PortName string

	TLS     bool     // HTTP
	Path    string   // HTTP, with the query
	Host    string   // HTTP: of the request. The connection goes to the endpoint.
	Headers []Header // HTTP
	Service string   // GRPC
	Send    string   // UDP
	Expect  string   // UDP: a part of the answer

	Period, Timeout                    time.Duration
	SuccessThreshold, FailureThreshold int

	identity string
}

// Header is a field of an HTTP request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Identity is equal for checks that differ in the port alone: of the same endpoint and port one of
// them is enough.
func (c *Check) Identity() string { return c.identity }

// Equal reports whether two checks are the same. Nil is no check.
func (c *Check) Equal(d *Check) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.identity == d.identity && c.Port == d.Port && c.PortName == d.PortName
}

// seal computes the identity of a check that is complete.
func (c *Check) seal() {
	d := *c
	d.Port, d.PortName = 0, ""
	text, _ := json.Marshal(&d) // of texts and numbers alone
	c.identity = string(text)
}
