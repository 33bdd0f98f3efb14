package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/worker"
)

// name is the name of something in the tree or in the output.
type name struct {
	kind, text string
	file       string // relative to the root of the module, or the kind
	line       int
}

// split returns the parts of a name in lower case: those of camel case, and those
// between other characters than letters.
func split(text string) []string {
	var parts []string
	begin := true
	runes := []rune(text)
	for i, r := range runes {
		if !unicode.IsLetter(r) {
			begin = true
			continue
		}
		if unicode.IsUpper(r) && i > 0 {
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			begin = begin || !unicode.IsUpper(runes[i-1]) || next
		}
		if begin {
			parts, begin = append(parts, ""), false
		}
		parts[len(parts)-1] += string(unicode.ToLower(r))
	}
	return parts
}

// outputNames returns the names of flags, commands, counters and drop reasons.
func outputNames() []name {
	var names []name
	add := func(kind, text string) { names = append(names, name{kind: kind, text: text, file: kind}) }
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		add("command", c.Name())
		c.Flags().VisitAll(func(f *pflag.Flag) { add("flag", f.Name) })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
	for c := range counter.Counters {
		add("field", c.Info().Field)
		add("metric", c.Info().Metric)
	}
	for _, reason := range worker.DropReasons() {
		add("drop reason", reason)
	}
	return names
}

// sourceNames returns the names of files, of declarations, of metrics and of headings.
func sourceNames(t *testing.T, root string) []name {
	t.Helper()
	var names []name
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil || rel == "." {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"
		if d.IsDir() && (hidden || d.Name() == "testdata") {
			return fs.SkipDir
		}
		names = append(names, name{kind: "file", text: d.Name(), file: rel, line: 1})
		switch ext := filepath.Ext(rel); {
		case d.IsDir():
		case ext == ".go":
			declared, err := declarations(file, rel)
			names = append(names, declared...)
			return err
		case ext == ".md":
			found, err := headings(file, rel)
			names = append(names, found...)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func headings(file, rel string) ([]name, error) {
	text, err := os.ReadFile(file)
	var names []name
	code := false
	line := 0
	for text := range strings.SplitSeq(string(text), "\n") {
		line++
		if strings.HasPrefix(strings.TrimSpace(text), "```") {
			code = !code
		}
		if !code && strings.HasPrefix(text, "#") {
			title := strings.TrimLeft(text, "# ")
			names = append(names, name{kind: "heading", text: title, file: rel, line: line})
		}
	}
	return names, err
}

var metric = regexp.MustCompile(`^"weir_[a-z_]+"$`)

// declarations returns the identifiers that a Go file declares, the names of fields
// in JSON, and the names of metrics.
func declarations(file, rel string) ([]name, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []name
	add := func(kind, text string, at ast.Node) {
		names = append(names, name{kind: kind, text: text, file: rel, line: set.Position(at.Pos()).Line})
	}
	define := func(kind string, nodes ...ast.Expr) {
		for _, n := range nodes {
			if id, ok := n.(*ast.Ident); ok {
				add(kind, id.Name, id)
			}
		}
	}
	identifiers := func(kind string, ids []*ast.Ident) {
		for _, id := range ids {
			add(kind, id.Name, id)
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File:
			add("package", n.Name.Name, n)
		case *ast.FuncDecl:
			add("function", n.Name.Name, n)
		case *ast.TypeSpec:
			add("type", n.Name.Name, n)
		case *ast.ValueSpec:
			identifiers("variable", n.Names)
		case *ast.Field:
			identifiers("field", n.Names)
			if n.Tag != nil {
				tag, _ := strconv.Unquote(n.Tag.Value)
				json, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				add("JSON field", json, n)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				define("variable", n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				define("variable", n.Key, n.Value)
			}
		case *ast.BasicLit:
			if metric.MatchString(n.Value) {
				add("metric", n.Value, n)
			}
		}
		return true
	})
	return names, nil
}
