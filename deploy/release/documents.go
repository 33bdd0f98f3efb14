package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// documents are patterns of the documents of operators, by their path in the checkout, which is their
// path in packages too: links between them hold.
var documents = []string{
	"README.md", "CHANGELOG.md",
	"cmd/weir/README.md", "cmd/weir/config/README.md", "cmd/weir/metrics/README.md", "cmd/weir/problem/README.md",
	"deploy/*.md", "discovery/README.md", "lb/*.md",
}

// documentsOf are the documents of a checkout.
func documentsOf(root string) (names []string, err error) {
	for _, pattern := range documents {
		found, err := fs.Glob(os.DirFS(root), pattern) // sorted
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("documents: no %s: %w", pattern, errors.Join(err, fs.ErrNotExist))
		}
		names = append(names, found...)
	}
	return names, nil
}

// source is the address of other files of the repository.
const source = "https://github.com/weirlb/weir/blob/main/"

var target = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// writeDocuments writes the documents into dir. Links to other files of the repository lead to its
// address.
func writeDocuments(root, dir string) error {
	names, err := documentsOf(root)
	if err != nil {
		return err
	}
	within := map[string]bool{}
	for _, name := range names {
		within[name] = true
	}
	for _, name := range names {
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
