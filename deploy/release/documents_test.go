package main

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever reads the documents of a package follows links within it, and to the repository.
func TestLinksOfPackagedDocuments(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := writeDocuments(root, dir); err != nil {
		t.Fatal(err)
	}
	names, err := documentsOf(root)
	if err != nil {
		t.Fatal(err)
	}
	outside := 0
	for _, name := range names {
		for _, m := range target.FindAllStringSubmatch(string(read(t, filepath.Join(dir, name))), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			at := filepath.Join(dir, path.Dir(name), file)
			if to, found := strings.CutPrefix(file, source); found {
				outside++
				at = filepath.Join(root, to)
			} else if file == "" || strings.Contains(file, "://") {
				continue
			}
			if _, err := os.Stat(at); err != nil {
				t.Errorf("%s: %s leads to nothing", name, m[1])
			}
		}
	}
	if outside == 0 {
		t.Error("no link leads to the repository")
	}
}
