package probe

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery/similar"
)

// Bounds beyond those of the API server: authors of Services share the probes of a node.
const (
	MaxText       = 8 << 10 // of the annotation, in bytes
	maxPeriod     = 3600    // seconds
	maxTimeout    = 60      // seconds
	maxThreshold  = 100
	maxHeaders    = 32
	defaultPeriod = 2
)

// document has the fields of a Probe, and udp.
type document struct {
	HTTPGet          *httpGet   `json:"httpGet"`
	TCPSocket        *tcpSocket `json:"tcpSocket"`
	GRPC             *grpc      `json:"grpc"`
	UDP              *udp       `json:"udp"`
	Exec             any        `json:"exec"`
	PeriodSeconds    int32      `json:"periodSeconds"`
	TimeoutSeconds   int32      `json:"timeoutSeconds"`
	SuccessThreshold int32      `json:"successThreshold"`
	FailureThreshold int32      `json:"failureThreshold"`
	// Of a container alone.
	InitialDelaySeconds           *int32 `json:"initialDelaySeconds"`
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds"`
}

type httpGet struct {
	Path    string              `json:"path"`
	Port    *intstr.IntOrString `json:"port"`
	Scheme  string              `json:"scheme"`
	Host    string              `json:"host"`
	Headers []Header            `json:"httpHeaders"`
}

type tcpSocket struct {
	Port *intstr.IntOrString `json:"port"`
}

type grpc struct {
	Port    *intstr.IntOrString `json:"port"`
	Service *string             `json:"service"`
}

type udp struct {
	Port   *intstr.IntOrString `json:"port"`
	Send   string              `json:"send"`
	Expect string              `json:"expect"`
}

// fields are all names, for hints.
var fields = []string{
	"httpGet", "tcpSocket", "grpc", "udp", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold",
	"path", "port", "scheme", "host", "httpHeaders", "name", "value", "service", "send", "expect",
}

// parser gathers the errors of a text, each with the field that it is about.
type parser struct {
	path             string
	out              Check
	errors, warnings []string
}

// at is the path of a field, "" for the text as a whole.
func (p *parser) at(field string) string {
	if field == "" {
		return p.path
	}
	return p.path + "." + field
}

func (p *parser) fail(field, format string, args ...any) {
	p.errors = append(p.errors, p.at(field)+": "+fmt.Sprintf(format, args...))
}

func (p *parser) warn(field, text string) { p.warnings = append(p.warnings, p.at(field)+": "+text) }

// Parse reads the text of an annotation, YAML or JSON. Errors and warnings are in the API's wording and
// begin with path. A text with errors gives no check.
func Parse(path, text string) (c *Check, errors, warnings []string) {
	p := &parser{path: path}
	if d := p.decode(text); d != nil {
		p.read(d)
	}
	if len(p.errors) > 0 {
		return nil, p.errors, p.warnings
	}
	p.out.seal()
	return &p.out, nil, p.warnings
}

func (p *parser) decode(text string) *document {
	if len(text) > MaxText {
		p.fail("", "Too long: may not be more than %d bytes", MaxText)
		return nil
	}
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		p.fail("", "Invalid value: not YAML: %s", oneLine(err))
		return nil
	}
	if len(data) > 0 && data[0] != '{' {
		p.fail("", "Invalid value: must be an object with the fields of a Probe, as {httpGet: {path: /healthz}}")
		return nil
	}
	var d document
	strict, err := json.UnmarshalStrict(data, &d)
	if err != nil {
		p.fail("", "Invalid value: %s", oneLine(err))
		return nil
	}
	for _, e := range strict {
		name := strings.Trim(strings.TrimPrefix(e.Error(), "unknown field "), `"`)
		p.fail(short(name), "unknown field%s", similar.Hint(name[strings.LastIndexByte(name, '.')+1:], fields))
	}
	return &d
}

// oneLine is an error of a parser, which may quote the text.
func oneLine(err error) string { return short(strings.Join(strings.Fields(err.Error()), " ")) }

func short(s string) string {
	const most = 120
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

func (p *parser) read(d *document) {
	handlers := 0
	if h := d.HTTPGet; h != nil {
		handlers++
		p.readHTTP(h)
	}
	if h := d.TCPSocket; h != nil {
		handlers++
		p.out.Kind = TCP
		p.readPort("tcpSocket.port", h.Port)
	}
	if h := d.GRPC; h != nil {
		handlers++
		p.out.Kind = GRPC
		p.readPort("grpc.port", h.Port)
		if h.Service != nil {
			p.out.Service = *h.Service
		}
	}
	if h := d.UDP; h != nil {
		handlers++
		p.out.Kind, p.out.Send, p.out.Expect = UDP, h.Send, h.Expect
		p.readPort("udp.port", h.Port)
	}
	switch {
	case d.Exec != nil:
		p.fail("exec", "Forbidden: no command runs in an endpoint: use httpGet, tcpSocket, grpc or udp")
	case handlers == 0:
		p.fail("", "Required value: must specify a handler type: httpGet, tcpSocket, grpc or udp")
	case handlers > 1:
		p.fail("", "Forbidden: may not specify more than 1 handler type")
	}
	p.out.Period = p.seconds("periodSeconds", d.PeriodSeconds, maxPeriod, defaultPeriod)
	p.out.Timeout = p.seconds("timeoutSeconds", d.TimeoutSeconds, maxTimeout, 1)
	p.out.SuccessThreshold = p.number("successThreshold", d.SuccessThreshold, maxThreshold, 2)
	p.out.FailureThreshold = p.number("failureThreshold", d.FailureThreshold, maxThreshold, 3)
	if d.InitialDelaySeconds != nil {
		p.warn("initialDelaySeconds", "not used: an endpoint is checked from its beginning")
	}
	if d.TerminationGracePeriodSeconds != nil {
		p.warn("terminationGracePeriodSeconds", "not used: an endpoint that fails is not stopped")
	}
}

// number is a field of which 0 is the default, as in a Probe.
func (p *parser) number(field string, n, most, byDefault int32) int {
	switch {
	case n < 0:
		p.fail(field, "Invalid value: %d: must be greater than or equal to 0", n)
	case n > most:
		p.fail(field, "Invalid value: %d: must be less than or equal to %d", n, most)
	case n == 0:
		return int(byDefault)
	}
	return int(n)
}

func (p *parser) seconds(field string, n, most, byDefault int32) time.Duration {
	return time.Duration(p.number(field, n, most, byDefault)) * time.Second
}

func (p *parser) readPort(field string, port *intstr.IntOrString) {
	switch {
	case port == nil:
	case port.Type == intstr.Int:
		if port.IntVal < 1 || port.IntVal > math.MaxUint16 {
			p.fail(field, "Invalid value: %d: must be between 1 and 65535, inclusive", port.IntVal)
		}
		p.out.Port = uint16(port.IntVal)
	default:
		for _, why := range validation.IsDNS1123Label(port.StrVal) { // as of a Service port
			p.fail(field, "Invalid value: %s: %s", strconv.Quote(short(port.StrVal)), why)
		}
		p.out.PortName = port.StrVal
	}
}

func (p *parser) readHTTP(h *httpGet) {
	p.out.Kind, p.out.Path, p.out.Host, p.out.Headers = HTTP, h.Path, h.Host, slices.Clone(h.Headers)
	p.readPort("httpGet.port", h.Port)
	if p.out.Path == "" {
		p.out.Path = "/"
	}
	if !strings.HasPrefix(p.out.Path, "/") {
		p.out.Path = "/" + p.out.Path // as the kubelet
	}
	if _, err := http.NewRequest(http.MethodGet, "http://endpoint"+p.out.Path, nil); err != nil {
		p.fail("httpGet.path", "Invalid value: %s: must be a path of a URL", strconv.Quote(short(h.Path)))
	}
	switch h.Scheme {
	case "", "HTTP":
	case "HTTPS":
		p.out.TLS = true
	default:
		p.fail("httpGet.scheme", `Unsupported value: %s: supported values: "HTTP", "HTTPS"`, strconv.Quote(short(h.Scheme)))
	}
	if !httpguts.ValidHostHeader(h.Host) || strings.ContainsAny(h.Host, "/@") {
		p.fail("httpGet.host", "Invalid value: %s: must be a host name", strconv.Quote(short(h.Host)))
	}
	if len(h.Headers) > maxHeaders {
		p.fail("httpGet.httpHeaders", "Too many: %d: must have at most %d items", len(h.Headers), maxHeaders)
	}
	for i, f := range h.Headers {
		for _, why := range validation.IsHTTPHeaderName(f.Name) {
			p.fail(fmt.Sprintf("httpGet.httpHeaders[%d].name", i), "Invalid value: %s: %s", strconv.Quote(short(f.Name)), why)
		}
		if !httpguts.ValidHeaderFieldValue(f.Value) {
			p.fail(fmt.Sprintf("httpGet.httpHeaders[%d].value", i), "Invalid value: must be the value of a header")
		}
	}
}
