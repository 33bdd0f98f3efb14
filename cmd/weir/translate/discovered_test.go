package translate

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
