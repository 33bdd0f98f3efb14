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

// The configuration shown is one that Weir takes, and shows the defaults.
func TestReadmeShowsAValidConfiguration(t *testing.T) {
	_, after, ok := strings.Cut(readme(t), "    apiVersion: weir.dev/v1alpha1\n")
	if !ok {
		t.Fatal("README.md shows no configuration")
	}
	example, _, _ := strings.Cut(after, "\n\n")
	c, err := config.Unmarshal([]byte("apiVersion: weir.dev/v1alpha1\n"+strings.ReplaceAll("\n"+example, "\n    ", "\n")), "README.md")
	if err != nil {
		t.Fatal(err)
	}
	if errs := c.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
	// Beside what has no default.
	c.NodeName, c.Discovery, c.Interfaces = "", config.Discovery{}, nil
	if diff := c.Changed(config.Default()); len(diff) > 0 {
		t.Errorf("README.md shows other values than the defaults for %v", diff)
	}
}
