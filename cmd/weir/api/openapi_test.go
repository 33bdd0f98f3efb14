package api_test

import (
	"encoding"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3gen"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/golden"
)

// The document is made of the routes and the types of their answers.
func TestOpenAPIIsCurrent(t *testing.T) {
	want, err := json.MarshalIndent(document(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, "openapi.json", string(want)+"\n")
}

// explanation is api.Explanation with the Services as package explain has them.
type explanation struct {
	Node     string            `json:"node"`
	WhatIf   string            `json:"whatIf,omitempty"`
	Services []explain.Service `json:"services"`
	Errors   []string          `json:"errors,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
}

func document(t *testing.T) *openapi3.T {
	t.Helper()
	schemas := openapi3.Schemas{}
	g := generator(comments(t, "github.com/weirlb/weir/cmd/weir/", "api", "event", "explain", "problem"), schemas)
	ref := func(v any) *openapi3.SchemaRef {
		if _, ok := v.(api.Explanation); ok {
			v = explanation{}
		}
		r, err := g.NewSchemaRefForValue(v, schemas)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	fault := openapi3.NewResponse().WithDescription("The request failed. 429: as many requests of the kind are answered as may be at a time, " +
		"and none ended while this request waited; 503: the daemon has no room for what was asked. " +
		"Both may be sent again later, after Retry-After seconds.").
		WithJSONSchemaRef(ref(api.Failure{}))
	doc := &openapi3.T{
		OpenAPI: "3.0.3",
		Info: &openapi3.Info{
			Title: "Weir", Version: "v1",
			Description: "The interface of a running Weir to its operator: HTTP over the UNIX socket admin.socket. " +
				"Root, the user of the daemon and members of admin.group may ask; others get 403. " +
				"Fields are only ever added. A fault in the middle of an answer breaks the connection.",
			License: &openapi3.License{Name: "Apache-2.0"},
		},
		Servers:    openapi3.Servers{{URL: "http://weir"}},
		Paths:      openapi3.NewPaths(),
		Components: &openapi3.Components{Schemas: schemas},
	}
	for _, o := range api.Operations() {
		kind := o.Produces
		if kind == "" {
			kind = "application/json"
		}
		ok := openapi3.NewResponse().WithDescription("The answer.").WithContent(openapi3.Content{
			kind: {Schema: ref(o.Answer)},
		})
		op := &openapi3.Operation{
			OperationID: operationID(o.Method, o.Path), Summary: o.Summary,
			Responses: openapi3.NewResponses(openapi3.WithStatus(http.StatusOK, &openapi3.ResponseRef{Value: ok}), openapi3.WithName("default", fault)),
		}
		if o.Full {
			op.Description = "For root, the user of the daemon and, with admin.groupAccess full, members of admin.group."
		}
		for _, p := range o.Params {
			op.AddParameter(parameter(&p))
		}
		doc.AddOperation(o.Path, o.Method, op)
	}
	return doc
}

// operationID is such as getStatus.
func operationID(method, path string) string {
	words := strings.FieldsFunc(strings.TrimPrefix(path, "/v1/"), func(r rune) bool { return r == '/' || r == '-' || r == '.' })
	id := strings.ToLower(method)
	for _, w := range words {
		id += strings.ToUpper(w[:1]) + w[1:]
	}
	return id
}

func parameter(p *api.Parameter) *openapi3.Parameter {
	kind := p.Kind
	if kind == "" {
		kind = "string"
	}
	s := &openapi3.Schema{Type: &openapi3.Types{kind}}
	for _, e := range p.Enum {
		s.Enum = append(s.Enum, e)
	}
	out := openapi3.NewQueryParameter(p.Name).WithDescription(p.Usage).WithSchema(s)
	out.Required = p.Required
	return out
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

// typeName is the name of a type's component: with the package, but for package api.
func typeName(t reflect.Type) string {
	if t.Name() == "" || t.PkgPath() == reflect.TypeFor[api.Status]().PkgPath() {
		return t.Name()
	}
	if t == reflect.TypeFor[explanation]() {
		return "Explanation"
	}
	pkg := t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]
	return strings.ToUpper(pkg[:1]) + pkg[1:] + t.Name()
}

func generator(docs map[string]string, schemas openapi3.Schemas) *openapi3gen.Generator {
	return openapi3gen.NewGenerator(
		openapi3gen.CreateComponentSchemas(openapi3gen.ExportComponentSchemasOptions{ExportComponentSchemas: true, ExportTopLevelSchema: true}),
		openapi3gen.CreateTypeNameGenerator(typeName),
		openapi3gen.SchemaCustomizer(func(_ string, t reflect.Type, _ reflect.StructTag, s *openapi3.Schema) error {
			switch {
			case t == reflect.TypeFor[api.Worker]():
				describeWorker(s)
			case t != reflect.TypeFor[time.Time]() && (t.Implements(textMarshaler) || reflect.PointerTo(t).Implements(textMarshaler)):
				*s = openapi3.Schema{Type: &openapi3.Types{"string"}, Nullable: s.Nullable}
				if t.Kind() == reflect.Struct { // a component, which the generator leaves out
					schemas[typeName(t)] = openapi3.NewSchemaRef("", openapi3.NewStringSchema())
				}
			case t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
				s.Nullable = true
			case t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]():
				s.Type = &openapi3.Types{"object"}
				describeStruct(s, t, docs)
			}
			return nil
		}),
	)
}

// describeStruct marks the fields that are always there, and adds the comments.
func describeStruct(s *openapi3.Schema, t reflect.Type, docs map[string]string) {
	s.Description = docs[t.PkgPath()+"."+t.Name()]
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			continue
		}
		if p.Ref == "" && p.Value != nil {
			p.Value.Description = docs[t.PkgPath()+"."+t.Name()+"."+f.Name]
		}
		if !strings.Contains(options, "omit") {
			s.Required = append(s.Required, name)
		}
	}
}

// describeWorker describes a type that is written field by field.
func describeWorker(s *openapi3.Schema) {
	number, integer := &openapi3.Types{"number"}, &openapi3.Types{"integer"}
	*s = openapi3.Schema{
		Type: &openapi3.Types{"object"}, Description: "A packet loop.", Required: []string{"id", "cpu", "busyShare", "drops"},
		Properties: openapi3.Schemas{
			"id":        {Value: &openapi3.Schema{Type: integer}},
			"cpu":       {Value: &openapi3.Schema{Type: integer, Description: "-1: not pinned"}},
			"busyShare": {Value: &openapi3.Schema{Type: number}},
			"drops": {Value: &openapi3.Schema{
				Type: &openapi3.Types{"object"}, Nullable: true,
				AdditionalProperties: openapi3.AdditionalProperties{Schema: &openapi3.SchemaRef{Value: &openapi3.Schema{Type: integer}}},
			}},
		},
	}
	for c := range counter.Counters {
		info, kind := c.Info(), integer
		if info.Nanoseconds {
			kind = number
		}
		s.Properties[info.Field] = &openapi3.SchemaRef{Value: &openapi3.Schema{Type: kind, Description: info.Help}}
		s.Required = append(s.Required, info.Field)
	}
}

// comments are those of the types and fields of packages, by path.Type and path.Type.Field.
func comments(t *testing.T, module string, packages ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pkg, len(files), err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			commentsOf(f, module+pkg+".", out)
		}
	}
	return out
}

func commentsOf(f *ast.File, prefix string, out map[string]string) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			typ := spec.(*ast.TypeSpec)
			out[prefix+typ.Name.Name] = text(g.Doc)
			st, ok := typ.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range st.Fields.List {
				doc := text(field.Doc)
				if doc == "" {
					doc = text(field.Comment)
				}
				for _, name := range field.Names {
					out[prefix+typ.Name.Name+"."+name.Name] = doc
				}
			}
		}
	}
}

func text(c *ast.CommentGroup) string {
	return strings.Join(strings.Fields(c.Text()), " ")
}
