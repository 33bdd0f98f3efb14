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

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Name       string
	Deps       []string
}

// boundary says what the packages below a folder may use, all the way down.
type boundary struct {
	folder string
	why    string
	// only, when not nil, are the prefixes of the only packages allowed
	// beside the standard library and the folder itself.
	only []string
	// never are prefixes of packages not allowed.
	never []string
}

var boundaries = []boundary{
	{
		folder: "topology",
		why:    "topology is a pure function: standard library only",
		only:   []string{},
	},
	{
		folder: "conntrack",
		why:    "conntrack is a leaf: standard library and golang.org/x/sys only",
		only:   []string{"golang.org/x/sys"},
	},
	{
		folder: "lb",
		why:    "the packet path is fed with tables; it does not know where Services come from",
		never:  []string{module + "/discovery", module + "/cmd", module + "/perf", "k8s.io", "sigs.k8s.io"},
	},
	{
		folder: "lb/fragtrack",
		why:    "the tracker keeps numbers; it does not read or move packets",
		only:   []string{module + "/conntrack", module + "/lb/header", "golang.org/x/sys"},
	},
	{
		folder: "lb/handoff",
		why:    "a ring of frames knows frames, and nothing of packets or workers",
		only:   []string{module + "/lb/xsk", "golang.org/x/sys"},
	},
	{
		folder: "lb/ratelimit",
		why:    "a limiter counts; the only thing it needs is the length of a tick",
		only:   []string{module + "/conntrack", "golang.org/x/sys"},
	},
	{
		folder: "lb/snat",
		why:    "the choice of a source address is a function of a snapshot, a path and an endpoint",
		never:  []string{module + "/lb/hostveth", module + "/lb/steer", module + "/lb/xsk", module + "/lb/device"},
	},
	{
		folder: "discovery",
		why:    "discovery says what to balance; it does not know how packets are moved",
		never:  []string{module + "/lb", module + "/conntrack", module + "/cmd", module + "/perf"},
	},
}

func TestBoundaryImports(t *testing.T) {
	for _, b := range boundaries {
		t.Run(b.folder, func(t *testing.T) {
			for _, p := range goList(t, "./"+b.folder+"/...") {
				for _, dep := range p.Deps {
					if b.forbids(dep) {
						t.Errorf("%s uses %s: %s", p.ImportPath, dep, b.why)
					}
				}
			}
		})
	}
}

func (b *boundary) forbids(dep string) bool {
	first, _, _ := strings.Cut(dep, "/")
	if !strings.Contains(first, ".") { // the standard library
		return false
	}
	if within(dep, module+"/"+b.folder) {
		return false
	}
	under := func(prefix string) bool { return within(dep, prefix) }
	if b.only != nil {
		return !slices.ContainsFunc(b.only, under)
	}
	return slices.ContainsFunc(b.never, under)
}

func within(pkg, prefix string) bool {
	return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
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
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Deps", pattern)
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
