package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

// An error of a type hides no error of another field, and is not named twice.
func TestAllErrorsAreNamedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	text := `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
statuspage: {}
conntrack: {maxFlows: 1x, takeoverSeconds: -1}
forwarding: {mode: natt}
interfaces: [{name: eth0, mode: [native]}]
discovery: {manifests: {path: ` + filepath.Dir(file) + `}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := AddFlags(pflag.NewFlagSet("weir", pflag.ContinueOnError))
	f.File = file
	c, err := f.Load()
	if c == nil || err == nil {
		t.Fatalf("got %v, %v", c, err)
	}
	times := map[string]int{}
	for _, e := range Judge(c, err, SystemHost()) {
		times[e.Path]++
	}
	for _, path := range []string{"statuspage", "conntrack.maxFlows", "conntrack.takeoverSeconds", "forwarding.mode", "interfaces[0].mode"} {
		if times[path] != 1 {
			t.Errorf("%s: %d errors, want 1: %v", path, times[path], times)
		}
	}
}
