// Package definition makes the CustomResourceDefinitions of the objects of pools and their
// announcement in weir.dev/v1alpha1, from the structs that decode them. A field that a node would
// not do as it says, or a value that is wrong by itself, is refused by the API server (CEL rules,
// KEP-2876); a webhook is not needed. References between objects are looked at by readers.
//
// Rules keep to what Kubernetes 1.25 knows.
package definition

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/weirlb/weir/discovery/addresspool"
)

// Version is that of the objects.
const Version = "v1alpha1"

// All are the definitions, by kind.
func All() ([]map[string]any, error) {
	var out []map[string]any
	for _, k := range kinds {
		d, err := k.definition()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// kind is a kind of objects.
type kind struct {
	name, plural, text string
	spec               any // the struct that decodes it
	required           []string
	rules              []rule           // of the spec as a whole
	fields             map[string]field // by name, such as "serviceAllocation.priority"
	columns            [][2]string      // of kubectl get: title and field
}

// rule is a CEL rule.
type rule struct{ rule, message string }

// field is the schema of a field beyond its Go type.
type field struct {
	text   string
	schema map[string]any
	items  map[string]any // of a list
	rules  []rule
}

// refused is a field that a node would not do as it says. Empty is the value that is not refused.
func refused(empty, message string) field {
	rules := map[string]string{"string": "self == ''", "boolean": "!self", "integer": "self == 0", "array": "self.size() == 0"}
	return field{text: "Not supported: " + message + ".", rules: []rule{{rules[empty], message}}}
}

func bounds(text string, least, most int64) field {
	return field{text: text, schema: map[string]any{"minimum": least, "maximum": most}}
}

func matching(text, pattern string) field {
	return field{text: text, schema: map[string]any{"pattern": pattern, "maxLength": 64}}
}

// address is any text of the characters of an address: exact rules are those of newer API servers.
const address = `^[0-9a-fA-F:.]*$`

func (k *kind) definition() (map[string]any, error) {
	used := map[string]bool{}
	spec, err := k.object(reflect.TypeOf(k.spec), "", used)
	if err != nil {
		return nil, err
	}
	for name := range k.fields {
		if !used[name] {
			return nil, fmt.Errorf("%s is no field", name)
		}
	}
	spec["description"] = "Spec is what is asked for."
	if len(k.rules) > 0 {
		spec["x-kubernetes-validations"] = validations(k.rules)
	}
	schema := map[string]any{
		"type": "object", "description": k.text,
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string"}, "kind": map[string]any{"type": "string"},
			"metadata": map[string]any{"type": "object"}, "spec": spec,
		},
	}
	if len(k.required) > 0 {
		spec["required"] = k.required
		schema["required"] = []string{"spec"}
	}
	version := map[string]any{"name": Version, "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": schema}}
	var columns []any
	for _, c := range k.columns {
		columns = append(columns, map[string]any{"name": c[0], "type": "string", "jsonPath": ".spec." + c[1]})
	}
	if columns != nil {
		version["additionalPrinterColumns"] = columns
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": k.plural + "." + addresspool.GroupWeir},
		"spec": map[string]any{
			"group": addresspool.GroupWeir, "scope": "Namespaced",
			"names":    map[string]any{"kind": k.name, "listKind": k.name + "List", "plural": k.plural, "singular": strings.ToLower(k.name)},
			"versions": []any{version},
		},
	}, nil
}

func validations(rules []rule) (out []any) {
	for _, r := range rules {
		out = append(out, map[string]any{"rule": r.rule, "message": r.message})
	}
	return out
}

// object is the schema of a struct whose fields are those below at.
func (k *kind) object(t reflect.Type, at string, used map[string]bool) (map[string]any, error) {
	properties := map[string]any{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		path := strings.TrimPrefix(at+"."+name, ".")
		x, ok := k.fields[path]
		if !ok || name == "" {
			return nil, fmt.Errorf("field %s (%s) is not described", path, f.Name)
		}
		used[path] = true
		schema, err := k.schema(f.Type, path, used)
		if err != nil {
			return nil, err
		}
		schema["description"] = x.text
		for key, value := range x.schema {
			schema[key] = value
		}
		if items, ok := schema["items"].(map[string]any); ok {
			for key, value := range x.items {
				items[key] = value
			}
		}
		if len(x.rules) > 0 {
			schema["x-kubernetes-validations"] = validations(x.rules)
		}
		properties[name] = schema
	}
	return map[string]any{"type": "object", "properties": properties}, nil
}

// mostItems bounds lists: the API server refuses rules whose cost has no bound.
const mostItems = 256

// schema is that of a type.
func (k *kind) schema(t reflect.Type, path string, used map[string]bool) (map[string]any, error) {
	if t == reflect.TypeFor[addresspool.Selector]() {
		return selector(), nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return k.schema(t.Elem(), path, used)
	case reflect.String:
		return map[string]any{"type": "string", "maxLength": 1024}, nil
	case reflect.Bool:
		return map[string]any{"type": "boolean"}, nil
	case reflect.Int, reflect.Uint16, reflect.Uint32:
		return map[string]any{"type": "integer", "format": "int64"}, nil
	case reflect.Slice:
		items, err := k.schema(t.Elem(), path, used)
		return map[string]any{"type": "array", "maxItems": mostItems, "items": items}, err
	case reflect.Struct:
		return k.object(t, path, used)
	}
	return nil, fmt.Errorf("%s: no schema for %s", path, t)
}

// selector is the schema of a label selector.
func selector() map[string]any {
	text := map[string]any{"type": "string", "maxLength": 512}
	requirement := map[string]any{
		"type": "object", "required": []string{"key", "operator"},
		"properties": map[string]any{
			"key":      text,
			"operator": map[string]any{"type": "string", "enum": []string{"In", "NotIn", "Exists", "DoesNotExist"}},
			"values":   map[string]any{"type": "array", "maxItems": 64, "items": text},
		},
		"x-kubernetes-validations": validations([]rule{{
			"(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)", "values: must be given with In and NotIn, and only with these",
		}}),
	}
	return map[string]any{
		"type": "object",
		"properties": map[string]any{
			"matchLabels":      map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
			"matchExpressions": map[string]any{"type": "array", "maxItems": 16, "items": requirement},
		},
	}
}

// Kinds are the kinds with a definition, sorted.
func Kinds() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name)
	}
	slices.Sort(out)
	return out
}
