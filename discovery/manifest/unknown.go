package manifest

import (
	"reflect"
	"strings"

	"github.com/weirlb/weir/discovery/similar"
)

// remark is a note or warning about an object that counts.
type remark struct {
	fault
	note bool
}

// limiting are fields whose absence would open a Service to more clients, or name another object: if
// an unknown field resembles such a field, the object is refused.
var limiting = map[string]bool{
	"metadata.namespace":            true,
	"metadata.annotations":          true,
	"spec.loadBalancerSourceRanges": true,
	"spec.topologyKeys":             true,

	// Of the Gateway API, where all, or every one, is meant if the field is absent.
	"spec.to.name":                     true,
	"spec.parentRefs.namespace":        true,
	"spec.parentRefs.sectionName":      true,
	"spec.parentRefs.port":             true,
	"spec.rules.backendRefs.namespace": true,
	"spec.rules.backendRefs.weight":    true,
	"spec.listeners.allowedRoutes":     true,
}

// judgeUnknown sorts unknown fields of an object into remarks and faults. anonymous is true if a
// namespace was meant: the object cannot be identified.
func judgeUnknown(value any, unknown []string, prefix string) (remarks []remark, faults []fault, anonymous bool) {
	for _, path := range unknown {
		parent, name := path, path
		if dot := strings.LastIndexByte(path, '.'); dot >= 0 {
			parent, name = path[:dot], path[dot+1:]
		} else {
			parent = ""
		}
		f := fault{joinPath(prefix, path), "unknown field"}
		if known := similar.Name(name, fieldNames(reflect.TypeOf(value), parent)); known != "" {
			f.reason += " (did you mean " + known + "?)"
			if meant := joinPath(parent, known); limiting[indexRE.ReplaceAllString(meant, "")] {
				faults = append(faults, f)
				anonymous = anonymous || meant == "metadata.namespace"
				continue
			}
		}
		remarks = append(remarks, remark{fault: f})
	}
	return remarks, faults, anonymous
}

// fieldNames are the JSON names of the fields of the struct at path in t.
func fieldNames(t reflect.Type, path string) []string {
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, ".")
		name, _, _ = strings.Cut(name, "[")
		if t = fieldType(elem(t), name); t == nil {
			return nil
		}
	}
	if t = elem(t); t.Kind() != reflect.Struct {
		return nil
	}
	var out []string
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		}
	}
	if t.Name() == "ServiceSpec" {
		out = append(out, "topologyKeys")
	}
	return out
}

// fieldType is the type of a struct's field by JSON name, nil if there is none.
func fieldType(t reflect.Type, name string) reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f.Type
		}
	}
	return nil
}

// elem is the type behind pointers, lists and maps.
func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}
