package worker

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxReentries is how many the package has now.
const maxReentries = 45

// TestReadingOrder holds how often a reader, who follows a packet from receive to transmit,
// returns to a file.
//
// The reader begins in Worker.receive and follows, in the order of the text, every call to a
// function of this package that passes the packet: an argument is a *pkt, a *batch or a
// *pendingConn. A function is read at the first call. Each call that leads into another file
// of the package enters that file, also when the function has been read before. Every entry
// of a file after the first is a re-entry.
func TestReadingOrder(t *testing.T) {
	r := newReader(t)
	r.read(r.function("receive"))
	t.Logf("%d functions in %d files, %d re-entries", len(r.seen), len(r.entered), len(r.reentries))
	if n := len(r.reentries); n > maxReentries {
		slices.Sort(r.reentries)
		t.Errorf("%d re-entries, more than %d:\n%s", n, maxReentries, strings.Join(r.reentries, "\n"))
	}
}

// reader follows the packet through the functions of the package.
type reader struct {
	files     *token.FileSet
	info      types.Info
	declared  map[types.Object]*ast.FuncDecl
	seen      map[*ast.FuncDecl]bool
	entered   map[string]bool
	reentries []string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{
		files: token.NewFileSet(), declared: map[types.Object]*ast.FuncDecl{},
		info: types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}},
		seen: map[*ast.FuncDecl]bool{}, entered: map[string]bool{},
	}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var list []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(r.files, name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	// Calls within the package resolve without the packages that it imports.
	check := types.Config{Importer: noImports{}, Error: func(error) {}}
	_, _ = check.Check("worker", r.files, list, &r.info)
	for _, f := range list {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				r.declared[r.info.Defs[fn.Name]] = fn
			}
		}
	}
	return r
}

// noImports gives an empty package for every import.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

func (r *reader) function(name string) *ast.FuncDecl {
	for _, fn := range r.declared {
		if fn.Name.Name == name {
			return fn
		}
	}
	panic("no function " + name)
}

// read reads a function, and those that it calls with the packet.
func (r *reader) read(fn *ast.FuncDecl) {
	r.seen[fn] = true
	from := r.file(fn)
	r.entered[from] = true
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		to := r.callee(n)
		if to == nil {
			return true
		}
		if file := r.file(to); file != from {
			if r.entered[file] {
				r.reentries = append(r.reentries,
					fmt.Sprintf("%s %s, from %s %s", file, to.Name.Name, from, fn.Name.Name))
			}
			r.entered[file] = true
		}
		if !r.seen[to] {
			r.read(to)
		}
		return true
	})
}

// callee is the function of this package that a node calls with the packet, or nil.
func (r *reader) callee(n ast.Node) *ast.FuncDecl {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	var name *ast.Ident
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f
	case *ast.SelectorExpr:
		name = f.Sel
	default:
		return nil
	}
	fn := r.declared[r.info.Uses[name]]
	if fn == nil || fn.Body == nil {
		return nil
	}
	params := r.info.Uses[name].Type().(*types.Signature).Params()
	for i := range params.Len() {
		switch params.At(i).Type().String() {
		case "*worker.pkt", "*worker.batch", "*worker.pendingConn":
			return fn
		}
	}
	return nil
}

func (r *reader) file(fn *ast.FuncDecl) string { return r.files.Position(fn.Pos()).Filename }
