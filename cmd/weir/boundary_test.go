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

// boundaries has a rule for every row of the table of packages in ARCHITECTURE.md.
var boundaries = []boundary{
	{
		folder: "topology", why: "a pure function: standard library only",
		only: []string{}, imports: []string{"net", "os", "time"},
	},
	{
		folder: "discovery", why: "it does not know how packets are forwarded",
		never: []string{"lb", "conntrack", "cmd", "perf"},
	},
	{
		folder: "discovery/addresspool", why: "a choice from statuses and pools: standard library and names alone",
		only: []string{module + "/discovery/similar"}, imports: []string{"net", "os"},
	},
	{
		folder: "conntrack", why: "a leaf: standard library and golang.org/x/sys only",
		only: []string{"golang.org/x/sys"},
	},
	{folder: "conntrack/schema", why: "a text about records: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{
		folder: "conntrack/conntracktest", why: "tables for tests are not linked into weir",
		own: []string{"conntrack/schema"}, importers: []string{"conntrack"}, tests: []string{"conntrack", "lb", "cmd"},
	},
	{folder: "conntrack/statefile", why: "it does not know what is in the files", only: []string{"golang.org/x/sys"}},
	{
		folder: "lb", why: "it does not know Kubernetes or the source of Services",
		never: []string{"discovery", "topology", "cmd", "perf", "k8s.io", "sigs.k8s.io"},
	},
	{
		folder: "lb/header", why: "it reads and writes bytes: standard library only",
		only: []string{}, imports: []string{"net", "os", "sync"},
	},
	{
		folder: "lb/table", why: "snapshots know neither packets nor the kernel",
		own: []string{"conntrack"}, imports: []string{"net", "os"},
	},
	{folder: "lb/attempts", why: "counts by number: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{folder: "lb/affinity", why: "keys and values are the caller's", only: []string{}},
	{
		folder: "lb/snat", why: "a choice from a snapshot: no sockets, no devices",
		own: []string{"conntrack", "lb/route", "lb/table"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/fragtrack", why: "it has no packets",
		own: []string{"conntrack", "lb/header"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/worker", why: "it does not know who opens its ports and publishes its snapshots",
		own: []string{"conntrack", "lb/affinity", "lb/attempts", "lb/counter", "lb/fragtrack", "lb/handoff", "lb/header",
			"lb/pcapfilter", "lb/ratelimit", "lb/route", "lb/snat", "lb/table", "lb/tap", "lb/xsk"},
		imports: []string{"net", "github.com/vishvananda/netlink"}, importers: []string{"lb", "cmd"}, tests: []string{"lb", "cmd"},
	},
	{
		folder: "lb/announce", why: "a rule over values: standard library only",
		alone: true, only: []string{}, imports: []string{"net", "os"}, importers: []string{"cmd/weir", "lb/announce"}, tests: []string{"cmd", "lb/announce"},
	},
	{folder: "lb/announce/routes", why: "routes of a table: it knows neither frontends nor endpoints", own: []string{"lb/announce"}},
	{
		folder: "lb/announce/bgp", why: "routes and sessions: it knows neither frontends nor endpoints",
		own: []string{"lb/announce"},
	},
	{
		folder: "lb/reassign", why: "flows get other numbers by tables alone",
		own: []string{"conntrack", "lb/header", "lb/table"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/lbtest", why: "queues for tests are not linked into weir",
		own: []string{"lb/xsk"}, importers: []string{"cmd/weirperf"}, tests: []string{"lb"},
	},
	{folder: "lb/pcapfilter", why: "a language: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{
		folder: "lb/tap", why: "copies between a worker and a reader: it knows neither",
		own: []string{"lb/pcapfilter"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/ratelimit", why: "it does not know what is limited",
		own: []string{"conntrack"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/handoff", why: "it passes frame descriptors: no packets, no workers",
		own: []string{"lb/xsk"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/ports", why: "it attaches interfaces: no packets, no workers",
		own: []string{
			"conntrack/statefile",
			"lb/device", "lb/header", "lb/route", "lb/steer", "lb/uppair", "lb/vethpair",
			"lb/warning", "lb/xsk",
		},
	},
	{folder: "lb/phase", why: "a list of times", only: []string{}},
	{folder: "lb/warning", why: "a list of texts", only: []string{}},
	{folder: "lb/counter", why: "a list: standard library only", only: []string{}, imports: []string{"sync/atomic"}},
	{folder: "lb/device", why: "pure functions over links", own: []string{}},
	{folder: "lb/xsk", why: "it does not read packets", only: []string{"golang.org/x/sys"}},
	{folder: "lb/steer", why: "it does not choose endpoints", own: []string{"conntrack/statefile", "lb/header", "lb/xsk"}},
	{
		folder: "lb/flowcache", why: "memory and its layout: it knows neither frontends nor packets",
		own: []string{"conntrack", "lb/route"},
	},
	{folder: "lb/route", why: "the kernel is the only source of routes", own: []string{}},
	{
		folder: "lb/hostveth", why: "links, rules and sysctls: it sees no packets",
		own: []string{"conntrack/statefile", "lb/route", "lb/vethpair"},
	},
	{folder: "lb/vethpair", why: "two links and their names", own: []string{}},
	{
		folder: "lb/uppair", why: "links alone: it attaches no program and opens no socket",
		own: []string{"lb/vethpair"},
	},
	{
		folder: "cmd/weir", why: "libraries are in the other folders",
		importers: []string{"cmd"}, tests: []string{"cmd", "deploy"},
	},
	{folder: "cmd/weir/connections", why: "it answers from a flow table, whoever fills it",
		never: []string{"cmd/weir/daemon", "lb/worker"}, importers: []string{"cmd/weir/daemon", "cmd/weirperf"}},
	{
		folder: "cmd/weir/controller", why: "it writes statuses of Services: it sees no packets and no node",
		own: []string{
			"cmd/weir/config", "cmd/weir/httpserver", "cmd/weir/poolfile", "conntrack/statefile", "discovery", "lb/announce", "topology",
		},
		importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weir/doctor/kubeproxy", why: "it reads the rules of another: it does not know Weir",
		own: []string{}, importers: []string{"cmd/weir/doctor"}, tests: []string{"cmd/weir/doctor"},
	},
	{
		folder: "cmd/weir/statuspage", why: "all that the page has is in answers of the API",
		own: []string{
			"cmd/weir/api", "cmd/weir/event", "cmd/weir/httpserver", "cmd/weir/pcapng", "cmd/weir/privilege", "cmd/weir/problem",
			"cmd/weir/version", "cmd/weir/view", "conntrack/statefile", "lb/counter",
		},
		importers: []string{"cmd/weir/daemon"},
	},
	{
		folder: "cmd/weir/top", why: "all that the view has is in answers of the API",
		own: []string{
			"cmd/weir/api", "cmd/weir/event", "cmd/weir/httpserver", "cmd/weir/pcapng", "cmd/weir/privilege", "cmd/weir/problem", "cmd/weir/version", "cmd/weir/view",
			"conntrack/statefile", "lb/counter",
		},
		importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weirperf", why: "measurements have no users",
		importers: []string{"cmd/weirperf"},
	},
	{
		folder: "perf", why: "for tests, the demo and measurements; never in the packet path",
		own: []string{}, importers: []string{"cmd/weir/demo", "cmd/weirperf"},
		tests: []string{"cmd", "deploy", "discovery", "lb"},
	},
	{
		folder: "perf/browser", why: "a browser is for tests alone",
		own: []string{"perf"}, importers: []string{}, tests: []string{"cmd"},
	},
	{
		folder: "cmd/weir/daemon", why: "weir run is not linked with tools for tests",
		never: []string{"perf"},
	},
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

// Every row of the table of packages in ARCHITECTURE.md has a rule.
func TestBoundaryRowsHaveRules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n| Package |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if !ok || len(rows) < 10 {
		t.Fatalf("ARCHITECTURE.md has no table of packages: %q", rows)
	}
	for _, row := range rows[2:] {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for name := range strings.SplitSeq(cell, ", ") {
			folder := strings.Trim(name, "`")
			has := func(b boundary) bool { return b.folder == folder }
			if !slices.ContainsFunc(boundaries, has) {
				t.Errorf("ARCHITECTURE.md has a row for %s: add its rule to boundaries", folder)
			}
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
