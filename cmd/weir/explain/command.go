package explain

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
)

// DefaultSocket is asked when no manifests are given.
const DefaultSocket = "/run/weir/weir.sock"

const (
	exitFaults = 1 // a document or a Service has errors
	exitUsage  = 2
)

// exitError is an error with the exit status that it stands for.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// ExitCode is the status for the shell.
func (e *exitError) ExitCode() int { return e.status }

// options are the flags.
type options struct {
	files      []string
	node       string
	nodeLabels map[string]string
	service    string
	output     string
	whatIf     string
	socket     string
	address    string
	fleet      bool
	from       []string
}

// Command is `weir explain`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "explain [-f FILE|DIR] [--node NAME] [--address ADDRESS | --fleet --from FILE] [flags]",
		Short: "Show which endpoints a node uses, and why",
		Long: `Shows, for each Service port, the endpoints that get new flows of a node, under
Cluster and under Local traffic policy, with the reason for each endpoint. Also
shows the addresses of the Service, whether this node serves them, and the reason
if not, such as another Service that holds the address.

With -f it reads manifests, as printed by kubectl get -o yaml: Services,
EndpointSlices, Endpoints and Nodes; "-" is standard input. The labels of the node
are those of its Node in the manifests. Without -f it asks the Weir that runs on
this machine.

--what-if prints the share of new flows that a change would move, and where to:
drain=ADDRESS lets an endpoint terminate, node=NAME and zone=NAME remove all
endpoints there. Without --service it prints the Services of which flows would move, and
their number.

--address says whether the running Weir announces an address to routers, with every
condition that must be met, the routers, and the choice: nodes with the same choice
send a connection to the same endpoint.

--fleet compares the choices of several nodes for each address that they announce. It
reads the output of weir status -o json of each node, which --from names: a file with
one or more of them, - for standard input, or an admin socket.

With manifests the configuration is that of a new installation: port 22 of the node's own
addresses, for one, is protected.

Exit status 0 if every document is valid, 1 if a document has errors, if a Service has
errors or a problem of severity error, or if nodes of the fleet choose differently, 2 on
wrong usage.`,
		Example: `  weir explain -f /etc/weir/manifests --node edge-1
  weir explain -f shop.yaml --node edge-1 --service shop/web -o json
  kubectl get svc,endpointslices,nodes -A -o yaml | weir explain -f - --node edge-1
  weir explain -f shop.yaml --node edge-1 --what-if drain=10.1.2.3
  weir explain --service shop/web         # as the running daemon sees it
  weir explain --address 203.0.113.10
  for n in edge-1 edge-2; do ssh $n weir status -o json; done | weir explain --fleet --from -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVarP(&o.files, "filename", "f", nil, "manifests: a `file`, a directory, or - for standard input; may be given again")
	fs.StringVar(&o.node, "node", "", "`name` of the node (default $NODE_NAME)")
	fs.StringToStringVar(&o.nodeLabels, "node-labels", nil, "additional labels of the node: `key=value,...`")
	fs.StringVar(&o.service, "service", "", "only this Service: `namespace/name`")
	fs.StringVarP(&o.output, "output", "o", "table", "`format` of the output: table or json")
	fs.StringVar(&o.whatIf, "what-if", "", "show the effect of a `change`: drain=ADDRESS, node=NAME or zone=NAME")
	fs.StringVar(&o.socket, "admin-socket", "", "ask the daemon at this `path` (default without -f "+DefaultSocket+")")
	fs.StringVar(&o.address, "address", "", "whether this `address` is announced to routers, and why")
	fs.BoolVar(&o.fleet, "fleet", false, "whether nodes choose the same endpoints for announced addresses")
	fs.StringArrayVar(&o.from, "from", nil, "with --fleet: `file` with the status of nodes, - or an admin socket; may be given again")
	_ = cmd.MarkFlagFilename("from")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("what-if", cobra.FixedCompletions([]string{"drain=", "node=", "zone="}, cobra.ShellCompDirectiveNoSpace))
	return cmd
}

func (o *options) run(cmd *cobra.Command) error {
	service, change, err := o.check()
	if err == nil {
		err = o.checkModes()
	}
	switch {
	case err != nil:
		return &exitError{exitUsage, err}
	case o.address != "":
		return o.explainAddress(cmd)
	case o.fleet:
		return o.explainFleet(cmd)
	}
	var out *Output
	if len(o.files) > 0 {
		out, err = o.offline(cmd, service, change)
	} else {
		out, err = o.online(cmd.Context())
	}
	if err != nil {
		return err
	}
	out.onlyMoved = o.whatIf != "" && o.service == ""
	show := out.Render
	if o.output == "json" {
		show = out.writeJSON
	}
	faults := gatherFaults(out)
	w := bufio.NewWriter(cmd.OutOrStdout())
	if err := errors.Join(show(w), w.Flush()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if all := faults(); len(all) > 0 {
		return &exitError{exitFaults, errors.New(strings.Join(all, "\n"))}
	}
	return nil
}

// gatherFaults returns a function that lists all errors, each once: of
// documents, then of the Services that have been iterated over.
func gatherFaults(out *Output) func() []string {
	var found [][2]string // the line, and the error in it
	services := out.Services
	out.Services = func(yield func(*Service, error) bool) {
		for s, err := range services {
			if err == nil {
				name := problem.Service(s.Namespace, s.Name)
				for _, e := range s.Errors {
					found = append(found, [2]string{name + ": " + e, e})
				}
				for _, p := range s.Problems {
					// Errors has the others.
					if p.Severity == problem.Error && p.Kind != problem.InvalidObject && p.Kind != problem.Manifest {
						found = append(found, [2]string{fmt.Sprintf("%s: %s: %s", name, p.Kind, p.Line()), ""})
					}
				}
			}
			if !yield(s, err) {
				return
			}
		}
	}
	return func() []string {
		all, listed := slices.Clone(out.Errors), map[string]bool{}
		for _, e := range out.Errors {
			listed[e] = true
		}
		for _, f := range found {
			if !listed[f[1]] {
				all = append(all, f[0])
			}
		}
		return all
	}
}

// check returns the errors of the flags.
func (o *options) check() (service *discovery.ServiceName, change *Change, err error) {
	if o.output != "table" && o.output != "json" {
		return nil, nil, fmt.Errorf("--output: must be table or json, is %q", o.output)
	}
	if o.service != "" {
		namespace, name, ok := strings.Cut(o.service, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, nil, fmt.Errorf("--service: must be namespace/name, is %q", o.service)
		}
		service = &discovery.ServiceName{Namespace: namespace, Name: name}
	}
	if o.whatIf != "" {
		if change, err = ParseChange(o.whatIf); err != nil {
			return nil, nil, fmt.Errorf("--what-if: %w", err)
		}
	}
	if len(o.files) > 0 {
		if o.socket != "" {
			return nil, nil, errors.New("-f and --admin-socket exclude each other")
		}
		if o.node == "" {
			o.node = os.Getenv("NODE_NAME")
		}
		if o.node == "" {
			return nil, nil, errors.New("--node is missing: the name of the node that chooses")
		}
	}
	return service, change, nil
}

// checkModes returns the errors of flags that exclude each other.
func (o *options) checkModes() error {
	services := len(o.files) > 0 || o.node != "" || len(o.nodeLabels) > 0 || o.service != "" || o.whatIf != ""
	switch {
	case o.address != "" && (services || o.fleet):
		return errors.New("--address goes with --admin-socket and --output alone")
	case o.fleet && (services || o.socket != ""):
		return errors.New("--fleet goes with --from and --output alone")
	case o.fleet != (len(o.from) > 0):
		return errors.New("--fleet and --from need each other: --from names the status of the nodes")
	}
	return nil
}

// offline explains manifests.
func (o *options) offline(cmd *cobra.Command, service *discovery.ServiceName, change *Change) (*Output, error) {
	cfg := config.Default()
	cfg.NodeName = o.node
	src := manifest.New(manifest.Config{Store: source.Examined(cfg), Log: slog.New(slog.DiscardHandler)})
	report, err := src.LoadFiles(o.files, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	src.Flush()
	node := src.Node()
	if len(o.nodeLabels) > 0 {
		labels := maps.Clone(node.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, o.nodeLabels)
		node.Labels = labels
	}
	services := src.Services()
	own := func(a netip.Addr) bool { return slices.Contains(src.NodeAddresses(), a) }
	view, err := Imagine(cfg, services, discovery.Node{Node: node, Addresses: src.NodeAddresses()}, own)
	if err != nil {
		return nil, err
	}
	q := Question{Services: services, Node: node, Only: service, Change: change, Report: report, View: &view}
	if len(q.subjects()) == 0 && service != nil {
		return nil, fmt.Errorf("no Service %s in the manifests", service)
	}
	out, err := q.Answer()
	if err != nil {
		return nil, err
	}
	for _, n := range src.Notes() {
		out.Notes = append(out.Notes, n.String())
	}
	if len(src.NodeAddresses()) == 0 && slices.ContainsFunc(services, hasNodePort) {
		out.Notes = append(out.Notes, fmt.Sprintf("no address is known of node %s: node ports are left out of the frontends", o.node))
	}
	if len(node.Labels) == 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("no labels are known of node %s: there is no Node of that name in the manifests", o.node))
	}
	return out, nil
}

func hasNodePort(s *discovery.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p discovery.Port) bool { return p.NodePort != 0 })
}

// online asks the daemon.
func (o *options) online(ctx context.Context) (*Output, error) {
	if o.node != "" || len(o.nodeLabels) > 0 {
		return nil, &exitError{exitUsage, errors.New("--node and --node-labels need manifests, -f FILE|DIR: a daemon explains its own node")}
	}
	socket := o.socket
	if socket == "" {
		socket = DefaultSocket
	}
	raw, err := api.NewClient(socket).Explain(ctx, api.ExplainQuery{Service: o.service, WhatIf: o.whatIf})
	if err != nil {
		return nil, err
	}
	out, err := Decode(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: answer to explain: %w", socket, err)
	}
	out.live = true
	return out, nil
}
