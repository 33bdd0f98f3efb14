package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/weirlb/weir/discovery/similar"
)

// decoder fills a Configuration from a YAML tree. encoding/json's strict mode
// stops at the first unknown field and does not report the line; decoder goes on, and
// notes the line of every field for later messages.
type decoder struct {
	file   string
	origin map[string]string
	errs   Errors
}

// scalar is a type with a special notation.
type scalar interface {
	// set parses the text of the file. list is not nil when the value is a sequence.
	set(text string, list []string) error
}

func (d *decoder) document(data []byte, into *Configuration) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.errs = append(d.errs, &FieldError{Origin: d.file, Msg: "the file is empty"})
		return
	case err != nil:
		d.syntax(err)
		return
	}
	d.value(doc.Content[0], reflect.ValueOf(into).Elem(), "")
	var next yaml.Node
	if err := dec.Decode(&next); err == nil {
		d.addf(&next, "", "a second document: the file must hold one %s", Kind)
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
}

// syntax turns "yaml: line 3: ..." into FILE:3: ...
func (d *decoder) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	origin := d.file
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if n, m, ok := strings.Cut(rest, ": "); ok {
			if _, err := strconv.Atoi(n); err == nil {
				origin, msg = d.at(n), m
			}
		}
	}
	d.errs = append(d.errs, &FieldError{Origin: origin, Msg: "not YAML: " + strings.ReplaceAll(msg, "\n", " ")})
}

func (d *decoder) at(line string) string {
	if d.file == "" {
		return "line " + line
	}
	return d.file + ":" + line
}

func (d *decoder) addf(n *yaml.Node, path, format string, args ...any) {
	d.errs = append(d.errs, &FieldError{
		Origin: d.at(strconv.Itoa(n.Line)),
		Path:   path,
		Msg:    fmt.Sprintf(format, args...),
	})
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if path != "" {
		d.origin[path] = d.at(strconv.Itoa(n.Line))
	}
	if isNull(n) {
		return // "field:" alone leaves the default
	}
	if s, ok := v.Addr().Interface().(scalar); ok {
		d.scalar(n, s, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.sequence(n, v, path)
	default:
		d.plain(n, v, path)
	}
}

func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.addf(n, path, "expected a mapping, got %s", describe(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		name := key.Value
		at := name
		if path != "" {
			at = path + "." + name
		}
		f, known := fieldByTag(v, name)
		switch {
		case key.Kind != yaml.ScalarNode:
			d.addf(key, path, "expected the name of a field, got %s", describe(key))
		case !known:
			d.addf(key, at, "unknown field%s", suggest(name, v.Type()))
		case seen[name]:
			d.addf(key, at, "given twice")
		default:
			seen[name] = true
			d.value(val, f, at)
			// The key's line, not the value's: a reader looks there.
			d.origin[at] = d.at(strconv.Itoa(key.Line))
		}
	}
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.addf(n, path, "expected a list, got %s", describe(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if isNull(e) { // there is no default to leave
			d.addf(e, at, "expected an element, got nothing")
			continue
		}
		d.value(e, s.Index(i), at)
	}
	v.Set(s)
}

func (d *decoder) scalar(n *yaml.Node, s scalar, path string) {
	var list []string
	switch n.Kind {
	case yaml.ScalarNode:
	case yaml.SequenceNode:
		list = []string{}
		for _, e := range n.Content {
			list = append(list, e.Value)
		}
	default:
		d.addf(n, path, "expected a value, got %s", describe(n))
		return
	}
	if err := s.set(n.Value, list); err != nil {
		d.addf(n, path, "%v", err)
	}
}

func (d *decoder) plain(n *yaml.Node, v reflect.Value, path string) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		if tag != "!!str" && tag != "!!timestamp" {
			if secretFile(path) {
				d.addf(n, path, noSecretFile)
				return
			}
			d.addf(n, path, "expected a string, got %s", describe(n))
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if tag != "!!bool" {
			d.addf(n, path, "expected true or false, got %s", describe(n))
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int:
		i, err := strconv.Atoi(n.Value)
		if tag != "!!int" || err != nil {
			d.addf(n, path, "expected a whole number, got %s", describe(n))
			return
		}
		v.SetInt(int64(i))
	case reflect.Uint16:
		p, err := parsePort(n.Value)
		if tag != "!!int" || err != nil {
			d.addf(n, path, "expected a port (1-65535), got %s", describe(n))
			return
		}
		v.SetUint(uint64(p))
	default:
		panic("config: a field of kind " + v.Kind().String())
	}
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

func fieldByTag(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tag := tagOf(v.Type().Field(i)); tag != "" && tag == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func tagOf(f reflect.StructField) string {
	tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return tag
}

// suggest names the field of t with the most similar name.
func suggest(name string, t reflect.Type) string {
	var known []string
	for i := range t.NumField() {
		if tag := tagOf(t.Field(i)); tag != "" {
			known = append(known, tag)
		}
	}
	return similar.Hint(name, known)
}
