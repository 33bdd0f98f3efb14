package discovery

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestOptionsOfAService(t *testing.T) {
	for _, test := range []struct {
		annotation, value string
		want              ServiceOptions
		complaint         string // the error, in part
		kernel            bool   // at first the Service is left to the kernel
	}{
		{AnnotationForwardingMode, " gue ", ServiceOptions{ForwardingMode: "gue"}, "", false},
		{AnnotationForwardingMode, "GUE", ServiceOptions{}, `Unsupported value: "GUE": supported values: "dnat", "gue", "ipip", "l2dsr", "nat"`, true},
		{AnnotationOnEndpointRemoval, "keep", ServiceOptions{}, "", false},
		{AnnotationOnEndpointRemoval, "reset", ServiceOptions{OnRemoval: RemovalReset}, "", false},
		{AnnotationOnEndpointRemoval, "drop", ServiceOptions{OnRemoval: RemovalDrop}, "", false},
		{AnnotationOnEndpointRemoval, "close", ServiceOptions{}, `Unsupported value: "close"`, false},
		{AnnotationAlgorithm, "maglev", ServiceOptions{Algorithm: AlgorithmMaglev}, "", false},
		{AnnotationAlgorithm, "random", ServiceOptions{Algorithm: AlgorithmRandom}, "", false},
		{AnnotationAlgorithm, "least-conn", ServiceOptions{Algorithm: AlgorithmLeastConn}, "", false},
		{AnnotationAlgorithm, "", ServiceOptions{}, "", false},
		{AnnotationAlgorithm, "rr", ServiceOptions{}, `Unsupported value: "rr"`, false},
		{AnnotationSlowStart, "90s", ServiceOptions{SlowStart: 90 * time.Second}, "", false},
		{AnnotationSlowStart, "0", ServiceOptions{}, "", false},
		{AnnotationSlowStart, "30", ServiceOptions{}, "must be a duration between 0s and 1h0m0s", false},
		{AnnotationSlowStart, "-1s", ServiceOptions{}, "must be a duration", false},
		{AnnotationSlowStart, "61m", ServiceOptions{}, "must be a duration", false},
		{AnnotationHealthCheckFail, "closed", ServiceOptions{HealthCheckClosed: true}, "", false},
		{AnnotationHealthCheckFail, "open", ServiceOptions{}, "", false},
		{AnnotationHealthCheckFail, "shut", ServiceOptions{}, `Unsupported value: "shut": supported values: "open", "closed"`, false},
		{AnnotationPassiveHealthCheck, "off", ServiceOptions{NoPassiveCheck: true}, "", false},
		{AnnotationPassiveHealthCheck, "on", ServiceOptions{}, `supported values: "auto", "off"`, false},
		{AnnotationMaxConnections, "1000", ServiceOptions{MaxConnections: 1000}, "", false},
		{AnnotationDenyLists, "b, a,b", ServiceOptions{DenyLists: "a,b"}, "", false},
		{AnnotationDenyLists, "a,,b", ServiceOptions{}, "must be names of deny lists", true},
		{AnnotationDenyLists, strings.Repeat("a,", 16) + "a", ServiceOptions{}, "must be at most 16 lists", true},
		{AnnotationMaxConnections, "many", ServiceOptions{}, "must be a number between 0 and", true},
		{AnnotationNewConnections, "50", ServiceOptions{NewConnectionsPerSecond: 50}, "", false},
		{AnnotationNewConnections, "-50", ServiceOptions{}, "must be a number between 0 and", true},
		{AnnotationQUICConnectionID, "1,8", ServiceOptions{QUICConnectionID: QUICConnectionID{Offset: 1, Length: 8}}, "", false},
		{AnnotationQUICConnectionID, "0, 20", ServiceOptions{QUICConnectionID: QUICConnectionID{Length: 20}}, "", false},
		{AnnotationQUICConnectionID, "quic-lb, 4", ServiceOptions{QUICConnectionID: QUICConnectionID{Offset: 1, Length: 4, Marked: true}}, "", false},
		{AnnotationQUICConnectionID, "quic-lb", ServiceOptions{}, "must be quic-lb,LENGTH", false},
		{AnnotationQUICConnectionID, "quic-lb,16", ServiceOptions{}, "must be quic-lb,LENGTH", false},
		{AnnotationQUICConnectionID, "8,13", ServiceOptions{}, "must be OFFSET,LENGTH", false},
		{AnnotationQUICConnectionID, "1,0", ServiceOptions{}, "must be OFFSET,LENGTH", false},
		{AnnotationQUICConnectionID, "255,255", ServiceOptions{}, "must be OFFSET,LENGTH", false},
		{AnnotationMSSClamp, "auto", ServiceOptions{MSSClamp: MSSClampAuto}, "", false},
		{AnnotationMSSClamp, "off", ServiceOptions{}, "", false},
		{AnnotationMSSClamp, "1380", ServiceOptions{MSSClamp: 1380}, "", false},
		{AnnotationMSSClamp, "535", ServiceOptions{}, "must be auto, off or a number between 536 and 65495", false},
		{AnnotationMSSClamp, "65535", ServiceOptions{}, "must be auto, off or a number", false},
	} {
		t.Run(test.annotation+" "+test.value, func(t *testing.T) {
			ask := given(func(s *corev1.Service) { s.Annotations[test.annotation] = test.value })
			svc := read(^Feature(0), ask)
			if svc.Options != test.want {
				t.Errorf("options %+v, want %+v", svc.Options, test.want)
			}
			if kernel := svc.Unsupported != ""; kernel != test.kernel {
				t.Errorf("left to the kernel for want of %q", svc.Unsupported)
			}
			if test.complaint == "" {
				wantErrors(t, svc.Errors)
				return
			}
			wantErrors(t, svc.Errors, test.complaint)
			if !strings.HasPrefix(svc.Errors[0], "metadata.annotations["+test.annotation+"]: ") {
				t.Errorf("error %q", svc.Errors[0])
			}
			// A good version goes on.
			s := NewStore(Options{Supported: ^Feature(0)})
			s.SetService(given(func(s *corev1.Service) { s.Annotations[AnnotationMaxConnections] = "7" }))
			s.Flush()
			s.SetService(ask)
			s.Flush()
			if svc := web(s); svc.Unsupported != "" || svc.Options != (ServiceOptions{MaxConnections: 7}) {
				t.Errorf("after a good one %+v, unsupported %q", svc.Options, svc.Unsupported)
			}
		})
	}
}

func TestOptionsThatThePathLacksLeaveAServiceToTheKernel(t *testing.T) {
	for annotation, value := range map[string]string{
		AnnotationForwardingMode: "ipip", AnnotationQUICConnectionID: "1,8", AnnotationMSSClamp: "auto",
	} {
		svc := read(0, given(func(s *corev1.Service) { s.Annotations[annotation] = value }))
		if !strings.HasPrefix(svc.Unsupported, "metadata.annotations["+annotation+"]") {
			t.Errorf("%s: %q", annotation, svc.Unsupported)
		}
	}
}

func TestWeights(t *testing.T) {
	two := aSlice("web-1", "web", "http:8080", "10.0.0.1 node=n1\n10.0.0.2 node=n2\n10.0.0.3")
	weigh := func(text string) *corev1.Service {
		return given(func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1]; s.Annotations[AnnotationWeight] = text })
	}
	weightsOf := func(s *Store) (out []uint32) {
		for _, e := range web(s).Ports[0].Endpoints {
			out = append(out, e.Weight)
		}
		return out
	}
	want := func(s *Store, what string, a, b, c uint32) {
		t.Helper()
		s.Flush()
		if got := weightsOf(s); len(got) != 3 || got[0] != a || got[1] != b || got[2] != c {
			t.Errorf("%s: weights %v, want %v", what, got, []uint32{a, b, c})
		}
	}
	n1 := aNode("n1")
	s := load(weigh(""), two, n1)
	want(s, "nobody says", 0, 0, 0)
	n1 = n1.DeepCopy()
	n1.Labels[AnnotationWeight] = "3"
	feed(s, n1)
	want(s, "the node's label", 3, 0, 0)
	n1 = n1.DeepCopy()
	n1.Annotations = map[string]string{AnnotationWeight: "4"}
	feed(s, n1)
	want(s, "its annotation before its label", 4, 0, 0)
	feed(s, weigh("n1=5,n2=6"))
	want(s, "the Service's of nodes before it", 5, 6, 0)
	feed(s, weigh("n1=5, 10.0.0.1=7, 10.0.0.3:8080=8, 10.0.0.3=9"))
	want(s, "the nearest", 7, 0, 8)
	heavy := two.DeepCopy()
	heavy.Annotations = map[string]string{AnnotationWeight: "12"}
	feed(s, heavy)
	want(s, "the Service's before the slice's", 7, 12, 8)
	feed(s, weigh(""))
	want(s, "the slice's before the node's", 12, 12, 12)
	heavy = heavy.DeepCopy()
	heavy.Annotations[AnnotationWeight] = "0"
	feed(s, heavy)
	want(s, "a slice's that cannot be read", 4, 0, 0)
	wantErrors(t, web(s).Errors, "EndpointSlice default/web-1: metadata.annotations[weir.dev/weight]: Invalid value")
	feed(s, two, weigh("n1=5, 10.0.0.1=7, 10.0.0.3:8080=8, 10.0.0.3=9"))
	want(s, "the Service's again", 7, 0, 8)
	for _, bad := range []string{"10.0.0.1", "10.0.0.1=0", "10.0.0.1=1001", "=3", "n1=x", "3", "a=1,,b=2"} {
		feed(s, weigh(bad))
		want(s, "after a good one "+bad, 7, 0, 8)
		wantErrors(t, web(s).Errors, "must be ADDRESS=WEIGHT")
	}
	feed(s, weigh(""))
	n1 = n1.DeepCopy()
	n1.Annotations[AnnotationWeight] = "heavy"
	feed(s, n1)
	want(s, "a node's that cannot be read", 0, 0, 0)
	if w := web(s).Warnings; len(w) != 1 || !strings.HasPrefix(w[0], `Node n1: metadata.annotations[weir.dev/weight]: Invalid value: "heavy"`) {
		t.Errorf("warnings %q", w)
	}
	s.DeleteNode("n1")
	if want(s, "a node that is gone", 0, 0, 0); len(web(s).Warnings) > 0 {
		t.Errorf("warnings %q", web(s).Warnings)
	}
}

// The endpoints of a Service are checked as the annotation says. An error has the field, and the last
// check goes on.
func TestHealthCheck(t *testing.T) {
	ask := func(text string) *corev1.Service {
		return given(func(s *corev1.Service) { s.Annotations[AnnotationHealthCheck] = text })
	}
	svc := read(0, ask("{httpGet: {path: /healthz, port: http}, periodSeconds: 1}"))
	if c := svc.Options.HealthCheck; c == nil || c.Path != "/healthz" || c.PortName != "http" || c.Period != time.Second || len(svc.Errors)+len(svc.Warnings) > 0 {
		t.Fatalf("%+v, %q, %q", c, svc.Errors, svc.Warnings)
	}
	s := NewStore(Options{Supported: ^Feature(0)})
	s.SetService(ask("tcpSocket: {}"))
	s.Flush()
	for text, want := range map[string]string{
		"{httpGet: {port: metrics}}": `metadata.annotations[weir.dev/health-check].httpGet.port: Invalid value: "metrics": must be the name of a port`,
		"{tcpSocket: {ports: 1}}":    "metadata.annotations[weir.dev/health-check].tcpSocket.ports: unknown field (did you mean port?)",
		"{}":                         "metadata.annotations[weir.dev/health-check]: Required value",
	} {
		s.SetService(ask(text))
		s.Flush()
		if wantErrors(t, web(s).Errors, want); web(s).Options.HealthCheck == nil {
			t.Errorf("%s: the last check has ended", text)
		}
	}
	s.SetService(ask("tcpSocket:   {}"))
	if up := s.Flush(); len(up.Put) != 1 { // the errors end
		t.Errorf("%d changes", len(up.Put))
	}
	s.SetService(ask("tcpSocket: {port: }"))
	if up := s.Flush(); up != nil {
		t.Error("an equal check is a change")
	}
	s.SetService(ask(""))
	s.Flush()
	if w := read(0, ask("{tcpSocket: {}, initialDelaySeconds: 5}")).Warnings; len(w) != 1 || !strings.Contains(w[0], "health-check].initialDelaySeconds: not used") {
		t.Errorf("warnings %q", w)
	}
	if c := web(s).Options.HealthCheck; c != nil {
		t.Errorf("without the annotation: %+v", c)
	}
}

// A number in a check is a port of the endpoints, not of the Service.
func TestTheCheckIsAtThePortOfEndpoints(t *testing.T) {
	for text, warned := range map[string]bool{"{tcpSocket: {port: 80}}": true, "{tcpSocket: {port: 8080}}": false, "{tcpSocket: {port: 9000}}": false, "{tcpSocket: {port: http}}": false} {
		svc := aService("web", "http:80")
		svc.Annotations = map[string]string{AnnotationHealthCheck: text}
		s := load(svc, aSlice("web-1", "web", "http:8080", "10.0.0.1"))
		if w := web(s).Warnings; len(web(s).Errors) > 0 || warned != (len(w) == 1 && strings.Contains(w[0], "health-check].tcpSocket.port: 80 is a port of the Service, and of no endpoint")) {
			t.Errorf("%s: %q, %q", text, web(s).Errors, w)
		}
	}
}

// FuzzOptions holds whatever text to what every Service must keep: an option
// is in range, or there is an error.
func FuzzOptions(f *testing.F) {
	for _, text := range []string{"nat", "reset", "least-conn", "30s", "10.1.1.1=3,n=2,[fd00::1]:80=1", "100", "1,8", "quic-lb,4", "auto", "1380"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range optionAnnotations {
			w := parseAnnotations(map[string]string{a.name: text}, false, nil, nil)
			o := &w.opts
			if c := o.QUICConnectionID; int(c.Offset)+int(c.Length) > maxCIDLength || c.Marked && c.Length == 0 {
				t.Errorf("%q: %+v", text, c)
			}
			if o.MSSClamp != 0 && o.MSSClamp != MSSClampAuto && (o.MSSClamp < minMSS || o.MSSClamp > maxMSS) ||
				o.SlowStart < 0 || o.SlowStart > maxSlowStart || o.MaxConnections > maxLimit || o.NewConnectionsPerSecond > maxLimit {
				t.Errorf("%q: %+v", text, o)
			}
			if len(w.errors) > 0 && *o != (ServiceOptions{}) {
				t.Errorf("%q: %q and yet %+v", text, w.errors, o)
			}
			for _, n := range w.weights.ports {
				if n < 1 || n > maxWeight {
					t.Errorf("%q: weight %d", text, n)
				}
			}
		}
	})
}
