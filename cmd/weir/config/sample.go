package config

import (
	"bytes"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// MarshalLike is configuration c as a file in the form of sample: fields that both have get
// the comments and the style there. A source and interfaces that c does not have are those of
// sample. The name of the node is left out if it is that of the host: so the file suits others.
func MarshalLike(c *Configuration, sample []byte) ([]byte, error) {
	n, err := completed(c, sample)
	if err != nil {
		return nil, err
	}
	data, err := n.Marshal()
	if err != nil {
		return nil, err
	}
	var doc, like yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(sample, &like); err != nil {
		return nil, err
	}
	dress(&doc, &like)
	nameOrNot(c, doc.Content[0])
	return encode(&doc)
}

// nameOrNot leaves the name of the node out, or takes it in place of the one that the sample has
// as a comment before discovery.
func nameOrNot(c *Configuration, n *yaml.Node) {
	name, discovery := keyAt(n, "nodeName"), keyAt(n, "discovery")
	if hostnamed(c) {
		n.Content = slices.Delete(n.Content, name, name+2)
		return
	}
	text, _, _ := strings.Cut(n.Content[discovery].HeadComment, "\n# nodeName:")
	n.Content[name].HeadComment, n.Content[discovery].HeadComment = text, ""
}

// hostnamed reports whether no flag, file or environment has named the node.
func hostnamed(c *Configuration) bool {
	return c.NodeName == "" || c.origin["nodeName"] == originHostname
}

// completed is c with source and interfaces.
func completed(c *Configuration, sample []byte) (*Configuration, error) {
	s, err := Unmarshal(sample, "weir.yaml")
	if err != nil {
		return nil, err
	}
	n := *c
	if n.Discovery.Manifests == nil && n.Discovery.Kubernetes == nil {
		n.Discovery.Manifests, n.Discovery.Kubernetes = s.Discovery.Manifests, s.Discovery.Kubernetes
	}
	if len(n.Interfaces) == 0 {
		n.Interfaces = s.Interfaces
	}
	return &n, n.Validate().Err()
}

// dress gives n and all below the comments and the style of like.
func dress(n, like *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = like.HeadComment, like.LineComment, like.FootComment
	if n.Kind != like.Kind {
		return
	}
	if n.Kind != yaml.ScalarNode {
		n.Style = like.Style
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if at := keyAt(like, n.Content[i].Value); at >= 0 {
				dress(n.Content[i], like.Content[at])
				dress(n.Content[i+1], like.Content[at+1])
			}
		}
	case yaml.DocumentNode, yaml.SequenceNode:
		for i, c := range n.Content {
			if len(like.Content) == 0 {
				return
			}
			dress(c, like.Content[0])
			if i > 0 {
				c.HeadComment = ""
			}
		}
	}
}

// keyAt is the index of a key of a mapping, -1 for none.
func keyAt(n *yaml.Node, key string) int {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// encode writes a document with the indentation of all files here.
func encode(doc *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}
