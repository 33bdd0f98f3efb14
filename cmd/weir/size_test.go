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

// A file holds a single idea, and a function fits a screen or two: these limits are in lines.
// A type has few methods in few files, not counting those of embedded types.
const (
	maxFileLines     = 400
	maxFunctionLines = 80
	maxTypeMethods   = 50
	maxTypeFiles     = 8
)

func TestBoundarySizes(t *testing.T) {
	root := moduleRoot(t)
	methods := map[string]map[string]int{} // by folder and type, and by file
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
			checkFunctions(t, short, src, methods)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, files := range methods {
		n := 0
		for _, inFile := range files {
			n += inFile
		}
		if n > maxTypeMethods || len(files) > maxTypeFiles {
			t.Errorf("%s has %d methods in %d files, more than %d in %d: give each of its parts a type", name, n, len(files), maxTypeMethods, maxTypeFiles)
		}
	}
}

// checkFunctions checks the functions of a file, and counts the methods by type.
func checkFunctions(t *testing.T, name string, src []byte, methods map[string]map[string]int) {
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
		if fn.Recv != nil {
			of := filepath.Join(filepath.Dir(name), receiver(fn.Recv.List[0].Type))
			if methods[of] == nil {
				methods[of] = map[string]int{}
			}
			methods[of][name]++
		}
	}
}

// receiver is the name of a receiver's type, without pointer and type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
