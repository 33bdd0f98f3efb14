// Package pipeline measures the packet path in memory: the workers of lb with
// all their stages, the flow table and the queues, and no I/O. It is the command
// `weirperf pipeline`.
package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/conntrack"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// Options are the options of the command.
type Options struct {
	Flows   []int
	Mode    string
	Proto   string
	IPv6    bool
	Workers int
	Samples int
	// Baseline is another weirperf to compare with; empty: none.
	Baseline string
	Turns    int
}

// Command is `weirperf pipeline`.
func Command() *cobra.Command {
	var o Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Measure the packet path in memory: established and new flows, and drops",
		Long: `Runs the worker of weir run, from a queue's receive to its transmit, over queues
in memory: 60-byte packets (64 on the wire), 80 bytes of IPv6, of a Service with 256 endpoints and
four SNAT addresses. N flows are N connections, each with all its entries in one
flow table that all workers share.

  established  packets of flows chosen at random, both directions in equal parts
  new          the first packet of a connection: endpoint chosen, SNAT port, both
               entries; filling an empty table up to N (from 1024 flows)
  answer       the first answers to 65536 new connections (from 1024 flows)
  early        UDP: packets of these connections in their first two seconds
  drop         packets to an SNAT port that no flow has

In the modes l2dsr, ipip and gue answers pass Weir by: established packets are the
client's alone, a new connection takes no SNAT port and one entry. In dnat the
endpoints are behind the kernel: packets to and from them take the veth pair.

Before anything is measured one packet of every flow and direction is held to the
bytes that should come out.

Times are CPU time of the worker's thread, less the cost of making the packets,
which is measured in turn with it. A figure is the median over the samples, with
the lowest and the highest. With more than one worker each is measured alone and
then all at once, and the ratio is of packets per second of all to those of one.

With --baseline this binary and another weirperf, of an older tree for example, run
in turn with the same flags. The ratio of this binary's figure to the baseline's is
taken per turn; its median and its spread are shown. Below 1 this binary is faster.`,
		Example: `  weirperf pipeline
  weirperf pipeline --flows 65536,1048576 --workers 2
  weirperf pipeline --flows 65536 --mode ipip
  weirperf pipeline --flows 65536 --proto tcp --json
  weirperf pipeline --flows 65536 --baseline /tmp/weirperf-before`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			if o.Baseline != "" {
				return runComparison(cmd, o, asJSON)
			}
			r := runner{ctx: cmd.Context(), progress: cmd.ErrOrStderr(), o: o}
			res, err := r.run()
			if err != nil {
				return err
			}
			res.Machine = machine.Describe()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), res)
			}
			return res.render(cmd.OutOrStdout(), o)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntSliceVar(&o.Flows, "flows", []int{1, 1 << 16, 1 << 20, 10_000_000}, "`numbers` of connections, measured one after the other")
	fs.StringVar(&o.Mode, "mode", "nat", "forwarding `mode`: "+strings.Join(modeNames(), ", "))
	fs.StringVar(&o.Proto, "proto", "udp", "`protocol` of the packets: udp or tcp")
	fs.BoolVar(&o.IPv6, "ipv6", false, "IPv6 packets, in the modes nat, dnat and l2dsr")
	fs.IntVar(&o.Workers, "workers", 1, "`number` of workers on the one table")
	fs.IntVar(&o.Samples, "samples", 11, "`number` of samples of each figure")
	fs.StringVar(&o.Baseline, "baseline", "", "`path` of another weirperf, to run in turn with this one")
	fs.IntVar(&o.Turns, "turns", 5, "`number` of turns with --baseline")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// runComparison runs this binary and the baseline in turn.
func runComparison(cmd *cobra.Command, o Options, asJSON bool) error {
	path, err := self()
	if err != nil {
		return err
	}
	c := comparison{self: path, baseline: o.Baseline, o: o, progress: cmd.ErrOrStderr()}
	ratios, err := c.run(cmd.Context())
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON {
		return printJSON(out, struct {
			Machine machine.Machine `json:"machine"`
			Ratios  []Ratio         `json:"baseline"`
		}{machine.Describe(), ratios})
	}
	fmt.Fprintf(out, "%s\nthis binary and %s in %d turns, %s\n\n", machine.Describe(), o.Baseline, o.Turns, o.Proto)
	return renderRatios(out, ratios)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

const mostFlows = 16 << 20

func (o *Options) check() error {
	var errs []error
	for _, n := range o.Flows {
		if n < 1 || n > mostFlows {
			errs = append(errs, fmt.Errorf("--flows: must be between 1 and %d, is %d", mostFlows, n))
		}
	}
	if len(o.Flows) == 0 {
		errs = append(errs, errors.New("--flows: must name at least one number"))
	}
	if !slices.Contains(modeNames(), o.Mode) {
		errs = append(errs, fmt.Errorf("--mode: must be one of %s, is %q", strings.Join(modeNames(), ", "), o.Mode))
	}
	if o.Proto != "udp" && o.Proto != "tcp" {
		errs = append(errs, fmt.Errorf("--proto: must be udp or tcp, is %q", o.Proto))
	}
	if o.IPv6 && modeNamed(o.Mode).outerLen() > 0 {
		errs = append(errs, fmt.Errorf("--ipv6: not with --mode %s", o.Mode))
	}
	if o.Workers < 1 || o.Workers > 64 {
		errs = append(errs, fmt.Errorf("--workers: must be between 1 and 64, is %d", o.Workers))
	}
	if o.Samples < 1 {
		errs = append(errs, fmt.Errorf("--samples: must be at least 1, is %d", o.Samples))
	}
	if o.Turns < 1 {
		errs = append(errs, fmt.Errorf("--turns: must be at least 1, is %d", o.Turns))
	}
	if o.Baseline != "" {
		if err := unix.Access(o.Baseline, unix.X_OK); err != nil {
			errs = append(errs, fmt.Errorf("--baseline: %s: %w", o.Baseline, err))
		}
	}
	return errors.Join(errs...)
}

// Report is the result of the command; as JSON it has a fixed form.
type Report struct {
	Machine machine.Machine    `json:"machine"`
	Results []Result           `json:"results"`
	Ratios  map[string]float64 `json:"ratios,omitempty"`
	Tables  []Table            `json:"tables"`
}

// Result is a figure: nanoseconds of CPU per packet and worker.
type Result struct {
	Mode            string  `json:"mode"`
	IPv6            bool    `json:"ipv6,omitempty"`
	Flows           int     `json:"flows"`
	Kind            string  `json:"kind"`
	NsPerPacket     float64 `json:"nsPerPacket"`
	Min             float64 `json:"min"`
	Max             float64 `json:"max"`
	AllocsPerPacket float64 `json:"allocsPerPacket"`
	Workers         int     `json:"workers"`
	// Generation is the cost of making a packet, which is not in the others.
	Generation float64 `json:"generationNs"`
}

// Table is the flow table of a number of flows.
type Table struct {
	Flows        int     `json:"flows"`
	MaxFlows     int     `json:"maxFlows"`
	BytesPerFlow float64 `json:"bytesPerFlow"` // of memory, per flow in it
	IndexLoad    float64 `json:"indexLoad"`    // share of the index's slots in use
	// Memory is that memory by its parts, in bytes.
	Memory conntrack.MemoryUse `json:"memory"`
}

// parts returns the memory by its parts, per flow that there is room for.
func (t *Table) parts() string {
	m, per := &t.Memory, func(bytes int64) float64 { return float64(bytes) / float64(t.MaxFlows) }
	return fmt.Sprintf("per flow that it has room for: %.1f bytes: entries %.1f, Conn %.1f, index %.1f, links %.1f, port rotation %.1f, counts %.1f, gaps %.1f",
		per(m.Total()), per(m.Entries), per(m.Conns), per(m.Index), per(m.Links), per(m.Cursors), per(m.Counts), per(m.Header))
}

// render writes the report for people.
func (r *Report) render(w io.Writer, o Options) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Machine)
	fmt.Fprintf(&b, "mode %s, %s, %d-byte packets, %d endpoints, %d SNAT addresses, random flows, batches of %d per port\n\n",
		o.Mode, o.Proto, newMaker(o.IPv6, 0, 0).length, endpoints, snatAddresses, perRound)
	fmt.Fprintf(&b, "%10s  %-11s %7s  %10s  %18s  %13s  %10s\n", "flows", "kind", "workers", "ns/packet", "min .. max", "allocs/packet", "generation")
	for _, x := range r.Results {
		fmt.Fprintf(&b, "%10d  %-11s %7d  %10.1f  %18s  %13.3g  %10.1f\n", x.Flows, x.Kind, x.Workers, x.NsPerPacket,
			fmt.Sprintf("%.1f .. %.1f", x.Min, x.Max), x.AllocsPerPacket, x.Generation)
	}
	fmt.Fprintln(&b)
	for _, t := range r.Tables {
		if t.Flows >= leastNew {
			fmt.Fprintf(&b, "table of %d flows: %.0f bytes per flow, index load %.2f, room for %d\n  %s\n",
				t.Flows, t.BytesPerFlow, t.IndexLoad, t.MaxFlows, t.parts())
		}
	}
	for _, x := range r.Results {
		if v, ok := r.Ratios[x.ratioName()]; ok {
			fmt.Fprintf(&b, "%s: %.2f\n", x.ratioName(), v)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ratioName names the ratio of a result of several workers to that of a single worker.
func (x *Result) ratioName() string {
	return fmt.Sprintf("%s %d flows, %d workers/1", x.Kind, x.Flows, x.Workers)
}
