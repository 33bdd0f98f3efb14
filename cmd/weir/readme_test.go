package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/steer"
)

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(moduleRoot(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every probe has its row in the table of kernel features, in its own words.
func TestReadmeListsEveryKernelFeature(t *testing.T) {
	text := readme(t)
	for _, p := range steer.Probes("") {
		row := "| " + p.Name + " | " + p.Kernel + " | " + p.Without + " |"
		if !strings.Contains(text, row) {
			t.Errorf("README.md has no row\n%s", row)
		}
	}
}

// The configurations shown are ones that Weir takes, and show the defaults.
func TestExampleConfigurationsShowTheDefaults(t *testing.T) {
	sample, err := os.ReadFile(filepath.Join(moduleRoot(t), "deploy", "weir.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const first = "    apiVersion: weir.dev/v1alpha1\n"
	_, after, ok := strings.Cut(readme(t), first)
	if !ok {
		t.Fatal("README.md shows no configuration")
	}
	shown, _, _ := strings.Cut(after, "\n\n")
	for name, text := range map[string]string{
		"deploy/weir.yaml": string(sample),
		"README.md":        strings.ReplaceAll("\n"+first+shown, "\n    ", "\n"),
	} {
		c, err := config.Unmarshal([]byte(text), name)
		if err != nil {
			t.Fatal(err)
		}
		if errs := c.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		// Beside what has no default.
		c.NodeName, c.Discovery, c.Interfaces = "", config.Discovery{}, nil
		if diff := c.Changed(config.Default()); len(diff) > 0 {
			t.Errorf("%s shows other values than the defaults for %v", name, diff)
		}
	}
}
