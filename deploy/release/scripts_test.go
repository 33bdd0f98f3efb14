package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A removal takes the files of Weir away, but not those of an operator, and not from under a
// Weir that runs without the package, as that of a pod does: a cleanup fails then.
func TestRemovalLeavesTheFilesOfARunningWeir(t *testing.T) {
	for _, c := range []struct {
		name, cleanup, manifest string
		left                    []string
	}{
		{"nothing runs", "exit 0", "", nil},
		{"the configuration cannot be read", `[ -z "$2" ]`, "", nil},
		{"a pod's Weir runs", "exit 1", "", []string{"/run/weir", "/var/lib/weir"}},
		{"there are manifests", "exit 0", "/etc/weir/manifests/web.yaml", []string{"/etc/weir", "/etc/weir/manifests", "/etc/weir/manifests/web.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			dirs := []string{"/run/weir", "/var/lib/weir", "/etc/weir", "/etc/weir/manifests"}
			for _, dir := range append(dirs, "/bin") {
				if err := os.MkdirAll(root+dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(root+"/bin/weir", []byte("#!/bin/sh\n"+c.cleanup+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.manifest != "" {
				if err := os.WriteFile(root+c.manifest, nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for _, step := range [][2]string{{"preremove.sh", "remove"}, {"postremove.sh", "remove"}, {"postremove.sh", "purge"}} {
				text, err := os.ReadFile(filepath.Join("scripts", step[0]))
				if err != nil {
					t.Fatal(err)
				}
				script := string(text)
				for _, dir := range []string{"/run/", "/var/lib/", "/etc/"} {
					script = strings.ReplaceAll(script, dir, root+dir)
				}
				cmd := exec.Command("/bin/sh", "-c", script, step[0], step[1])
				cmd.Env = []string{"PATH=" + root + "/bin:/bin:/usr/bin"}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", step, err, out)
				}
			}
			var left []string
			for _, name := range append(dirs, c.manifest) {
				if _, err := os.Stat(root + name); name != "" && err == nil {
					left = append(left, name)
				}
			}
			if strings.Join(left, " ") != strings.Join(c.left, " ") {
				t.Errorf("left %v, want %v", left, c.left)
			}
		})
	}
}
