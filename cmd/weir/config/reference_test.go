package config

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/weirlb/weir/perf/golden"
)

const referenceHead = `# Configuration reference

<!-- Written by go generate ./cmd/weir/config from the comments of config.go, interfaces.go, admin.go, announce.go, denylist.go, flood.go, flowlog.go, healthchecks.go, limits.go and statuspage.go. -->

A configuration file has kind ` + "`WeirConfiguration`" + ` and is given to ` + "`weir run --config FILE`" + `.
[deploy/weir.yaml](../../../deploy/weir.yaml) is a complete file with every default.

- Precedence: flag, then environment (` + "`NODE_NAME`" + ` alone), then file, then default. ` + "`--set path=value`" + `
  sets any field: ` + "`--set forwarding.mode=dnat --set interfaces[0].mode=native`" + `.
- Unknown fields are errors. ` + "`weir check --config FILE`" + ` prints all errors, each with file and line.
- ` + "`weir run --write-config-to -`" + ` prints a file with all defaults and comments; flags beside it change the values.
- SIGHUP reads the file again. Fields marked in the column "SIGHUP" take effect at once; ` + "`weir status`" + ` lists changed
  fields that need a restart. ` + "`--watch-config`" + ` does the same whenever the file changes.
`

// TestReferenceIsCurrent holds README.md to the comments and defaults of Configuration.
func TestReferenceIsCurrent(t *testing.T) {
	golden.File(t, "README.md", reference(t))
}

// field is a field of the configuration file.
type field struct {
	path string // as in the file, such as conntrack.maxFlows
	text string // the comment
	def  string // the default in JSON, "" for none
	flag string
}

// group is a struct of the configuration with its fields.
type group struct {
	path   string
	text   string
	fields []field
}

// reference is the configuration as Markdown.
func reference(t *testing.T) string {
	t.Helper()
	groups := groupsOf(t)

	var b strings.Builder
	b.WriteString(referenceHead)
	b.WriteString("\n| Field | Default | Flag | SIGHUP |\n| --- | --- | --- | --- |\n")
	for _, g := range groups {
		for _, f := range g.fields {
			reload := ""
			if slices.Contains(Reloadable(), f.path) {
				reload = "yes"
			}
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s | %s |\n", f.path, anchor(f.path), code(f.def), code(f.flag), reload)
		}
	}
	for _, g := range groups {
		if g.path == "" {
			b.WriteString("\n## Top level\n")
		} else {
			fmt.Fprintf(&b, "\n## %s\n\n%s", g.path, wrapped(g.text))
		}
		for _, f := range g.fields {
			if f.text == "" {
				t.Errorf("%s has no comment", f.path)
			}
			fmt.Fprintf(&b, "\n### %s\n\n%s", f.path, wrapped(f.text))
		}
	}
	return b.String()
}

func anchor(path string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(".[]", r) {
			return -1
		}
		return r
	}, strings.ToLower(path))
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// wrapped breaks the paragraphs of a comment into lines.
func wrapped(text string) string {
	const width = 118
	var b strings.Builder
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString("\n")
		}
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = ""
			}
			line = strings.TrimPrefix(line+" "+word, " ")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// groupsOf are the structs of the configuration, the top level first.
func groupsOf(t *testing.T) []group {
	t.Helper()
	comments := commentsOf(t, "config.go")
	maps.Copy(comments, commentsOf(t, "interfaces.go"))
	maps.Copy(comments, commentsOf(t, "admin.go"))
	maps.Copy(comments, commentsOf(t, "addresses.go"))
	maps.Copy(comments, commentsOf(t, "kubernetes.go"))
	maps.Copy(comments, commentsOf(t, "denylist.go"))
	maps.Copy(comments, commentsOf(t, "flood.go"))
	maps.Copy(comments, commentsOf(t, "flowlog.go"))
	maps.Copy(comments, commentsOf(t, "healthchecks.go"))
	maps.Copy(comments, commentsOf(t, "limits.go"))
	maps.Copy(comments, commentsOf(t, "announce.go"))
	maps.Copy(comments, commentsOf(t, "statuspage.go"))
	flags := flagsByPath()

	def := Default()
	def.Announce.Peers = []Peer{{BFD: &BFD{}}}
	def.DenyLists = []DenyList{{Established: DeniedEnd, Scope: ScopeNode}}
	def.Interfaces = []Interface{{Mode: ModeAuto, TxChecksum: TxChecksumAuto, Hook: HookAuto}}
	def.Discovery = Discovery{Manifests: &Manifests{}, Kubernetes: &Kubernetes{}, Names: &Names{}}
	age := DefaultLastKnownMaxAgeHours
	def.Discovery.Kubernetes.LastKnownMaxAgeHours, def.Discovery.Kubernetes.Events = &age, EventsOn

	var groups []group
	var walk func(v reflect.Value, path, text string)
	walk = func(v reflect.Value, path, text string) {
		at := len(groups)
		groups = append(groups, group{path: path, text: text})
		for i := range v.NumField() {
			sf, fv := v.Type().Field(i), v.Field(i)
			tag := tagOf(sf)
			if tag == "" || tag == "apiVersion" || tag == "kind" {
				continue
			}
			p := strings.TrimPrefix(path+"."+tag, ".")
			comment := called(comments[v.Type().Name()+"."+sf.Name], sf.Name, tag)
			if inner := structOf(fv); inner.IsValid() {
				if fv.Kind() == reflect.Slice {
					p += "[]"
				}
				doc := called(comments[inner.Type().Name()], inner.Type().Name(), tag)
				if comment != "" {
					doc += "\n\n" + comment
				}
				walk(inner, p, doc)
				continue
			}
			f := field{path: p, text: comment, flag: flags[p]}
			if !fv.IsZero() || fv.Kind() == reflect.Bool || fv.Type() == reflect.TypeFor[AutoInt]() || fv.Type() == reflect.TypeFor[CPUs]() || fv.Type() == reflect.TypeFor[PortRange]() {
				text, err := json.Marshal(fv.Interface())
				if err != nil {
					t.Fatal(err)
				}
				f.def = strings.Trim(string(text), `"`)
			}
			groups[at].fields = append(groups[at].fields, f)
		}
	}
	walk(reflect.ValueOf(*def), "", "")
	return slices.DeleteFunc(groups, func(g group) bool { return len(g.fields) == 0 })
}

// called is a comment that begins with the name in the file instead of that in Go.
func called(comment, name, tag string) string {
	if rest, ok := strings.CutPrefix(comment, name+" "); ok {
		return "`" + tag + "` " + rest
	}
	return comment
}

// structOf returns the struct of fields that v is, points to or lists, if any.
func structOf(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() == reflect.Pointer:
		return structOf(v.Elem())
	case v.Kind() == reflect.Slice && v.Len() > 0 && v.Type().Elem().Kind() == reflect.Struct:
		return v.Index(0)
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[PortRange]():
		return v
	}
	return reflect.Value{}
}

// commentsOf are the comments of the structs in a Go file by "Type" and of their fields
// by "Type.Field".
func commentsOf(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok {
			return true
		}
		for _, spec := range decl.Specs {
			ts, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			out[ts.Name.Name] = decl.Doc.Text()
			for _, f := range st.Fields.List {
				for _, id := range f.Names {
					text := f.Doc.Text()
					if text == "" {
						text = f.Comment.Text()
					}
					out[ts.Name.Name+"."+id.Name] = text
				}
			}
		}
		return true
	})
	return out
}

// flagsByPath are the flags that stand for fields.
func flagsByPath() map[string]string {
	return map[string]string{
		"nodeName": "--node-name", "discovery.manifests.path": "--manifests", "discovery.kubernetes.kubeconfig": "--kubeconfig",
		"interfaces[].name": "--interface", "admin.socket": "--admin-socket",
	}
}

// TestReferenceNamesEveryFlag holds flagsByPath to the flags that there are.
func TestReferenceNamesEveryFlag(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(fs)
	named := map[string]bool{"--config": true, "--set": true}
	for path, flag := range flagsByPath() {
		named[flag] = true
		if fs.Lookup(strings.TrimPrefix(flag, "--")) == nil {
			t.Errorf("%s: there is no flag %s", path, flag)
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if !named["--"+f.Name] {
			t.Errorf("--%s has no field in the reference", f.Name)
		}
	})
}
