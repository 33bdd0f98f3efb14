package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml "go.yaml.in/yaml/v3"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/steer"
)

func document(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{moduleRoot(t)}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The table of kernel features has a row for every probe, and no others. Its rows
// are in the order of the kernels' versions.
func TestReadmeListsEveryKernelFeature(t *testing.T) {
	_, text, ok := strings.Cut(document(t, "deploy", "README.md"), "| Feature | Since Linux | Without it Weir |\n| --- | --- | --- |\n")
	if !ok {
		t.Fatal("deploy/README.md has no table of kernel features")
	}
	table, _, _ := strings.Cut(text, "\n\n")
	got := strings.Split(table, "\n")
	if !slices.IsSortedFunc(got, func(a, b string) int { return slices.Compare(kernelOf(t, a), kernelOf(t, b)) }) {
		t.Errorf("deploy/README.md: the rows are not sorted by version:\n%s", table)
	}

	var want []string
	for _, p := range steer.Probes("") {
		want = append(want, "| "+p.Name+" | "+p.Kernel+" | "+p.Without+" |")
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deploy/README.md (-probes +table):\n%s", diff)
	}
}

// kernelOf is the version with which the second cell of a row begins.
func kernelOf(t *testing.T, row string) []int {
	t.Helper()
	version := make([]int, 2)
	cells := strings.Split(row, " | ")
	if _, err := fmt.Sscanf(cells[min(1, len(cells)-1)], "%d.%d", &version[0], &version[1]); err != nil {
		t.Fatalf("%s: %v", row, err)
	}
	return version
}

// shownConfigurations are the configurations in the documents, by file.
func shownConfigurations(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"deploy/weir.yaml": document(t, "deploy", "weir.yaml")}
}

// The configurations shown have every field that `weir run --write-config-to`
// writes, and no others. A node's name is not shown: the hostname serves.
func TestExampleConfigurationsHaveEveryField(t *testing.T) {
	c := config.Default()
	c.Interfaces = []config.Interface{{DefaultRoute: true, Mode: config.ModeAuto}}
	c.Discovery.Manifests = &config.Manifests{Path: "/etc/weir/manifests"}
	data, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(fieldsOf(t, string(data)), func(path string) bool { return path == ".nodeName" })
	for name, text := range shownConfigurations(t) {
		if diff := cmp.Diff(want, fieldsOf(t, text)); diff != "" {
			t.Errorf("%s (-written by --write-config-to +shown):\n%s", name, diff)
		}
	}
}

// fieldsOf are the paths of the fields of a document, sorted.
func fieldsOf(t *testing.T, text string) []string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	var out []string
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch n.Kind {
		case yaml.DocumentNode:
			walk(n.Content[0], path)
		case yaml.MappingNode:
			for i := 0; i < len(n.Content); i += 2 {
				walk(n.Content[i+1], path+"."+n.Content[i].Value)
			}
		case yaml.SequenceNode:
			if len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode {
				walk(n.Content[0], path+"[]")
				return
			}
			out = append(out, path)
		default:
			out = append(out, path)
		}
	}
	walk(&doc, "")
	slices.Sort(out)
	return out
}

// A comment that lists the values of a field lists those that validate.
func TestExampleConfigurationsListTheValues(t *testing.T) {
	for name, text := range shownConfigurations(t) {
		for field, want := range map[string][]string{
			"mode:": config.ForwardingModes, "- {name": config.AttachModes, "interfaces": config.AttachModes,
		} {
			for line := range strings.Lines(text) {
				before, comment, ok := strings.Cut(line, "#")
				if !ok || !strings.Contains(comment, "|") || !strings.HasPrefix(strings.TrimSpace(before), field) {
					continue
				}
				if got := strings.Split(strings.TrimSpace(comment), " | "); !slices.Equal(got, want) {
					t.Errorf("%s: %s: %q are not the values %q", name, field, got, want)
				}
			}
		}
	}
}

// The configurations shown are ones that Weir takes, and show the defaults.
func TestExampleConfigurationsShowTheDefaults(t *testing.T) {
	for name, text := range shownConfigurations(t) {
		c, err := config.Unmarshal([]byte(text), name)
		if err != nil {
			t.Fatal(err)
		}
		if c.NodeName != "" {
			t.Errorf("%s names each node %s", name, c.NodeName)
		}
		c.NodeName = "edge-1"
		if errs := c.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		// Beside what has no default.
		c.NodeName, c.Discovery, c.Interfaces = "", config.Discovery{}, nil
		if diff := c.Changed(config.Default()); len(diff) > 0 {
			t.Errorf("%s shows other values than the defaults for %v", name, diff)
		}
	}
}

// README asks for the version of Go that the module needs.
func TestReadmeNamesTheToolchain(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(document(t, "go.mod"))
	if version == nil || !strings.Contains(document(t, "README.md"), "Go "+version[1]+" to build") {
		t.Errorf("README.md does not ask for Go %q", version)
	}
}

// documents are the Markdown files of the module, by path relative to its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root, out := moduleRoot(t), map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.IsDir() && (rel == ".git" || rel == "bin" || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(rel, ".md") {
			out[rel] = document(t, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence    = regexp.MustCompile("(?ms)^```.*?^```$")
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile(`[^\w\- ]`)
)

// anchorsOf returns the anchors of every document.
func anchorsOf(docs map[string]string) map[string][]string {
	anchors := map[string][]string{}
	for name, text := range docs {
		for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			anchors[name] = append(anchors[name], anchor)
		}
	}
	return anchors
}

// Links between documents lead to files, and to headings, that exist.
func TestReadmeLinks(t *testing.T) {
	docs := documents(t)
	anchors := anchorsOf(docs)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(moduleRoot(t), to)); err != nil {
				t.Errorf("%s: %s: there is no %s", name, m[0], to)
			} else if hasAnchor && !slices.Contains(anchors[to], anchor) {
				t.Errorf("%s: %s: %s has no such heading", name, m[0], to)
			}
		}
	}
}

// The addresses of documents in the chart's values and in documents lead to files, and to
// headings, that exist.
func TestReadmeAddressesOfDocuments(t *testing.T) {
	docs := documents(t)
	anchors := anchorsOf(docs)
	docs["values.yaml"] = document(t, "deploy", "helm", "weir", "values.yaml")
	address := regexp.MustCompile(`https://github\.com/weirlb/weir(?:/blob/main/([\w./-]+\w))?(?:#([\w-]+))?`)
	for name, text := range docs {
		for _, m := range address.FindAllStringSubmatch(text, -1) {
			file, anchor := m[1], m[2]
			if file == "" {
				file = "README.md"
			}
			if _, err := os.Stat(filepath.Join(moduleRoot(t), file)); err != nil {
				t.Errorf("%s: %s: there is no %s", name, m[0], file)
			} else if anchor != "" && !slices.Contains(anchors[file], anchor) {
				t.Errorf("%s: %s: %s has no such heading", name, m[0], file)
			}
		}
	}
}

// No line of a paragraph begins with a sign that Markdown takes for a list.
func TestReadmeParagraphsHoldNoLists(t *testing.T) {
	paragraph := regexp.MustCompile(`(?m)^[A-Za-z\x60(].*\n([*+] .*)$`)
	for name, text := range documents(t) {
		for _, m := range paragraph.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			t.Errorf("%s: a line of a paragraph is a list item: %s", name, m[1])
		}
	}
}

// ARCHITECTURE.md names files and folders that exist, in the drawings too.
func TestReadmeArchitectureNamesFiles(t *testing.T) {
	path := regexp.MustCompile(`\b(?:cmd|conntrack|deploy|discovery|lb|perf|topology)/[\w/.-]*\w`)
	for _, name := range path.FindAllString(document(t, "ARCHITECTURE.md"), -1) {
		if _, err := os.Stat(filepath.Join(moduleRoot(t), name)); err != nil {
			t.Errorf("ARCHITECTURE.md: there is no %s", name)
		}
	}
}

// Documents name metrics that exist; the changelog names former ones too.
func TestReadmeNamesMetrics(t *testing.T) {
	docs := documents(t)
	reference := docs[filepath.Join("cmd", "weir", "metrics", "README.md")]
	// Those of weir controller are its own, and POOLS.md is their reference.
	own, err := os.ReadFile(filepath.Join(moduleRoot(t), "cmd", "weir", "controller", "metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range docs {
		for _, metric := range regexp.MustCompile(`\bweir_[a-z_]+[a-z]`).FindAllString(text, -1) {
			if !strings.Contains(reference, "`"+metric+"`") && !strings.Contains(string(own), `"`+metric+`"`) {
				t.Errorf("%s: there is no metric %s", name, metric)
			}
		}
	}
}
