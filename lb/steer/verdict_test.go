package steer

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The Go names of the verdicts are the C names, in the same order, and the labels
// of the metrics follow from them.
func TestVerdictsAreThoseOfTheProgram(t *testing.T) {
	source, err := os.ReadFile("bpf/maps.h")
	if err != nil {
		t.Fatal(err)
	}
	body := regexp.MustCompile(`(?s)enum verdict \{(.*?)\}`).FindSubmatch(source)
	if body == nil {
		t.Fatal("bpf/maps.h has no enum verdict")
	}
	var c []string
	for _, m := range regexp.MustCompile(`(?m)^\s*([A-Z_]+),`).FindAllSubmatch(body[1], -1) {
		c = append(c, strings.ToLower(strings.ReplaceAll(string(m[1]), "_", "")))
	}

	got := verdictIdentifiers(t)
	if diff := cmp.Diff(c, got); diff != "" {
		t.Fatalf("names (-bpf/maps.h +counters.go):\n%s", diff)
	}
	for v, name := range got[:Verdicts] {
		label := strings.ReplaceAll(strings.TrimPrefix(Verdict(v).String(), "ipv6-"), "-", "")
		if strings.TrimPrefix(name, "pass") != label {
			t.Errorf("%s has the label %s", name, Verdict(v))
		}
	}
}

// verdictIdentifiers are the constants of type Verdict, in lower case.
func verdictIdentifiers(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "counters.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return ok && g.Tok == token.CONST
	})
	if i < 0 {
		t.Fatal("counters.go has no constants")
	}
	var names []string
	for _, s := range f.Decls[i].(*ast.GenDecl).Specs {
		names = append(names, strings.ToLower(s.(*ast.ValueSpec).Names[0].Name))
	}
	return names
}
