package config

import (
	"fmt"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// setting is a value for a field of the file, of a flag or of the environment.
type setting struct {
	path, origin string
	value        *yaml.Node
}

// parseSetting reads PATH=VALUE; VALUE is YAML.
func parseSetting(text string) (setting, error) {
	const origin = "--set"
	path, value, ok := strings.Cut(text, "=")
	if !ok || path == "" {
		return setting{}, &FieldError{Origin: origin, Msg: fmt.Sprintf("expected PATH=VALUE such as forwarding.mode=dnat, got %q", text)}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
		return setting{}, &FieldError{Origin: origin, Path: path, Msg: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if len(doc.Content) == 0 {
		return setting{path, origin, scalarOf("")}, nil
	}
	return setting{path, origin, doc.Content[0]}, nil
}

// scalarOf is a node of a string.
func scalarOf(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// mapping is a node of fields.
func mapping(content ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: content}
}

// set puts a setting into the tree of a file, and notes its origin.
func (d *decoder) set(root *yaml.Node, s setting) {
	n, at := root, ""
	for _, name := range strings.FieldsFunc(strings.ReplaceAll(s.path, "[", ".["), func(r rune) bool { return r == '.' }) {
		if n.Kind == yaml.AliasNode {
			*n = *cloned(n.Alias, 0) // the anchor is another field's
		}
		detach(root, n)
		index, isIndex := strings.CutPrefix(name, "[")
		if isNull(n) {
			*n = yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
			if isIndex {
				n.Kind, n.Content = yaml.SequenceNode, defaultList(at)
			}
			d.mark(n, s.origin)
		}
		next := element(n, index)
		if !isIndex {
			next = d.field(n, name, s.origin)
		}
		if next == nil {
			d.errs = append(d.errs, &FieldError{Origin: s.origin, Path: s.path, Msg: fmt.Sprintf("there is no %s in %s", strings.Trim(name, "[]"), describe(n))})
			return
		}
		n, at = next, strings.TrimPrefix(at+"."+name, ".")
	}
	detach(root, n)
	*n = *s.value
	d.mark(n, s.origin)
}

// defaultList are the elements of a list by default, nil for none.
func defaultList(path string) []*yaml.Node {
	data, err := Default().Marshal()
	var doc yaml.Node
	if err != nil || yaml.Unmarshal(data, &doc) != nil {
		return nil
	}
	n := doc.Content[0]
	for name := range strings.SplitSeq(path, ".") {
		i := keyAt(n, name)
		if i < 0 {
			return nil
		}
		n = n.Content[i+1]
	}
	return n.Content
}

// detach gives the aliases of n in a tree a copy of it.
func detach(root, n *yaml.Node) {
	if n.Anchor == "" {
		return
	}
	was := cloned(n, 0)
	n.Anchor = ""
	var follow func(*yaml.Node)
	follow = func(x *yaml.Node) {
		if x.Alias == n {
			x.Alias = was
		}
		for _, c := range x.Content {
			follow(c)
		}
	}
	follow(root)
}

// field is the value of a field of n, null where there is none yet, and nil if n is no mapping.
func (d *decoder) field(n *yaml.Node, name, origin string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	at := keyAt(n, name)
	if at < 0 {
		at = len(n.Content)
		n.Content = append(n.Content, scalarOf(name), scalarOf(""))
		n.Content[at+1].Tag = "!!null"
	}
	d.given[n.Content[at]] = origin
	return n.Content[at+1]
}

// element is an element of a list, of which the next may be added; nil if there is none.
func element(n *yaml.Node, index string) *yaml.Node {
	i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
	if err != nil || n.Kind != yaml.SequenceNode || i < 0 || i > len(n.Content) {
		return nil
	}
	if i == len(n.Content) {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"})
	}
	return n.Content[i]
}

// mark notes the origin of a node and of all below it.
func (d *decoder) mark(n *yaml.Node, origin string) {
	d.given[n] = origin
	for _, c := range n.Content {
		d.mark(c, origin)
	}
}

// maxDepth is how deep a value may be that an alias stands for.
const maxDepth = 16

// cloned is a copy of a tree.
func cloned(n *yaml.Node, depth int) *yaml.Node {
	c := *n
	c.Anchor, c.Content = "", nil
	if depth < maxDepth {
		for _, of := range n.Content {
			c.Content = append(c.Content, cloned(of, depth+1))
		}
	}
	return &c
}
