package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery"
)

// Key identifies an object. Kind is Service, EndpointSlice, Endpoints, Node or one of the Gateway API; an
// EndpointSlice is the same object in every API version.
type Key struct{ Kind, Namespace, Name string }

// String is "Service default/web", or "Node a" for an object without a namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// object is a Kubernetes object of a document: the typed value (a
// *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Endpoints, *corev1.Node or
// of gatewayKinds) or the error. A zero Name means that the error hides the name.
type object struct {
	key     Key
	item    int // position in a List, from 0; -1 outside a List
	hash    uint64
	service discovery.ServiceName // whose endpoints it holds, if that is known
	value   any
	faults  []fault
	remarks []remark
	skipped string // "apps/v1 Deployment": a kind that Weir has no use for
	// meant is, of a skipped document, the kind that it resembles, "" for none; misspelt is the
	// field that differs; foreign is true if the document is probably meant as it is.
	meant, misspelt string
	foreign         bool
}

// meta has the fields that identify an object.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Items json.RawMessage `json:"items"`
}

// decoder turns documents into objects. known, when not nil, is asked before
// an object is decoded whether it was seen before with this hash: such an
// object is returned without a value.
type decoder struct {
	seed  maphash.Seed
	known func(hash uint64) (Key, bool)
	// last are the units of the file's last version, units those of this version; both may
	// be nil.
	last, units units
}

// document decodes a document of a file. A List gives an object per item. Nothing is
// returned for a document that holds only null.
func (d *decoder) document(doc document, isJSON bool) []object {
	objects, _ := d.unit(doc.raw, -1, func() ([]object, bool) { return d.parse(doc, isJSON), true })
	return objects
}

func (d *decoder) parse(doc document, isJSON bool) []object {
	if text := bytes.TrimSpace(doc.raw); len(text) > 0 && text[0] == '[' {
		return []object{{item: -1, faults: []fault{{reason: "an array: expected an object, or a List (kind: List, items: [...])"}}}}
	}
	if texts, ok := splitJSON(doc.raw); ok || isJSON {
		var out []object
		for _, text := range texts {
			out = append(out, d.object(text, -1)...)
		}
		if !ok {
			out = append(out, object{item: -1, faults: []fault{syntaxFault(doc)}})
		}
		return out
	}
	if objects, ok := d.yamlList(doc); ok {
		return objects
	}
	text, err := toJSON(doc)
	if err != nil {
		return []object{{item: -1, faults: []fault{{reason: err.Error()}}}}
	}
	if string(text) == "null" {
		return nil
	}
	return d.object(text, -1)
}

// splitJSON cuts a text of one or more JSON values, as `kubectl get -o json`
// prints them. It is false when the text is not JSON throughout; the values
// before the fault are returned all the same.
func splitJSON(raw []byte) ([]json.RawMessage, bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '{' {
		return nil, false
	}
	var texts []json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(raw))
	for dec.More() {
		var text json.RawMessage
		if dec.Decode(&text) != nil {
			return texts, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// syntaxFault says where a text stops being JSON, by the line of the file.
func syntaxFault(doc document) fault {
	dec := json.NewDecoder(bytes.NewReader(doc.raw))
	for {
		var text json.RawMessage
		err := dec.Decode(&text)
		if err == nil {
			continue
		}
		at := dec.InputOffset()
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = syntax.Offset
		}
		line := doc.line + bytes.Count(doc.raw[:min(int(at), len(doc.raw))], []byte("\n"))
		return fault{reason: fmt.Sprintf("not JSON: line %d: %v", line, err)}
	}
}

// toJSON turns a YAML document into JSON. Texts that cannot be an object, or are expensive
// to parse, are refused before parsing.
func toJSON(doc document) ([]byte, error) {
	raw := doc.raw
	if len(raw) > MaxDocumentBytes {
		return nil, fmt.Errorf("%s exceed the limit of %s for one YAML document; split it or write it as JSON",
			size(len(raw)), size(MaxDocumentBytes))
	}
	if !bytes.Contains(raw, []byte("kind")) {
		return nil, errors.New("not a Kubernetes object: it has no field kind")
	}
	if bytes.IndexByte(raw, '&') >= 0 && bytes.IndexByte(raw, '*') >= 0 {
		if err := refuseAliases(doc); err != nil {
			return nil, err
		}
	}
	text, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, yamlError(err, doc.line)
	}
	return text, nil
}

// refuseAliases parses a document without expanding anything and says where
// the first alias stands: a few lines of aliases can stand for gigabytes, and
// no API server ever prints one.
func refuseAliases(doc document) error {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal(doc.raw, &root); err != nil {
		return yamlError(err, doc.line)
	}
	if n := firstAlias(&root); n != nil {
		return fmt.Errorf("line %d: YAML alias *%s: aliases are not accepted", n.Line+doc.line-1, n.Value)
	}
	return nil
}

func firstAlias(n *yamlv3.Node) *yamlv3.Node {
	if n.Kind == yamlv3.AliasNode {
		return n
	}
	for _, c := range n.Content {
		if a := firstAlias(c); a != nil {
			return a
		}
	}
	return nil
}

var lineRE = regexp.MustCompile(`\bline (\d+)`)

// yamlError makes a line of the YAML parser's error about a text that begins in line first
// of a file.
func yamlError(err error, first int) error {
	msg := strings.ReplaceAll(err.Error(), "\n", " ")
	msg = strings.TrimPrefix(msg, "error converting YAML to JSON: ")
	msg = strings.TrimPrefix(msg, "yaml: ")
	msg = strings.TrimPrefix(msg, "unmarshal errors: ")
	msg = strings.Join(strings.Fields(msg), " ")
	if strings.Contains(msg, "did not find expected") {
		first++ // the parser of YAML counts lines from 0 in these
	}
	msg = lineRE.ReplaceAllStringFunc(msg, func(s string) string {
		n, _ := strconv.Atoi(s[len("line "):])
		return fmt.Sprintf("line %d", n+first-1)
	})
	const most = 300
	return fmt.Errorf("not YAML: %s", discovery.Shortened(msg, most))
}

// object decodes a JSON object. item is the place in a List, or -1.
func (d *decoder) object(text []byte, item int) []object {
	prefix := ""
	if item >= 0 {
		prefix = fmt.Sprintf("items[%d]", item)
	}
	var m meta
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(text, &m); err != nil {
		// The name may have been read before the fault was met.
		key, wanted := keyOf(&m)
		if m.Kind != "" && !wanted {
			return []object{skip(&m, object{item: item}, prefix)}
		}
		return []object{{item: item, key: key, faults: []fault{jsonFault(text, err, prefix)}}}
	}
	if m.Kind == "" {
		return []object{{item: item, faults: []fault{{joinPath(prefix, "kind"), "Required value"}}}}
	}
	if strings.HasSuffix(m.Kind, "List") && m.Items != nil {
		if item >= 0 {
			return []object{{item: item, faults: []fault{{prefix, "a List within a List"}}}}
		}
		return d.list(&m)
	}
	if m.Items != nil && m.nearGroup() {
		return []object{{item: item, faults: []fault{{joinPath(prefix, "kind"), unsupported(m.Kind) + ": a list of items is read as List"}}}}
	}
	o := object{item: item, hash: maphash.Bytes(d.seed, text)}
	if d.known != nil {
		if key, ok := d.known(o.hash); ok {
			o.key = key
			return []object{o}
		}
	}
	key, wanted := keyOf(&m)
	if !wanted {
		return []object{skip(&m, o, prefix)}
	}
	o.key = key
	if key.Kind == "EndpointSlice" {
		o.service = discovery.ServiceName{Namespace: key.Namespace, Name: m.Metadata.Labels[discoveryv1.LabelServiceName]}
	} else if key.Kind == "Service" || key.Kind == "Endpoints" {
		o.service = discovery.ServiceName{Namespace: key.Namespace, Name: key.Name}
	}
	if reason := nameFault(key); reason != "" {
		o.faults = []fault{{joinPath(prefix, "metadata.name"), reason}}
		o.key.Name = ""
		return []object{o}
	}
	t := typed(m.APIVersion, key, text, prefix)
	o.value, o.faults, o.remarks = t.value, t.faults, t.remarks
	if t.anonymous {
		o.key.Name = ""
	}
	return []object{o}
}

// list decodes the items of a List.
func (d *decoder) list(m *meta) []object {
	var items []json.RawMessage
	if _, faults := unmarshal(m.Items, &items, "items"); faults != nil {
		return []object{{item: -1, faults: faults}}
	}
	var out []object
	for i, text := range items {
		out = append(out, d.item(m, text, i)...)
	}
	return out
}

// item decodes an item. A typed list (`ServiceList`) may leave out the type of the items.
func (d *decoder) item(m *meta, text []byte, i int) []object {
	if kind := strings.TrimSuffix(m.Kind, "List"); kind != "" {
		text = withType(text, m.APIVersion, kind)
	}
	return d.object(text, i)
}

// withType adds the type to an item of a typed list, unless the item has it.
func withType(text []byte, apiVersion, kind string) []byte {
	var m struct{ Kind *string }
	if json.Unmarshal(text, &m) != nil || m.Kind != nil {
		return text
	}
	open := bytes.IndexByte(text, '{')
	if open < 0 {
		return text
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, apiVersion, kind)
	rest := text[open+1:]
	if trimmed := bytes.TrimSpace(rest); len(trimmed) > 0 && trimmed[0] != '}' {
		head += ","
	}
	return append([]byte(head), rest...)
}
