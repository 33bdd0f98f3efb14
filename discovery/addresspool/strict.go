package addresspool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/weirlb/weir/discovery/similar"
)

// faults are the reasons why an object is not used, the first mostFaults of them.
type faults []error

const mostFaults = 16

// when adds a reason if the object is bad.
func (f *faults) when(bad bool, format string, args ...any) {
	switch {
	case !bad:
	case len(*f) < mostFaults:
		*f = append(*f, fmt.Errorf(format, args...))
	case len(*f) == mostFaults:
		*f = append(*f, errors.New("spec: has more faults than these"))
	}
}

// enough reports whether more reasons change nothing.
func (f *faults) enough() bool { return len(*f) > mostFaults }

// selectors checks the selectors of a field.
func (f *faults) selectors(field string, selectors []Selector) {
	for i, s := range selectors {
		for j, r := range s.MatchExpressions {
			set := r.Operator == "In" || r.Operator == "NotIn"
			if !set && r.Operator != "Exists" && r.Operator != "DoesNotExist" {
				f.when(true, "%s[%d].matchExpressions[%d].operator: must be In, NotIn, Exists or DoesNotExist, is %q", field, i, j, r.Operator)
				continue
			}
			f.when(set != (len(r.Values) > 0), "%s[%d].matchExpressions[%d].values: must be given with In and NotIn, and only with these", field, i, j)
		}
	}
}

// reasons are those that errors.Join has joined.
func reasons(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// spec decodes the object's spec. The error joins one for each field that is not known, or has a value of
// another type.
func (h *header) spec(into any) error {
	if len(h.Spec) == 0 {
		return nil
	}
	var value any
	if err := json.Unmarshal(h.Spec, &value); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	var f faults
	f.fields("spec", value, reflect.TypeOf(into).Elem())
	if len(f) > 0 {
		return errors.Join(f...)
	}
	if err := json.Unmarshal(h.Spec, into); err != nil { // a number that is too large
		return typeFault("spec", err)
	}
	return nil
}

// fields compares a value with its type.
func (f *faults) fields(path string, value any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	is := ""
	switch v := value.(type) {
	case map[string]any:
		is = "object"
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if f.enough() {
				return
			}
			at := path + "." + key
			switch t.Kind() {
			case reflect.Struct:
				if field, known := fieldOf(t, key); known {
					f.fields(at, v[key], field)
				} else {
					f.when(true, "%s: this field is not known%s", at, similar.Hint(key, fieldsOf(t)))
				}
			case reflect.Map:
				f.fields(at, v[key], t.Elem())
			}
		}
	case []any:
		is = "array"
		for i := range v {
			if f.enough() {
				return
			}
			if t.Kind() == reflect.Slice {
				f.fields(fmt.Sprintf("%s[%d]", path, i), v[i], t.Elem())
			}
		}
	case string:
		is = "string"
	case bool:
		is = "bool"
	case float64:
		is = "number"
	}
	if want := typeName(t); is != "" && want != valueNames[is] && (is != "number" || !strings.HasPrefix(want, "a whole number")) {
		f.when(true, "%s: must be %s, is %s", path, want, valueNames[is])
	}
}

// fieldOf is the type of a field of a struct, as encoding/json finds it.
func fieldOf(t reflect.Type, name string) (field reflect.Type, known bool) {
	for _, x := range reflect.VisibleFields(t) {
		if tag := tagOf(x); tag != "" && strings.EqualFold(tag, name) {
			return x.Type, true
		}
	}
	return nil, false
}

// tagOf is the name of a field in JSON; "": it has none.
func tagOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.TrimPrefix(name, "-")
}

// typeFault names the field at path with a value of another type, and the types as readers of YAML know
// them. Another error has the path in front.
func typeFault(path string, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		path = strings.Trim(path+"."+wrong.Field, ".")
		err = fmt.Errorf("must be %s, is %s", typeName(wrong.Type), cmp.Or(valueNames[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")))
	}
	if path == "" {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// valueNames are the types of JSON as a reader of YAML knows them.
var valueNames = map[string]string{"object": "a map", "array": "a list", "string": "a string", "bool": "true or false", "number": "a number"}

// typeName is a type as a reader of YAML knows it.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a map"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number of 0 to %d", uint64(1)<<t.Bits()-1)
	}
	return "a whole number"
}

// fieldsOf are the names of the fields of a struct, and of those in it.
func fieldsOf(t reflect.Type) (out []string) {
	var walk func(t reflect.Type, depth int)
	walk = func(t reflect.Type, depth int) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || depth > 4 {
			return
		}
		for _, f := range reflect.VisibleFields(t) {
			if name := tagOf(f); name != "" {
				out = append(out, name)
			}
			walk(f.Type, depth+1)
		}
	}
	walk(t, 0)
	return out
}
