package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file holds a single idea, and a function fits a screen or two. Both limits are in lines.
const (
	maxFileLines     = 400
	maxFunctionLines = 80
)

func TestBoundarySizes(t *testing.T) {
	root := moduleRoot(t)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.Contains(src[:min(len(src), 300)], []byte("DO NOT EDIT")) {
			return nil
		}
		short, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if n := bytes.Count(src, []byte("\n")); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d: give each of its parts a file", short, n, maxFileLines)
		}
		if !strings.HasSuffix(name, "_test.go") {
			checkFunctions(t, short, src)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkFunctions(t *testing.T, name string, src []byte) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := files.Position(fn.End()).Line - files.Position(fn.Pos()).Line + 1
		if lines > maxFunctionLines {
			t.Errorf("%s: %s has %d lines, more than %d", name, fn.Name.Name, lines, maxFunctionLines)
		}
	}
}
