package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	sigsjson "sigs.k8s.io/json"
)

// fault is an error of a document: the field, if known, and the reason.
type fault struct {
	field, reason string
}

// unmarshal decodes JSON into a Kubernetes type as the API server does: field
// names are case sensitive, a field given twice is a fault, the paths of unknown fields are
// returned. prefix is put before the field's path in a fault.
func unmarshal(data []byte, into any, prefix string) (unknown []string, faults []fault) {
	strict, err := sigsjson.UnmarshalStrict(data, into, sigsjson.DisallowDuplicateFields, sigsjson.DisallowUnknownFields)
	if err != nil {
		return nil, []fault{jsonFault(data, err, prefix)}
	}
	for _, err := range strict {
		var fe sigsjson.FieldError
		switch {
		case !errors.As(err, &fe):
			faults = append(faults, fault{reason: err.Error()})
		case strings.HasPrefix(err.Error(), "unknown "):
			unknown = append(unknown, fe.FieldPath())
		default:
			faults = append(faults, fault{field: joinPath(prefix, fe.FieldPath()), reason: "given twice"})
		}
	}
	return unknown, faults
}

func jsonFault(data []byte, err error, prefix string) fault {
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) {
		path := pathAt(data, typeErr.Offset)
		if path == "" {
			path = typeErr.Field
		}
		return fault{
			field:  joinPath(prefix, path),
			reason: fmt.Sprintf("must be %s, not %s", typeName(typeErr), typeErr.Value),
		}
	}
	if ok, offset := sigsjson.SyntaxErrorOffset(err); ok {
		line := 1 + bytes.Count(data[:min(int(offset), len(data))], []byte("\n"))
		return fault{field: prefix, reason: fmt.Sprintf("JSON line %d: %v", line, err)}
	}
	return fault{field: prefix, reason: err.Error()}
}

// typeName names the wanted type as a reader of YAML knows it.
func typeName(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "struct", "map":
		return "a map"
	case "slice", "array":
		return "a list"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	case "int32", "int64", "int", "uint16":
		return "a whole number"
	}
	return e.Type.String()
}

func joinPath(prefix, path string) string {
	switch {
	case prefix == "":
		return path
	case path == "":
		return prefix
	case path[0] == '[':
		return prefix + path
	}
	return prefix + "." + path
}

// pathAt is the path, as `spec.ports[1].port`, of the value that ends at or
// spans offset in a JSON text; "" when there is none.
func pathAt(data []byte, offset int64) string {
	type level struct {
		array bool
		index int
		key   string
		isKey bool // the next string is a key
	}
	var stack []level
	path := func() string {
		p := ""
		for _, l := range stack {
			if l.array {
				p = joinPath(p, "["+strconv.Itoa(l.index)+"]")
			} else {
				p = joinPath(p, l.key)
			}
		}
		return p
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if err != nil {
			return ""
		}
		if n := len(stack); n > 0 && !stack[n-1].array && stack[n-1].isKey {
			if key, ok := tok.(string); ok {
				stack[n-1].key, stack[n-1].isKey = key, false
				continue
			}
		}
		if d, ok := tok.(json.Delim); ok && (d == ']' || d == '}') {
			stack = stack[:len(stack)-1]
		} else {
			if dec.InputOffset() >= offset {
				return path()
			}
			if ok {
				stack = append(stack, level{array: d == '[', isKey: d == '{'})
				continue
			}
		}
		// A value ended: go on to the next element or key.
		if n := len(stack); n > 0 {
			if stack[n-1].array {
				stack[n-1].index++
			} else {
				stack[n-1].isKey = true
			}
		}
	}
}
