package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// documents are the documents of operators, by their path in the checkout, which is their path in
// packages too: links between them hold.
var documents = []string{
	"README.md", "CHANGELOG.md",
	"cmd/weir/README.md", "cmd/weir/config/README.md", "cmd/weir/metrics/README.md", "cmd/weir/problem/README.md",
	"deploy/ALERTS.md", "deploy/ANNOUNCE.md", "deploy/FAULTS.md", "deploy/POOLS.md", "deploy/PROBES.md",
	"deploy/README.md", "deploy/REPLACE-NODEPORT.md",
	"discovery/README.md", "lb/PROTOCOLS.md", "lb/README.md",
}

// source is the address of other files of the repository.
const source = "https://github.com/weirlb/weir/blob/main/"

var target = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// writeDocuments writes the documents into dir. Links to other files of the repository lead to its
// address.
func writeDocuments(root, dir string) error {
	within := map[string]bool{}
	for _, name := range documents {
		within[name] = true
	}
	for _, name := range documents {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return fmt.Errorf("documents: %w", err)
		}
		out := target.ReplaceAllStringFunc(string(text), func(link string) string {
			to := link[2 : len(link)-1]
			file, anchor, found := strings.Cut(to, "#")
			if file == "" || strings.Contains(to, "://") || within[path.Join(path.Dir(name), file)] {
				return link
			}
			to = source + path.Join(path.Dir(name), file)
			if found {
				to += "#" + anchor
			}
			return "](" + to + ")"
		})
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}
