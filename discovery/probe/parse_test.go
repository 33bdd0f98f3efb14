package probe

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Check
	}{
		{"{httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}", Check{
			Kind: HTTP, Path: "/healthz", Port: 8080, Period: time.Second, Timeout: time.Second, SuccessThreshold: 2, FailureThreshold: 3,
		}},
		{`{"httpGet": {"path": "ready?all=1", "port": "web", "scheme": "HTTPS", "host": "shop.example"}, "timeoutSeconds": 5}`, Check{
			Kind: HTTP, Path: "/ready?all=1", PortName: "web", TLS: true, Host: "shop.example",
			Period: 2 * time.Second, Timeout: 5 * time.Second, SuccessThreshold: 2, FailureThreshold: 3,
		}},
		{"tcpSocket: {}\nfailureThreshold: 1\nsuccessThreshold: 1", Check{
			Kind: TCP, Period: 2 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 1,
		}},
		{"grpc: {port: 50051, service: shop.v1.Cart}", Check{
			Kind: GRPC, Port: 50051, Service: "shop.v1.Cart", Period: 2 * time.Second, Timeout: time.Second, SuccessThreshold: 2, FailureThreshold: 3,
		}},
		{`udp: {send: "\x12\x34ping", expect: pong}`, Check{
			Kind: UDP, Send: "\x12\x34ping", Expect: "pong", Period: 2 * time.Second, Timeout: time.Second, SuccessThreshold: 2, FailureThreshold: 3,
		}},
	} {
		got, errors, _ := Parse("check", c.text)
		if got == nil {
			t.Errorf("%s: %q", c.text, errors)
			continue
		}
		c.want.seal()
		if got.Identity() != c.want.Identity() || got.Port != c.want.Port || got.PortName != c.want.PortName {
			t.Errorf("%s: %+v, want %+v", c.text, got, c.want)
		}
	}
}

// The words are those of an API server that refuses a Pod with such a probe.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                        "Invalid value: must be an object",
		"on":                                      "Invalid value: must be an object",
		"{}":                                      "Required value: must specify a handler type",
		"{httpGet: {}, grpc: {}}":                 "Forbidden: may not specify more than 1 handler type",
		"{exec: {command: [true]}}":               "exec: Forbidden",
		"{httpget: {}}":                           "httpget: unknown field (did you mean httpGet?)",
		"{tcpSocket: {host: a}}":                  "tcpSocket.host: unknown field",
		"{httpGet: {paths: /}}":                   "httpGet.paths: unknown field (did you mean path?)",
		"{tcpSocket: {port: 0}}":                  "tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
		"{tcpSocket: {port: 65536}}":              "tcpSocket.port: Invalid value: 65536: must be between 1 and 65535, inclusive",
		"{tcpSocket: {port: No!}}":                `tcpSocket.port: Invalid value: "No!"`,
		"{tcpSocket: {}, periodSeconds: -1}":      "periodSeconds: Invalid value: -1: must be greater than or equal to 0",
		"{tcpSocket: {}, timeoutSeconds: 61}":     "timeoutSeconds: Invalid value: 61: must be less than or equal to 60",
		"{tcpSocket: {}, periodSeconds: often}":   "Invalid value: ",
		"{httpGet: {scheme: https}}":              `httpGet.scheme: Unsupported value: "https": supported values: "HTTP", "HTTPS"`,
		"{httpGet: {path: \"/a b\\n\"}}":          "httpGet.path: Invalid value",
		"{httpGet: {host: \"a/b\"}}":              "httpGet.host: Invalid value",
		"{httpGet: {httpHeaders: [{name: a b}]}}": "httpGet.httpHeaders[0].name: Invalid value",
		"{httpGet: {httpHeaders: [{name: a, value: \"x\\r\\ny: z\"}]}}": "httpGet.httpHeaders[0].value: Invalid value",
		"{tcpSocket: {}, tcpSocket: {}}":                                "Invalid value: not YAML",
		"{tcpSocket: [":                                                 "Invalid value: not YAML",
		strings.Repeat("a", MaxText+1):                                  "Too long",
	} {
		c, errors, _ := Parse("check", text)
		if c != nil || len(errors) == 0 || !strings.Contains(strings.Join(errors, "\n"), want) {
			t.Errorf("%.80q: %+v, %q, want %q", text, c, errors, want)
		}
	}
}

func TestParseWarnsOfFieldsOfContainers(t *testing.T) {
	c, _, warnings := Parse("check", "{tcpSocket: {}, initialDelaySeconds: 3, terminationGracePeriodSeconds: 9}")
	if c == nil || len(warnings) != 2 {
		t.Errorf("%+v, %q", c, warnings)
	}
}

// Services that differ in the port of the check share it where the endpoint and port are the same.
func TestIdentityLeavesThePortOut(t *testing.T) {
	a, _, _ := Parse("check", "{tcpSocket: {port: 1}}")
	b, _, _ := Parse("check", "{tcpSocket: {port: web}, periodSeconds: 2}")
	c, _, _ := Parse("check", "{tcpSocket: {}, periodSeconds: 3}")
	if a.Identity() != b.Identity() || a.Identity() == c.Identity() {
		t.Errorf("%s, %s, %s", a.Identity(), b.Identity(), c.Identity())
	}
}

// FuzzParse holds whatever text to what every check must keep: it is within the bounds, or there is
// an error in a line.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"{httpGet: {path: /healthz, port: 8080, httpHeaders: [{name: Host, value: a}]}, periodSeconds: 1}", "tcpSocket: {port: web}",
		`{"grpc": {"service": "a"}}`, `udp: {send: "\x00", expect: a}`, "a: &a [*a]", "{udp: {port: 1e3}}", "{httpGet: {path: //[::1]:80/%zz}}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, errors, _ := Parse("check", text)
		if (c == nil) != (len(errors) > 0) || strings.ContainsAny(strings.Join(errors, ""), "\n\r") {
			t.Fatalf("%q: %+v, %q", text, c, errors)
		}
		if c != nil && (c.Kind == 0 || c.Period < time.Second || c.Period > maxPeriod*time.Second || c.Timeout < time.Second ||
			c.Timeout > maxTimeout*time.Second || c.SuccessThreshold < 1 || c.FailureThreshold < 1 || c.Identity() == "") {
			t.Fatalf("%q: %+v", text, c)
		}
	})
}
