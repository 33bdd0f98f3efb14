package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
)

// Environment variables that TestGateways sets for the process of the suite.
const (
	recordsFile = "WEIR_CONFORMANCE_RECORDS" // where the records go
	reportFile  = "WEIR_CONFORMANCE_REPORT"  // where the report of the suite goes; empty: none
	adminSocket = "WEIR_CONFORMANCE_SOCKET"  // of weir run
	onlyCase    = "WEIR_CONFORMANCE_CASE"    // the only case; empty: all
	weirVersion = "WEIR_CONFORMANCE_VERSION"
)

// supported are the features that Weir claims.
var supported = []features.FeatureName{features.SupportGateway, features.SupportReferenceGrant, features.SupportTCPRoute, features.SupportUDPRoute}

// record is the outcome of a case.
type record struct {
	Case    string  `json:"case"`
	Result  string  `json:"result"` // passed, failed
	Seconds float64 `json:"seconds"`
	served
}

// served is what Weir has served: connections made, and packets that it or the kernel by its flow table sent.
type served struct {
	Connections uint64 `json:"connections"`
	Packets     uint64 `json:"packets"`
}

// ofLayer4 are the cases of TCPRoute and UDPRoute.
func ofLayer4(c suite.ConformanceTest) bool {
	return claimed(c) && (slices.Contains(c.Features, features.SupportTCPRoute) || slices.Contains(c.Features, features.SupportUDPRoute))
}

// claimed reports whether Weir claims all features of a case.
func claimed(c suite.ConformanceTest) bool {
	return !slices.ContainsFunc(c.Features, func(f features.FeatureName) bool { return !slices.Contains(supported, f) })
}

// needHTTP are the claimed cases whose Gateways have listeners of HTTP or HTTPS alone, and more to check than that
// these are refused.
func needHTTP() (out []string) {
	for _, c := range tests.ConformanceTests {
		if claimed(c) && !ofLayer4(c) && c.ShortName != tests.GatewayClassObservedGenerationBump.ShortName {
			out = append(out, c.ShortName)
		}
	}
	return out
}

// TestSuite is the official suite, in a process of its own that TestGateways starts at the client.
func TestSuite(t *testing.T) {
	file := os.Getenv(recordsFile)
	if file == "" {
		t.Skip("skipped: part of TestGateways")
	}
	records, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	began, before := time.Now(), weirServed(t)
	o := conformance.DefaultOptions(t)
	o.GatewayClassName = "weir"
	o.CleanupTestResources = true
	o.CleanupBaseResources = false // they go with the cluster
	o.DisableParallelTests = true  // Weir counts for all cases together
	o.ConformanceProfiles = []suite.ConformanceProfileName{suite.GatewayTCPConformanceProfileName, suite.GatewayUDPConformanceProfileName}
	o.SupportedFeatures = supported
	o.SkipTests = needHTTP()
	o.ManifestFS = []fs.FS{manifests{conformance.Manifests}}
	o.ReportOutputPath = os.Getenv(reportFile)
	o.Implementation = confv1.Implementation{
		Organization: "weirlb", Project: "weir", URL: "https://github.com/weirlb/weir", Version: os.Getenv(weirVersion),
		Contact: []string{"https://github.com/weirlb/weir/issues"},
	}
	if o.RunTest = os.Getenv(onlyCase); o.RunTest != "" {
		// A case of UDPRoute checks nothing without this feature.
		o.SupportedFeatures = append(slices.Clone(supported), features.SupportTLSRoute)
	}
	o.Hook = func(t *testing.T, c suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
		now := weirServed(t)
		if t.Skipped() {
			began, before = time.Now(), now
			return
		}
		r := record{c.ShortName, "passed", time.Since(began).Seconds(), served{now.Connections - before.Connections, now.Packets - before.Packets}}
		if t.Failed() {
			r.Result = "failed"
		}
		if err := json.NewEncoder(records).Encode(r); err != nil {
			t.Error(err)
		}
		began, before = time.Now(), now
	}
	conformance.RunConformanceWithOptions(t, o)
}

// weirServed asks Weir, if it runs, for the sum of the counters.
func weirServed(t *testing.T) (out served) {
	t.Helper()
	socket := os.Getenv(adminSocket)
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return out
	}
	s, err := api.NewClient(socket).Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out.Connections = s.Flows.Created
	for _, w := range s.Workers {
		out.Packets += w.Counters[counter.TxPackets]
	}
	for _, i := range s.Interfaces {
		if i.Repeated != nil {
			out.Packets += i.Repeated.Packets
		}
	}
	return out
}
