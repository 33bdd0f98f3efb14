package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Weir refuses its configuration by status 1. What else ends it says nothing about the
// configuration, and must not keep a machine from serving.
func TestWeirJudgesItsConfiguration(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"valid", "exit 0", ""},
		{"refused", `echo "weir: $3:5: interfaces[0].nam: unknown field" >&2; exit 1`, "weir.yaml:5: interfaces[0].nam: unknown field"},
		{"two errors", `echo "weir: $3:2: kind" >&2; echo "weir: $3:3: nodeName" >&2; exit 1`, "weir.yaml:2: kind\nweir.yaml:3: nodeName"},
		{"called wrongly", "exit 2", ""},
		{"killed", "kill -9 $$", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := newDrive(t, "")
			program := filepath.Join(t.TempDir(), "weir")
			must(t, os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755))
			got := ""
			if err := askWeir(program, dir); err != nil {
				got = err.Error()
			}
			if strings.TrimSpace(got) != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
	if err := askWeir("/nonexistent/weir", t.TempDir()); err != nil {
		t.Errorf("no program: %v", err)
	}
}
