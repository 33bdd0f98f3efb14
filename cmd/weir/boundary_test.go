package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weirlb/weir"

// listed is a package as `go list -json` describes it.
type listed struct {
	ImportPath   string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

// boundary is a rule for the packages of a folder. Paths of packages of this
// module are relative to its root.
type boundary struct {
	folder string
	why    string
	// alone: the folders below have rules of their own.
	alone bool
	// only, if not nil, are prefixes of the only packages that the folder may use,
	// transitively, beside the standard library and itself.
	only []string
	// own is as only, for packages of this module alone.
	own []string
	// never are prefixes of packages that it must not use, transitively.
	never []string
	// imports are packages that it must not import itself; the standard library
	// uses some of them.
	imports []string
	// importers, if not nil, are the only folders whose packages may import the
	// folder, beside itself and, with tests, in test files.
	importers []string
	tests     []string
}

// GoBGP is behind announce.Speaker.
func TestBoundaryGoBGP(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for _, i := range p.Imports {
			if within(i, "github.com/osrg/gobgp/v4") && p.ImportPath != module+"/lb/announce/bgp" {
				t.Errorf("%s imports %s: lb/announce/bgp alone does", p.ImportPath, i)
			}
		}
	}
}

func TestBoundaryImports(t *testing.T) {
	all := goList(t, "./...")
	for _, b := range boundaries {
		t.Run(b.folder, func(t *testing.T) {
			found := false
			for _, p := range all {
				if b.has(p.ImportPath) {
					found = true
					b.checkUse(t, &p)
				} else {
					b.checkImporter(t, &p)
				}
			}
			if !found {
				t.Errorf("there is no package in %s", b.folder)
			}
		})
	}
}

// checkUse checks a package of the folder.
func (b *boundary) checkUse(t *testing.T, p *listed) {
	for _, dep := range p.Deps {
		if b.forbids(dep) {
			t.Errorf("%s uses %s: %s", p.ImportPath, dep, b.why)
		}
	}
	for _, i := range p.Imports {
		if slices.Contains(b.imports, i) {
			t.Errorf("%s imports %s: %s", p.ImportPath, i, b.why)
		}
	}
}

// checkImporter checks a package outside of the folder.
func (b *boundary) checkImporter(t *testing.T, p *listed) {
	if b.importers == nil {
		return
	}
	check := func(imports, allowed []string, where string) {
		for _, i := range imports {
			if b.has(i) && !hasPrefix(allowed, p.ImportPath) {
				t.Errorf("%s%s imports %s: %s", p.ImportPath, where, i, b.why)
			}
		}
	}
	check(p.Imports, b.importers, "")
	check(slices.Concat(p.TestImports, p.XTestImports), b.tests, " (test)")
}

// has reports whether the rule is for a package.
func (b *boundary) has(pkg string) bool {
	return pkg == module+"/"+b.folder || !b.alone && within(pkg, module+"/"+b.folder)
}

func (b *boundary) forbids(dep string) bool {
	first, _, _ := strings.Cut(dep, "/")
	if !strings.Contains(first, ".") || within(dep, module+"/"+b.folder) { // the standard library
		return false
	}
	if b.only != nil {
		return !hasPrefix(b.only, dep)
	}
	if b.own != nil && within(dep, module) && !hasPrefix(b.own, dep) {
		return true
	}
	return hasPrefix(b.never, dep)
}

// hasPrefix reports whether pkg is in a folder of this module, or in a package of
// another one, that is listed.
func hasPrefix(list []string, pkg string) bool {
	return slices.ContainsFunc(list, func(prefix string) bool {
		return within(pkg, prefix) || within(pkg, module+"/"+prefix)
	})
}

func within(pkg, prefix string) bool {
	return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
}

// Every rule is about a folder that exists.
func TestBoundaryRulesHaveFolders(t *testing.T) {
	for _, b := range boundaries {
		if info, err := os.Stat(filepath.Join(moduleRoot(t), b.folder)); err != nil || !info.IsDir() {
			t.Errorf("there is no folder %s", b.folder)
		}
	}
}

// Names that say nothing about what is inside.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "manager", "misc", "base", "types", "shared"}

func TestBoundaryPackageNames(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for _, name := range []string{p.Name, path.Base(p.ImportPath)} {
			if slices.Contains(emptyNames, strings.TrimSuffix(name, "_test")) {
				t.Errorf("%s: the name %s does not say what is inside", p.ImportPath, name)
			}
		}
	}
}

func TestBoundaryTopLevelFolders(t *testing.T) {
	want := []string{"cmd", "conntrack", "deploy", "discovery", "lb", "perf", "topology"}
	entries, err := os.ReadDir(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		// bin is what make builds; it is ignored by git.
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" {
			got = append(got, e.Name())
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("top-level folder %s: only %s are meant to be there", name, strings.Join(want, ", "))
		}
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

func goList(t *testing.T, pattern string) []listed {
	t.Helper()
	const fields = "ImportPath,Name,Imports,TestImports,XTestImports,Deps"
	cmd := exec.Command("go", "list", "-e", "-json="+fields, pattern)
	cmd.Dir = moduleRoot(t)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list %s: %v\n%s", pattern, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []listed
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		t.Fatalf("go list %s: no package", pattern)
	}
	return all
}
