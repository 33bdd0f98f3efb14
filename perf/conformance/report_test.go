package conformance

import (
	"fmt"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/consts"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// notes are of cases that are not run exactly as they come.
var notes = map[string]string{
	tests.TCPRouteInvalidNonTCPListener.ShortName: "the Gateway, with an HTTP listener alone, is left out of the wait for Programmed",
	tests.UDPRouteNotAllowedByListeners.ShortName: "run with the feature TLSRoute, without which it checks nothing; the Gateway is left out of the wait, too",
}

// statusOnly are the cases that send no packet, with the objects whose status they check.
var statusOnly = map[string]string{
	tests.GatewayClassObservedGenerationBump.ShortName:      "GatewayClass",
	tests.TCPRouteInvalidBackendRefNonexistent.ShortName:    "TCPRoute",
	tests.TCPRouteInvalidCrossNamespaceBackendRef.ShortName: "Gateway, TCPRoute",
	tests.TCPRouteInvalidNonTCPListener.ShortName:           "Gateway, TCPRoute",
	tests.UDPRouteInvalidBackendRefNonexistent.ShortName:    "UDPRoute",
	tests.UDPRouteInvalidCrossNamespaceBackendRef.ShortName: "Gateway, UDPRoute",
	tests.UDPRouteNotAllowedByListeners.ShortName:           "Gateway, UDPRoute",
}

// report says which cases passed, and what Weir served in each. A case of traffic in which Weir served no
// connection is not counted, and fails the test.
func (b *bed) report(records []record, version string) string {
	b.t.Helper()
	server, err := b.client.Discovery().ServerVersion()
	if err != nil {
		b.t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "make conformance\n\n%s\nGateway API %s, standard channel; suite sigs.k8s.io/gateway-api/conformance %s\nKubernetes %s; weir %s\n%s\n\n",
		time.Now().UTC().Format(time.DateOnly), consts.BundleVersion, consts.BundleVersion, server.GitVersion, version, host())
	byName := map[string]record{}
	for _, r := range records {
		byName[r.Case] = r
	}
	fmt.Fprintf(&out, "%-40s %-12s %8s %12s %9s\n", "layer 4", "result", "seconds", "connections", "packets")
	all, passed, traffic := 0, 0, 0
	var named []string
	for _, c := range tests.ConformanceTests {
		if !ofLayer4(c) {
			continue
		}
		all++
		r, evidence := b.line(&out, c, byName)
		if r == "passed" {
			passed++
			if evidence {
				traffic++
			}
		}
		if notes[c.ShortName] != "" {
			named = append(named, c.ShortName)
		}
	}
	fmt.Fprintf(&out, "\n%d of %d passed: %d with connections through Weir, %d of statuses alone.\n", passed, all, traffic, passed-traffic)
	for _, name := range named {
		fmt.Fprintf(&out, "%s: %s.\n", name, notes[name])
	}
	fmt.Fprintf(&out, "Control: %s failed before Weir was started on the node, with the controller running.\n", controlCase)
	fmt.Fprintf(&out, "\n%-40s %-12s %8s %12s %9s\n", "Gateway", "result", "seconds", "connections", "packets")
	b.line(&out, tests.GatewayClassObservedGenerationBump, byName)
	fmt.Fprintf(&out, "\nNot applicable, since Weir has no HTTP: listeners of HTTP and HTTPS have to be accepted.\n")
	for _, name := range needHTTP() {
		fmt.Fprintf(&out, "  %s\n", name)
	}
	return out.String()
}

// line writes the line of a case, and returns the result and whether Weir served connections.
func (b *bed) line(out *strings.Builder, c suite.ConformanceTest, byName map[string]record) (result string, evidence bool) {
	r, ran := byName[c.ShortName]
	if !ran {
		r.Result = "not run"
	}
	objects, quiet := statusOnly[c.ShortName]
	if !quiet && r.Result == "passed" && (r.Connections == 0 || r.Packets == 0) {
		r.Result = "not counted"
	}
	if r.Result != "passed" {
		b.t.Errorf("%s: %s", c.ShortName, r.Result)
	}
	if quiet {
		fmt.Fprintf(out, "%-40s %-12s %8.1f %22s\n", c.ShortName, r.Result, r.Seconds, objects)
	} else {
		fmt.Fprintf(out, "%-40s %-12s %8.1f %12d %9d\n", c.ShortName, r.Result, r.Seconds, r.Connections, r.Packets)
	}
	return r.Result, !quiet
}

// host is the machine, and the load.
func host() string {
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%v, load %s", machine.Describe(), first)
}
