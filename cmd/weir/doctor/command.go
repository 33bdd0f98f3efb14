package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
)

const (
	exitFaults = 1
	exitUsage  = 2
)

// exitError is an error with the exit status that it stands for.
type exitError struct {
	status int
	text   string
}

func (e *exitError) Error() string { return e.text }

// ExitCode is the status for the shell.
func (e *exitError) ExitCode() int { return e.status }

// options are the flags beside those of the configuration.
type options struct {
	output string
	shadow bool
}

// Command is `weir doctor`.
func Command() *cobra.Command {
	var flags *config.Flags
	var o options
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Examine the running Weir and this machine",
		Long: `Shows the running Weir and this machine in a list, the worst first: each entry with
a verdict (fault, warning, ok), the fact, and the command that mends it. It looks at
problems, interfaces, offloads, queues and workers, interrupts, MTUs, locked memory,
huge pages, XDP and TCX programs of others, neighbor tables, reverse path filter,
forwarding, port ranges, the clock, and the rules of kube-proxy for the same frontends.
Of the interfaces of announce.l2 it asks hosts as the owner of an address: a switch that
drops ARP of addresses that are not the node's is found. Nothing is changed.

--shadow compares the endpoints that kube-proxy has programmed (nftables, iptables or
IPVS) with Weir's choice, for every frontend, with the reasons of weir explain and weir
drain. Weir need not run: the choice is then made from the configured source, and no
packet is taken.

Where no Weir is running, the machine is examined for a start, as by weir check. A Weir
of another network namespace is not examined: the command that enters it is named.
The flags are those of weir run. Without any, the flags of the running process count.

Exit status 0 without faults, 1 with faults, 2 on wrong usage.`,
		Example: `  weir doctor
  weir doctor --config /etc/weir/weir.yaml
  weir doctor --shadow --config /etc/weir/weir.yaml
  weir doctor -o json | jq '.findings[] | select(.verdict == "fault")'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return &exitError{exitUsage, fmt.Sprintf("unexpected argument %q", args[0])}
			case o.output != "table" && o.output != "json":
				return &exitError{exitUsage, fmt.Sprintf("--output: must be table or json, is %q", o.output)}
			}
			return run(cmd.Context(), cmd.OutOrStdout(), flags, &o)
		},
	}
	flags = config.AddFlags(cmd.Flags())
	fs := cmd.Flags()
	fs.BoolVar(&o.shadow, "shadow", false, "compare the endpoints of kube-proxy with Weir's choice, for every frontend")
	fs.StringVarP(&o.output, "output", "o", "table", "`format` of the output: table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	fs.SortFlags = false
	return cmd
}

func run(ctx context.Context, w io.Writer, flags *config.Flags, o *options) error {
	given, loadErr := flags.Load()
	socket := config.Default().Admin.Socket
	if loadErr == nil {
		socket = given.Admin.Socket
	}
	load := func(running *api.Status) (*config.Configuration, error) {
		if running != nil && !flags.Given("admin-socket", "output", "shadow") {
			return ofProcess(running)
		}
		return given, loadErr
	}
	look := examine
	if o.shadow {
		look = shadow
	}
	r, err := look(ctx, load, api.NewClient(socket))
	if err != nil {
		return err
	}
	show := r.table
	if o.shadow {
		show = r.shadowTable
	}
	if o.output == "json" {
		show = r.json
	}
	if err := show(w); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	switch n := r.Faults(); n {
	case 0:
		return nil
	case 1:
		return &exitError{exitFaults, "1 fault"}
	default:
		return &exitError{exitFaults, fmt.Sprintf("%d faults", n)}
	}
}

func (r *Report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// shadowTable has the findings, and a line per frontend with another line for each endpoint
// that only one side has.
func (r *Report) shadowTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, c := range r.KubeProxy {
		fmt.Fprintln(t, "AGREEMENT\tFRONTEND\tSERVICE\tENDPOINTS")
		for i := range c.Frontends {
			f := &c.Frontends[i]
			fmt.Fprintf(t, "%s\t%s %s\t%s\t%d the same\n", f.Agreement, f.Protocol, f.Frontend, view.Line(cmp.Or(f.Service, "-")), len(f.Same))
			for _, e := range f.OnlyKubeProxy {
				fmt.Fprintf(t, "\t\t\tonly kube-proxy: %s %s\n", e.Endpoint, view.Line(e.Reason))
			}
			for _, e := range f.OnlyWeir {
				fmt.Fprintf(t, "\t\t\tonly Weir: %s %s\n", e.Endpoint, view.Line(e.Reason))
			}
		}
	}
	t.Flush() // into memory
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return r.table(w)
}

// table has a line per finding, and below it the command that mends it. Names of
// interfaces and objects are not trusted.
func (r *Report) table(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Verdict, view.Line(f.Subject), view.Line(f.Fact))
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\tmend: %s\n", view.Line(f.Mend))
		}
	}
	t.Flush() // into memory
	_, err := io.WriteString(w, b.String())
	return err
}
