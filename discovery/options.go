package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/topology"
)

// Annotations of a Service that ask something of the packet path.
const (
	// AnnotationForwardingMode is nat, dnat, l2dsr, ipip or gue.
	AnnotationForwardingMode = "weir.dev/forwarding-mode"
	// AnnotationOnEndpointRemoval is keep, reset or drop: the action for TCP flows of an
	// endpoint that is in no slice any more.
	AnnotationOnEndpointRemoval = "weir.dev/on-endpoint-removal"
	// AnnotationAlgorithm is maglev, random or least-conn.
	AnnotationAlgorithm = "weir.dev/algorithm"
	// AnnotationSlowStart is the time, as 30s, in which a new endpoint's part of new flows
	// grows to the full size.
	AnnotationSlowStart = "weir.dev/slow-start"
	// AnnotationWeight on a Service lists endpoints or nodes with their weights,
	// as "10.1.1.1=3,10.1.1.2:8080=2,node-a=5"; on an EndpointSlice, and on a Node, where it
	// may also be a label, it is the weight of each endpoint there.
	AnnotationWeight = "weir.dev/weight"
	// AnnotationMaxConnections is how many connections the Service has on this
	// node at the same time, and AnnotationNewConnections how many may begin per
	// second. 0 is no limit.
	AnnotationMaxConnections = "weir.dev/max-connections"
	AnnotationNewConnections = "weir.dev/new-connections-per-second"
	// AnnotationDenyLists are names of deny lists of the node, separated by commas: clients on one
	// of them begin no connection.
	AnnotationDenyLists = "weir.dev/deny-lists"
	// AnnotationQUICConnectionID says where a QUIC connection ID names the
	// server: "OFFSET,LENGTH" in bytes, or "quic-lb,LENGTH".
	AnnotationQUICConnectionID = "weir.dev/quic-cid"
	// AnnotationPortRange is "FIRST-LAST", ports that contain that of the Service's only port: the
	// load balancer addresses serve all of them, each at the same port of the endpoints.
	AnnotationPortRange = "weir.dev/port-range"
	// AnnotationMSSClamp is auto, off, or the largest TCP segment in bytes.
	AnnotationMSSClamp = "weir.dev/mss-clamp"
	// AnnotationHealthCheck is a check of the endpoints, as package probe reads it.
	AnnotationHealthCheck = "weir.dev/health-check"
	// AnnotationHealthCheckFail is open or closed: whether the endpoints are used if all fail.
	AnnotationHealthCheckFail = "weir.dev/health-check-fail"
	// AnnotationPassiveHealthCheck is auto or off: whether endpoints are ejected whose handshakes fail.
	AnnotationPassiveHealthCheck = "weir.dev/passive-health-check"
)

// Algorithm is how endpoints are chosen for new flows.
type Algorithm uint8

// Algorithms. AlgorithmDefault leaves it to the configuration.
const (
	AlgorithmDefault Algorithm = iota
	AlgorithmMaglev
	AlgorithmRandom
	AlgorithmLeastConn
)

// EndpointRemoval is the action for TCP flows to a removed endpoint.
type EndpointRemoval uint8

// Values of AnnotationOnEndpointRemoval.
const (
	RemovalKeep  EndpointRemoval = iota // they go on, as in kube-proxy
	RemovalReset                        // their next packet is answered with a RST
	RemovalDrop                         // their packets are dropped
)

// QUICConnectionID says which bytes of a QUIC connection ID name the server.
// Length 0: none do.
type QUICConnectionID struct {
	Offset, Length uint8
	// Marked is true for the plain-text form of draft-ietf-quic-load-balancers:
	// the first byte holds the configuration in its upper three bits, of which
	// 0b111 means that the ID names no server; Offset is then 1.
	Marked bool
}

// MSSClampAuto derives the largest segment from the path to the endpoint.
const MSSClampAuto = 0xffff

// ServiceOptions are a Service's options of the packet path, by annotations.
// The zero value asks for nothing.
type ServiceOptions struct {
	ForwardingMode          string // "": as configured
	OnRemoval               EndpointRemoval
	Algorithm               Algorithm
	SlowStart               time.Duration
	MaxConnections          uint32 // 0: no limit
	NewConnectionsPerSecond uint32 // 0: no limit
	DenyLists               string // their names, in order, separated by commas
	QUICConnectionID        QUICConnectionID
	MSSClamp                uint16       // 0: off
	HealthCheck             *probe.Check // nil: none
	HealthCheckClosed       bool         // no endpoint is used if all fail
	NoPassiveCheck          bool
	PortRange               PortRange
}

// PortRange is the ports from First to Last, which is above First. The zero value is none.
type PortRange struct{ First, Last uint16 }

// Contains reports whether a port is in the range.
func (r PortRange) Contains(port uint16) bool {
	return r.Last != 0 && r.First <= port && port <= r.Last
}

func (o ServiceOptions) equal(p ServiceOptions) bool {
	same := o.HealthCheck.Equal(p.HealthCheck)
	o.HealthCheck, p.HealthCheck = nil, nil
	return same && o == p
}

// Bounds of the annotations' values.
const (
	maxSlowStart  = time.Hour
	maxLimit      = 1 << 30
	minMSS        = 536 // the MSS that every IPv4 host accepts (RFC 9293 section 3.7.1)
	maxMSS        = 65495
	maxCIDLength  = 20 // RFC 9000 section 17.2
	maxDenyLists  = 16
	maxServerID   = 15 // draft-ietf-quic-load-balancers section 3
	supportedLB   = `"least-conn", "maglev", "random"`
	supportedGone = `"drop", "keep", "reset"`
)

// readOptions reads the annotations of ServiceOptions.
func (w *annotationOptions) readOptions(annotations map[string]string) {
	for _, a := range optionAnnotations {
		text, ok := annotations[a.name]
		if text = strings.TrimSpace(text); !ok || text == "" {
			continue
		}
		if complaint := a.read(w, text); complaint != "" {
			w.errors = append(w.errors, annotationPath(a.name)+": "+complaint)
			if a.guards {
				w.unsupported = annotationPath(a.name)
			}
		}
	}
}

// optionAnnotations are read in this order, so that errors come in it too.
var optionAnnotations = []struct {
	name string
	// guards is true for a limit of the Service: without it, the Service would be more open
	// than written.
	guards bool
	// read returns the error, "" for none.
	read func(w *annotationOptions, text string) string
}{
	{AnnotationForwardingMode, true, (*annotationOptions).readMode},
	{AnnotationOnEndpointRemoval, false, func(w *annotationOptions, text string) string {
		return oneOf(&w.opts.OnRemoval, text, supportedGone, "keep", "reset", "drop")
	}},
	{AnnotationAlgorithm, false, func(w *annotationOptions, text string) string {
		return oneOf(&w.opts.Algorithm, text, supportedLB, "", "maglev", "random", "least-conn")
	}},
	{AnnotationSlowStart, false, (*annotationOptions).readSlowStart},
	{AnnotationWeight, false, (*annotationOptions).readWeights},
	{AnnotationMaxConnections, true, func(w *annotationOptions, text string) string { return limit(&w.opts.MaxConnections, text) }},
	{AnnotationNewConnections, true, func(w *annotationOptions, text string) string { return limit(&w.opts.NewConnectionsPerSecond, text) }},
	{AnnotationDenyLists, true, (*annotationOptions).readDenyLists},
	{AnnotationQUICConnectionID, false, (*annotationOptions).readConnectionID},
	{AnnotationMSSClamp, false, (*annotationOptions).readMSS},
	{AnnotationHealthCheckFail, false, func(w *annotationOptions, text string) string {
		return choice(&w.opts.HealthCheckClosed, text, "open", "closed")
	}},
	{AnnotationPassiveHealthCheck, false, func(w *annotationOptions, text string) string {
		return choice(&w.opts.NoPassiveCheck, text, "auto", "off")
	}},
}

// unsupportedFeature is the first annotation that asks for an unsupported feature, "" for
// none.
func (o *ServiceOptions) unsupportedFeature(supported Feature) string {
	mode := forwardingModes[o.ForwardingMode]
	switch {
	case supported&mode != mode:
		return annotationPath(AnnotationForwardingMode) + ": " + o.ForwardingMode
	case o.QUICConnectionID.Length != 0 && supported&FeatureQUICConnectionID == 0:
		return annotationPath(AnnotationQUICConnectionID)
	case o.MSSClamp != 0 && supported&FeatureMSSClamp == 0:
		return annotationPath(AnnotationMSSClamp)
	}
	return ""
}

func (w *annotationOptions) readMode(text string) string {
	if _, known := forwardingModes[text]; !known {
		return unsupportedValue(text, `"dnat", "gue", "ipip", "l2dsr", "nat"`)
	}
	w.opts.ForwardingMode = text
	return ""
}

func (w *annotationOptions) readDenyLists(text string) string {
	names := strings.Split(text, ",")
	for i, name := range names {
		if names[i] = strings.TrimSpace(name); names[i] == "" {
			return invalidValue(text, "must be names of deny lists, separated by commas")
		}
	}
	if len(names) > maxDenyLists {
		return invalidValue(text, fmt.Sprintf("must be at most %d lists", maxDenyLists))
	}
	slices.Sort(names)
	w.opts.DenyLists = strings.Join(slices.Compact(names), ",")
	return ""
}

func (w *annotationOptions) readSlowStart(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxSlowStart {
		return invalidValue(text, fmt.Sprintf("must be a duration between 0s and %v, as 30s", maxSlowStart))
	}
	w.opts.SlowStart = d
	return ""
}

// readConnectionID takes "OFFSET,LENGTH" or "quic-lb,LENGTH".
func (w *annotationOptions) readConnectionID(text string) string {
	first, second, _ := strings.Cut(text, ",")
	first, second = strings.TrimSpace(first), strings.TrimSpace(second)
	length, err := strconv.ParseUint(second, 10, 8)
	cid := QUICConnectionID{Length: uint8(length)}
	if first == "quic-lb" {
		if err != nil || length < 1 || length > maxServerID {
			return invalidValue(text, fmt.Sprintf("must be quic-lb,LENGTH with a length of the server ID between 1 and %d bytes", maxServerID))
		}
		cid.Offset, cid.Marked = 1, true
		w.opts.QUICConnectionID = cid
		return ""
	}
	offset, err2 := strconv.ParseUint(first, 10, 8)
	if err != nil || err2 != nil || length < 1 || offset+length > maxCIDLength {
		return invalidValue(text, fmt.Sprintf("must be OFFSET,LENGTH in bytes, within a connection ID of at most %d, or quic-lb,LENGTH", maxCIDLength))
	}
	cid.Offset = uint8(offset)
	w.opts.QUICConnectionID = cid
	return ""
}

func (w *annotationOptions) readMSS(text string) string {
	switch text {
	case "auto":
		w.opts.MSSClamp = MSSClampAuto
		return ""
	case "off":
		w.opts.MSSClamp = 0
		return ""
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < minMSS || n > maxMSS {
		return invalidValue(text, fmt.Sprintf("must be auto, off or a number between %d and %d, inclusive", minMSS, maxMSS))
	}
	w.opts.MSSClamp = uint16(n)
	return ""
}

// oneOf sets *to to text's place among values; "" is no value.
func oneOf[T ~uint8](to *T, text, supported string, values ...string) string {
	at := slices.Index(values, text)
	if at < 0 {
		return unsupportedValue(text, supported)
	}
	*to = T(at)
	return ""
}

// choice sets *to to whether text is yes and not no.
func choice(to *bool, text, no, yes string) string {
	if text != no && text != yes {
		return unsupportedValue(text, fmt.Sprintf("%q, %q", no, yes))
	}
	*to = text == yes
	return ""
}

// readHealthCheck reads AnnotationHealthCheck, whose errors have fields. A named port must be one of
// the Service's.
func (w *annotationOptions) readHealthCheck(text string, ports []Port) {
	path := annotationPath(AnnotationHealthCheck)
	if strings.TrimSpace(text) == "" {
		return
	}
	c, errors, warnings := probe.Parse(path, text)
	w.errors, w.warnings = append(w.errors, errors...), append(w.warnings, warnings...)
	if c == nil {
		return
	}
	if c.PortName != "" && !slices.ContainsFunc(ports, func(p Port) bool { return p.Name == c.PortName }) {
		w.errors = append(w.errors, invalid(path+"."+c.Kind.String()+".port", c.PortName, "must be the name of a port of the Service"))
		return
	}
	w.opts.HealthCheck = c
}

// checkPortWarning notes a check at a number that is a port of the Service, and of no endpoint of it: a
// number is the endpoints' port, as in the Probe of a container.
func (svc *Service) checkPortWarning() {
	c := svc.Options.HealthCheck
	if c == nil || c.Port == 0 {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if p.Port == c.Port && len(p.Endpoints) > 0 && !slices.ContainsFunc(p.Endpoints, func(e topology.Endpoint) bool { return e.AddrPort.Port() == c.Port }) {
			svc.Warnings = append(svc.Warnings, fmt.Sprintf("%s.%s.port: %d is a port of the Service, and of no endpoint: the check goes to the endpoints' port %d. The name of the Service port leads to its target port",
				annotationPath(AnnotationHealthCheck), c.Kind, c.Port, c.Port))
			return
		}
	}
}

func limit(to *uint32, text string) string {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > maxLimit {
		return invalidValue(text, fmt.Sprintf("must be a number between 0 and %d, inclusive", maxLimit))
	}
	*to = uint32(n)
	return ""
}

// String is the algorithm as the annotation has it.
func (a Algorithm) String() string {
	return [...]string{"", "maglev", "random", "least-conn"}[a&3]
}

// String is the value as the annotation has it.
func (r EndpointRemoval) String() string {
	if int(r) < 3 {
		return [...]string{"keep", "reset", "drop"}[r]
	}
	return strconv.Itoa(int(r))
}

// String is the annotation's value.
func (q QUICConnectionID) String() string {
	if q.Marked {
		return fmt.Sprintf("quic-lb,%d", q.Length)
	}
	return fmt.Sprintf("%d,%d", q.Offset, q.Length)
}
