package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	strict "sigs.k8s.io/json"

	"github.com/weirlb/weir/discovery/similar"
)

// maxErrors bounds the values of a wrong type that are told at once.
const maxErrors = 20

// decoder decodes a configuration from a YAML tree, as JSON and strictly. It notes where every field
// comes from, which JSON cannot say.
type decoder struct {
	file   string
	given  map[*yaml.Node]string // the origins of nodes that are not of the file
	origin map[string]string     // by the path of the field
	values []value
	errs   Errors
}

// value is a node at a path, and the path without the indices of lists, as JSON decoders know it.
type value struct {
	path, field string
	node        *yaml.Node
}

// parse is the tree of a file, nil after an error.
func (d *decoder) parse(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.errs = append(d.errs, &FieldError{Origin: d.file, Msg: "the file is empty"})
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		d.addf(root, "", "expected a mapping, got %s", describe(root))
		return nil
	}
	if err := dec.Decode(&next); err == nil {
		d.addf(&next, "", "a second document: the file must hold one %s", Kind)
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	return root
}

// syntax turns "yaml: line 3: ..." into FILE:3: ...
func (d *decoder) syntax(err error) {
	lines := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if e := (&yaml.TypeError{}); errors.As(err, &e) {
		lines = e.Errors
	}
	for _, msg := range lines {
		origin := d.file
		if rest, ok := strings.CutPrefix(msg, "line "); ok {
			if n, m, ok := strings.Cut(rest, ": "); ok {
				if line, err := strconv.Atoi(n); err == nil {
					origin, msg = d.at(line), m
				}
			}
		}
		d.errs = append(d.errs, &FieldError{Origin: origin, Msg: "not YAML: " + strings.ReplaceAll(msg, "\n", " ")})
	}
}

func (d *decoder) at(line int) string {
	if d.file == "" {
		return "line " + strconv.Itoa(line)
	}
	return d.file + ":" + strconv.Itoa(line)
}

// originOf is where a node is from.
func (d *decoder) originOf(n *yaml.Node) string {
	if origin, ok := d.given[n]; ok {
		return origin
	}
	return d.at(n.Line)
}

func (d *decoder) addf(n *yaml.Node, path, format string, args ...any) {
	d.errs = append(d.errs, &FieldError{Origin: d.originOf(n), Path: path, Msg: fmt.Sprintf(format, args...)})
}

// decode is the configuration of a tree over the defaults. With errors in fields it has the others, so
// that these can be validated too; it is nil without any, or if this is no document of this kind. The
// JSON decoder tells the first value of a wrong type alone, which is left out of the next try.
func (d *decoder) decode(root *yaml.Node) *Configuration {
	d.origin = map[string]string{}
	d.walk(root, "", "")
	for range maxErrors {
		var tree any
		if err := root.Decode(&tree); err != nil {
			d.syntax(err)
			return nil
		}
		data, err := json.Marshal(tree)
		if err != nil {
			d.addf(root, "", "%v", err)
			return nil
		}
		c := Default()
		c.APIVersion, c.Kind = "", "" // a file must state both
		c.origin = d.origin
		unknown, err := strict.UnmarshalStrict(data, c)
		for _, e := range unknown {
			d.unknown(e)
		}
		if err == nil && (len(d.errs) == 0 || c.Kind == Kind) {
			return c
		}
		if err == nil {
			break
		}
		if !d.wrong(err) {
			d.addf(root, "", "%v", err)
			break
		}
	}
	return nil
}

// walk notes the origins of all fields. A field without a value keeps its default, and the text of a
// name or a string is as in the file.
func (d *decoder) walk(n *yaml.Node, path, field string) {
	d.values = append(d.values, value{path, field, n})
	switch n.Kind {
	case yaml.ScalarNode:
		if tag := n.ShortTag(); tag == "!!timestamp" || tag == "!!float" && !json.Valid([]byte(n.Value)) {
			n.Tag = "!!str"
		}
	case yaml.SequenceNode:
		for i, e := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if isNull(e) { // there is no default to keep
				d.addf(e, at, "expected an element, got nothing")
			}
			d.origin[at] = d.originOf(e)
			d.walk(e, at, field)
		}
	case yaml.MappingNode:
		var kept []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, val := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				d.addf(key, path, "expected the name of a field, got %s", describe(key))
				continue
			}
			if key.ShortTag() != "!!merge" {
				key.Tag = "!!str"
			}
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			d.origin[at] = d.originOf(key) // a reader looks there
			if !isNull(val) {
				kept = append(kept, key, val)
				d.walk(val, at, strings.TrimPrefix(field+"."+key.Value, "."))
			}
		}
		n.Content = kept
	}
}

func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// wrong notes a value of a wrong type, and takes it out of the tree. It reports false for another
// error.
func (d *decoder) wrong(err error) bool {
	var e *json.UnmarshalTypeError
	if !errors.As(err, &e) {
		return false
	}
	named := func(v value) bool { return v.field == e.Field && e.Field != "" && !isNull(v.node) }
	i := slices.IndexFunc(d.values, func(v value) bool { return named(v) && (e.Type == nil || isLike(v.node, e.Value)) })
	if i < 0 {
		i = slices.IndexFunc(d.values, named) // its tag is none of YAML's
	}
	if i < 0 {
		return false
	}
	v := d.values[i]
	switch {
	case e.Type == nil:
		d.addf(v.node, v.path, "%s", e.Value)
	case secretFile(v.path):
		d.addf(v.node, v.path, noSecretFile)
	default:
		d.addf(v.node, v.path, "expected %s, got %s", inWords(e.Type), describe(v.node))
	}
	v.node.Kind, v.node.Tag, v.node.Value, v.node.Content = yaml.ScalarNode, "!!null", "", nil
	return true
}

// isLike reports whether a JSON decoder calls a node so.
func isLike(n *yaml.Node, what string) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	kind, number, _ := strings.Cut(what, " ")
	switch kind {
	case "array":
		return n.Kind == yaml.SequenceNode
	case "object":
		return n.Kind == yaml.MappingNode
	case "string", "bool":
		return n.Kind == yaml.ScalarNode && n.ShortTag() == map[string]string{"string": "!!str", "bool": "!!bool"}[kind]
	}
	var x any
	return n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float") &&
		(number == "" || n.Decode(&x) == nil && fmt.Sprint(x) == number || n.Value == number)
}

// inWords names the type of a field.
func inWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16:
		return "a whole number from 1 to 65535"
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "a mapping"
	}
	return "a whole number"
}

// describe names the kind of a node of the file, for messages.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if len(n.Value) > 64 {
			return fmt.Sprintf("%q...", n.Value[:64])
		}
		if n.ShortTag() == "!!str" {
			return strconv.Quote(n.Value)
		}
		return n.Value
	}
	return "nothing"
}

// unknown notes a field that there is not, with the most similar name that there is.
func (d *decoder) unknown(err error) {
	e, ok := err.(strict.FieldError)
	if !ok {
		d.errs = append(d.errs, &FieldError{Origin: d.file, Msg: err.Error()})
		return
	}
	path := e.FieldPath()
	dot := strings.LastIndexByte(path, '.')
	r := report{origin: d.origin}
	r.addf(path, "unknown field%s", similar.Hint(path[dot+1:], fieldsOf(path[:max(dot, 0)])))
	d.errs = append(d.errs, r.errs...)
}

// fieldsOf are the names of the fields at a path.
func fieldsOf(path string) (names []string) {
	t := reflect.TypeFor[Configuration]()
	for name := range strings.SplitSeq(path, ".") {
		name, _, _ = strings.Cut(name, "[")
		for i := range t.NumField() {
			if f := t.Field(i); name != "" && tagOf(f) == name {
				t = f.Type
				break
			}
		}
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
	}
	for i := range t.NumField() {
		if tag := tagOf(t.Field(i)); tag != "" {
			names = append(names, tag)
		}
	}
	return names
}

func tagOf(f reflect.StructField) string {
	tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return tag
}
