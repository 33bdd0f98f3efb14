package config

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
)

// Flags are the command-line flags that stand beside the file. Only those
// given on the command line override it.
type Flags struct {
	// File is the configuration file, "" for none.
	File string

	set *pflag.FlagSet

	nodeName, manifests, kubeconfig, adminSocket string

	interfaces, settings []string
}

// AddFlags registers the flags with fs.
func AddFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{set: fs}
	fs.StringVarP(&f.File, "config", "c", "", "configuration `file` (kind WeirConfiguration); a flag given overrides it")
	fs.StringVar(&f.nodeName, "node-name", "", "`name` of this node, as in EndpointSlices (default $NODE_NAME, else the hostname)")
	fs.StringVar(&f.manifests, "manifests", "", "`path` of a file or directory with Services and EndpointSlices, watched for changes")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "watch Services of the API server in this kubeconfig `file`; empty: in-cluster account")
	fs.StringSliceVarP(&f.interfaces, "interface", "i", nil, "interface `name`s to attach to; repeat or separate by commas")
	fs.StringVar(&f.adminSocket, "admin-socket", Default().Admin.Socket, "`path` of the UNIX socket of weir status")
	fs.StringArrayVar(&f.settings, "set", nil, "set a field of the configuration: `path=value`, such as forwarding.mode=dnat or interfaces[0].mode=native; the value is YAML; repeat for others")
	return f
}

// Given reports whether a flag was given on the command line, beside the exceptions.
func (f *Flags) Given(except ...string) bool {
	given := false
	f.set.Visit(func(flag *pflag.Flag) { given = given || !slices.Contains(except, flag.Name) })
	return given
}

// Load reads the file, if the flags name a file, and lays environment and flags over it. The result
// is not yet validated; the Reload method does the same again. With errors in fields the result has
// the others, as that of Unmarshal; else it is nil with an error.
func (f *Flags) Load() (*Configuration, error) {
	d := decoder{file: f.File, given: map[*yaml.Node]string{}}
	root := mapping(scalarOf("apiVersion"), scalarOf(APIVersion), scalarOf("kind"), scalarOf(Kind))
	if f.File != "" {
		data, err := readFile(f.File)
		if err != nil {
			return nil, err
		}
		if root = d.parse(data); root == nil {
			return nil, d.errs
		}
	}
	settings, err := f.over()
	if err != nil {
		return nil, err
	}
	for _, s := range settings {
		d.set(root, s)
	}
	c, err := d.finish(root)
	if c == nil {
		return nil, err
	}
	if c.NodeName == "" {
		if name, err := os.Hostname(); err == nil {
			c.NodeName = strings.ToLower(strings.TrimSpace(name)) // as the kubelet registers it
			c.origin["nodeName"] = originHostname
		}
	}
	c.reload = f.Load
	return c, err
}

// originHostname is the origin of a node's name that nothing else gives.
const originHostname = "hostname"

// over are the settings of environment and flags, the last of a field wins. The environment names the
// node in a pod whose ConfigMap all nodes share, so it wins over the file.
func (f *Flags) over() (out []setting, err error) {
	add := func(path, origin string, value *yaml.Node) { out = append(out, setting{path, origin, value}) }
	if name := os.Getenv("NODE_NAME"); name != "" {
		add("nodeName", "NODE_NAME", scalarOf(name))
	}
	if f.set.Changed("node-name") {
		add("nodeName", "--node-name", scalarOf(f.nodeName))
	}
	// A source given by a flag takes the place of the file's.
	manifests, kubernetes := f.set.Changed("manifests"), f.set.Changed("kubeconfig")
	none := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	if manifests {
		add("discovery.manifests.path", "--manifests", scalarOf(f.manifests))
		if !kubernetes {
			add("discovery.kubernetes", "--manifests", none)
		}
	}
	if kubernetes {
		add("discovery.kubernetes.kubeconfig", "--kubeconfig", scalarOf(f.kubeconfig))
		if !manifests {
			add("discovery.manifests", "--kubeconfig", none)
		}
	}
	if f.set.Changed("interface") {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, name := range f.interfaces {
			list.Content = append(list.Content, mapping(scalarOf("name"), scalarOf(name)))
		}
		add("interfaces", "--interface", list)
	}
	if f.set.Changed("admin-socket") {
		add("admin.socket", "--admin-socket", scalarOf(f.adminSocket))
	}
	for _, text := range f.settings {
		s, err := parseSetting(text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
