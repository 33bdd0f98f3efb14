package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// deploy/FAULTS.md names, for each fault, a test that there is; and alerts that there are.
func TestFaultsNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../deploy/FAULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := os.ReadFile("../../deploy/helm/weir/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	exists, named := testFunctions(t), regexp.MustCompile("`(?:(Test\\w+|Fuzz\\w+)|make (\\w+)|(Weir[A-Z]\\w+))[^`]*`")
	check := func(m []string) {
		switch {
		case m[1] != "" && !exists[m[1]]:
			t.Errorf("there is no test %s", m[1])
		case m[2] != "" && !strings.Contains(string(makefile), "\n"+m[2]+": "):
			t.Errorf("there is no target %s", m[2])
		case m[3] != "" && !strings.Contains(string(alerts), "alert: "+m[3]+"\n"):
			t.Errorf("there is no alert %s", m[3])
		}
	}
	for _, m := range named.FindAllStringSubmatch(string(text), -1) {
		check(m)
	}
	rows, tests := 0, false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case !strings.HasPrefix(line, "|"):
			tests = false
		case last == "Test":
			tests = true
		case tests && !strings.HasPrefix(last, "---"):
			rows++
			if m := named.FindStringSubmatch(last); m == nil || m[1] == "" && m[2] == "" {
				t.Errorf("no test for: %s", strings.TrimSpace(cells[0]))
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows were found", rows)
	}
}

// testFunctions are the names of all tests and fuzz targets of the module.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
