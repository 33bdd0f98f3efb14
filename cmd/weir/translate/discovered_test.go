package translate

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
)

// A command with discovery options of its own would judge Services in another
// way than weir run does.
func TestAllCommandsReadServicesAlike(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || path == "../source/source.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "discovery.Options{") {
			t.Errorf("%s makes discovery.Options: call source.Store", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Each finding of discovery is a problem of a kind of its own.
func TestDiscovered(t *testing.T) {
	for _, c := range []struct {
		svc  discovery.Service
		want []problem.Kind
	}{
		{discovery.Service{}, nil},
		{discovery.Service{Errors: []string{"spec.ports: Required value"}}, []problem.Kind{problem.InvalidObject}},
		{discovery.Service{Unsupported: "spec.type"}, []problem.Kind{problem.UnsupportedField}},
		{discovery.Service{Refused: "too many endpoints"}, []problem.Kind{problem.OverLimit}},
		{discovery.Service{Faults: []discovery.Fault{{Kind: discovery.FaultNoSlices}}, Warnings: []string{"unknown annotation"}},
			[]problem.Kind{problem.NoSlices, problem.ServiceWarning}},
	} {
		var got []problem.Kind
		for _, p := range Discovered(&c.svc) {
			got = append(got, p.Kind)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.svc, got, c.want)
		}
	}
}

func TestFieldOfAnError(t *testing.T) {
	for text, want := range map[string]string{
		"spec.ports[0].port: Invalid value: 0: must be between 1 and 65535": "spec.ports[0].port",
		"metadata.annotations[weir.dev/weight]: Invalid value":              "metadata.annotations[weir.dev/weight]",
		"EndpointSlice a: endpoints[0]: no address":                         "",
		"no field": "",
	} {
		field, reason := splitField(text)
		if field != want || !strings.HasSuffix(text, reason) || reason == "" {
			t.Errorf("%q: %q and %q", text, field, reason)
		}
	}
}
