package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Read reads and parses the configuration file name over the defaults. The error is an
// [Errors] if the file could be read.
func Read(name string) (*Configuration, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	return Unmarshal(data, name)
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("configuration %s: larger than %d bytes", name, MaxFileSize)
	}
	return data, nil
}

// Unmarshal parses data, YAML or JSON, over the defaults; name is the file's
// name for messages. A field that the document leaves out stays at the default;
// a field that is not known, is given twice or has the wrong type is an
// error. The result is not yet validated. With errors in fields it has the other fields, so that
// these can be validated too; it is nil if data is not a document of this kind.
func Unmarshal(data []byte, name string) (*Configuration, error) {
	d := decoder{file: name}
	root := d.parse(data)
	if root == nil {
		return nil, d.errs
	}
	return d.finish(root)
}

// finish is the configuration of a tree.
func (d *decoder) finish(root *yaml.Node) (*Configuration, error) {
	c := d.decode(root)
	slices.SortStableFunc(d.errs, func(a, b *FieldError) int { return lineOf(a) - lineOf(b) })
	if c == nil {
		return nil, d.errs
	}
	for i := range c.Interfaces {
		in := &c.Interfaces[i]
		in.Mode = cmp.Or(in.Mode, ModeAuto)
		in.TxChecksum = cmp.Or(in.TxChecksum, TxChecksumAuto)
		in.Hook = cmp.Or(in.Hook, HookAuto)
	}
	return c, d.errs.Err()
}

// lineOf is the line of an error in a file, 0 for none.
func lineOf(e *FieldError) int {
	n, err := strconv.Atoi(e.Origin[strings.LastIndexAny(e.Origin, ": ")+1:])
	if err != nil {
		return 0
	}
	return n
}

// Marshal is the configuration as a file that Unmarshal reads back.
func (c *Configuration) Marshal() ([]byte, error) {
	// A nil list would be written as null, which reads back as the default.
	n := *c
	n.Interfaces = append([]Interface{}, c.Interfaces...)
	n.NodePortAddresses = append([]string{}, c.NodePortAddresses...)
	n.SNAT.Addresses = append([]string{}, c.SNAT.Addresses...)
	n.HostVeth.Prefixes = append([]string{}, c.HostVeth.Prefixes...)
	n.ProtectedPorts = append([]uint16{}, c.ProtectedPorts...)
	n.ProtectedEndpointPorts = append([]uint16{}, c.ProtectedEndpointPorts...)
	data, err := json.Marshal(&n)
	if err != nil {
		return nil, err
	}
	return inBlocks(data)
}

// inBlocks turns JSON into YAML as people write it, in the same order.
func inBlocks(data []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	plain(&doc)
	return encode(&doc)
}

// oldBooleans are strings that YAML 1.1 reads as true or false.
var oldBooleans = []string{"on", "off", "yes", "no", "y", "n"}

// plain takes the braces and quotes of JSON away where YAML needs none.
func plain(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		n.Style = 0
	} else if n.Style == yaml.DoubleQuotedStyle && !slices.Contains(oldBooleans, strings.ToLower(n.Value)) {
		n.Style = 0 // the tag !!str brings the quotes back where they matter
	}
	if n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.ScalarNode {
		n.Style = yaml.FlowStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// Clone is a copy that shares nothing with c.
func (c *Configuration) Clone() (*Configuration, error) {
	data, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	n, err := Unmarshal(data, "")
	if err != nil {
		return nil, errors.Join(errors.New("copy of the configuration"), err)
	}
	n.origin, n.reload = maps.Clone(c.origin), c.reload
	n.attached, n.selections, n.resolved = slices.Clone(c.attached), slices.Clone(c.selections), c.resolved
	n.resumed = c.resumed
	return n, nil
}
